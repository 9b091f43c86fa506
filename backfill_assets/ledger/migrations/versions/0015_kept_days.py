"""Who said that published days stay as they are, although the code changed since; append-only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_COLUMNS = (
    "number", "dataset", "day", "about", "fingerprint", "upstream", "inputs", "deliveries", "references", "parts", "causes", "by",
    "at", "reason",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "kept_days",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("about", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("upstream", sa.Text(), nullable=True),
        sa.Column("inputs", sa.Text(), nullable=True),
        sa.Column("deliveries", sa.Text(), nullable=True),
        sa.Column("references", sa.Text(), nullable=True),
        sa.Column("parts", sa.String(length=16), nullable=True),
        sa.Column("causes", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_kept_days")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_kept_days_dataset_day"), "kept_days", ["dataset", "day"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER kept_days_refuses_{change} BEFORE {change.upper()} ON kept_days "
                "BEGIN SELECT RAISE(ABORT, 'kept_days is append-only'); END"
            )
        differs = " OR ".join(f't."{column}" IS NOT NEW."{column}"' for column in _COLUMNS)
        op.execute(
            "CREATE TRIGGER kept_days_refuses_replacement BEFORE INSERT ON kept_days "
            f"WHEN EXISTS (SELECT 1 FROM kept_days t WHERE t.rowid = NEW.rowid AND ({differs})) "
            "BEGIN SELECT RAISE(ABORT, 'kept_days is append-only'); END"
        )
        return
    op.execute(
        "CREATE TRIGGER kept_days_refuses_changes BEFORE UPDATE OR DELETE ON kept_days "
        "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE TRIGGER kept_days_refuses_truncate BEFORE TRUNCATE ON kept_days "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
