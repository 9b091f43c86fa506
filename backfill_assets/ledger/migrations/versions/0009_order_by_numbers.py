"""History cannot be replaced on SQLite either, and approvals and certificates say by numbers what they came after."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_COLUMNS: Final = {
    "campaign_journal": ("number", "campaign", "at", "by", "action", "reason", "detail", "revision", "phase"),
    "approvals": ("number", "unit", "evidence", "by", "identity", "at", "after_release", "after_entry"),
    "approval_days": ("approval", "dataset", "day", "evidence"),
    "certificates": ("id", "dataset", "unit", "at", "body", "number"),
    "evidence": ("number", "unit", "attempt", "dataset", "day", "recorded_at", "body", "hash"),
    "releases": (
        "number", "release", "dataset", "unit", "state", "version", "created_at", "committed_at", "manifest",
    ),
}  # fmt: skip
_KEYS: Final = {
    "approval_days": (("approval", "dataset", "day"),),
    "certificates": (("id",),),
    "releases": (("release",),),
}
"""Unique keys beside the row's number: REPLACE deletes the rows that have any of them."""
_TOO_LATE: Final = "an approval cannot come after what has not happened"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.add_column("certificates", sa.Column("number", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    for name in ("after_release", "after_entry"):
        op.add_column("approvals", sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    _place_approvals_of_before(sqlite=sqlite)
    if sqlite:
        _refuse_replacement()
        _refuse_foresight_on_sqlite()
    else:
        _refuse_foresight_on_postgres()
        op.execute(_SIGN)


def _place_approvals_of_before(*, sqlite: bool) -> None:
    """Until now times told what an approval came after; this is the last time that they do."""
    if sqlite:
        op.execute("DROP TRIGGER approvals_refuses_update")
    else:
        op.execute("ALTER TABLE approvals DISABLE TRIGGER approvals_refuses_changes")
    op.execute(
        "UPDATE approvals SET after_release = coalesce("
        "(SELECT min(r.number) - 1 FROM releases r WHERE r.unit = approvals.unit AND r.created_at >= approvals.at), "
        "(SELECT max(number) FROM releases), 0), after_entry = coalesce("
        "(SELECT min(j.number) - 1 FROM campaign_journal j JOIN campaigns c ON c.id = j.campaign "
        "WHERE c.unit = approvals.unit AND j.action = 'resumed' AND j.at >= approvals.at), "
        "(SELECT max(number) FROM campaign_journal), 0)"
    )
    if sqlite:
        op.execute(
            "CREATE TRIGGER approvals_refuses_update BEFORE UPDATE ON approvals "
            "BEGIN SELECT RAISE(ABORT, 'approvals is append-only'); END"
        )
    else:
        op.execute("ALTER TABLE approvals ENABLE TRIGGER approvals_refuses_changes")


def _refuse_replacement() -> None:
    # REPLACE deletes rows without firing triggers of DELETE. What is there as it is given passes: the ledger says so often.
    for table, columns in _COLUMNS.items():
        keys = [("rowid",), *_KEYS.get(table, ())]
        same = " OR ".join("(" + " AND ".join(f't."{column}" = NEW."{column}"' for column in key) + ")" for key in keys)
        differs = " OR ".join(f't."{column}" IS NOT NEW."{column}"' for column in columns)
        op.execute(
            f"CREATE TRIGGER {table}_refuses_replacement BEFORE INSERT ON {table} "
            f"WHEN EXISTS (SELECT 1 FROM {table} t WHERE ({same}) AND ({differs})) "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def _refuse_foresight_on_sqlite() -> None:
    op.execute(
        "CREATE TRIGGER approvals_refuses_foresight BEFORE INSERT ON approvals "
        "WHEN NEW.after_release > coalesce((SELECT max(number) FROM releases), 0) "
        "OR NEW.after_entry > coalesce((SELECT max(number) FROM campaign_journal), 0) "
        f"BEGIN SELECT RAISE(ABORT, '{_TOO_LATE}'); END"
    )


def _refuse_foresight_on_postgres() -> None:
    op.execute(
        "CREATE FUNCTION refuse_foresight() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$ "
        "DECLARE release bigint; entry bigint; BEGIN "
        "EXECUTE format('SELECT max(number) FROM %I.releases', TG_TABLE_SCHEMA) INTO release; "
        "EXECUTE format('SELECT max(number) FROM %I.campaign_journal', TG_TABLE_SCHEMA) INTO entry; "
        "IF NEW.after_release > coalesce(release, 0) OR NEW.after_entry > coalesce(entry, 0) THEN "
        f"RAISE EXCEPTION '{_TOO_LATE}'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER approvals_refuses_foresight BEFORE INSERT ON approvals "
        "FOR EACH ROW EXECUTE FUNCTION refuse_foresight()"
    )


_SIGN: Final = """
CREATE OR REPLACE FUNCTION refuse_other_identity() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE who text;
BEGIN
  IF pg_has_role(session_user, (SELECT relowner FROM pg_catalog.pg_class WHERE oid = TG_RELID), 'MEMBER') THEN
    RETURN NEW;
  ELSIF TG_TABLE_NAME = 'approvals' THEN
    who := NEW.identity;
  ELSIF TG_TABLE_NAME = 'campaign_journal' THEN
    who := NEW."by";
  ELSE
    EXECUTE format('SELECT identity FROM %I.approvals WHERE number = $1', TG_TABLE_SCHEMA) INTO who USING NEW.approval;
  END IF;
  IF who IS DISTINCT FROM session_user::text THEN
    RAISE EXCEPTION 'login % cannot approve as %', session_user, who;
  END IF;
  IF TG_TABLE_NAME IN ('approvals', 'campaign_journal') THEN
    NEW.at := transaction_timestamp();
    NEW.number := nextval(pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), 'number'));
  END IF;
  RETURN NEW;
END $$
"""
"""Whoever does not own the ledger chooses neither when they approve nor the number that says what came before."""
