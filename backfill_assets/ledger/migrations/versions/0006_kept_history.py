"""The history of releases and the evidence are append-only, and whoever does not own the ledger signs as themselves."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

_KEPT = ("number", "release", "dataset", "unit", "created_at", "manifest")
_APPEND_ONLY = ("campaign_journal", "approvals", "approval_days", "certificates", "evidence")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _keep_history_on_sqlite()
    else:
        _keep_history_on_postgres()
        _sign_as_themselves_on_postgres()


def _rewritten(distinct: str) -> str:
    """What an update of a release must not do: touch what was stored, take back a commit, or forget that it was given up."""
    touched = " OR ".join(f"OLD.{column} {distinct} NEW.{column}" for column in _KEPT)
    return f"{touched} OR OLD.state = 'finalized' OR NEW.state = 'intent'"


def _keep_history_on_sqlite() -> None:
    refuse = "BEGIN SELECT RAISE(ABORT, '{} is append-only'); END"
    for change in ("update", "delete"):
        op.execute(
            f"CREATE TRIGGER evidence_refuses_{change} BEFORE {change.upper()} ON evidence {refuse.format('evidence')}"
        )
    op.execute(f"CREATE TRIGGER releases_refuses_delete BEFORE DELETE ON releases {refuse.format('releases')}")
    op.execute(
        f"CREATE TRIGGER releases_refuses_update BEFORE UPDATE ON releases WHEN {_rewritten('IS NOT')} "
        f"{refuse.format('releases')}"
    )


def _keep_history_on_postgres() -> None:
    op.execute(
        "CREATE TRIGGER evidence_refuses_changes BEFORE UPDATE OR DELETE ON evidence "
        "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE TRIGGER releases_refuses_delete BEFORE DELETE ON releases FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE TRIGGER releases_refuses_update BEFORE UPDATE ON releases FOR EACH ROW "
        f"WHEN ({_rewritten('IS DISTINCT FROM')}) EXECUTE FUNCTION refuse_change()"
    )
    for table in (*_APPEND_ONLY, "releases"):
        op.execute(
            f"CREATE TRIGGER {table}_refuses_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


_SIGNED = ("approvals", "approval_days", "campaign_journal")
_REFUSE = """
CREATE FUNCTION refuse_other_identity() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
  RETURN NEW;
END $$
"""
"""The path is its own: with the caller's, a temporary table of theirs could stand for Postgres' catalog."""


def _sign_as_themselves_on_postgres() -> None:
    # The owner's programs tell whom the operating system knows; a person's own login speaks for that person alone.
    op.execute(_REFUSE)
    for table in _SIGNED:
        op.execute(
            f"CREATE TRIGGER {table}_refuses_other_identity BEFORE INSERT ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_other_identity()"
        )
