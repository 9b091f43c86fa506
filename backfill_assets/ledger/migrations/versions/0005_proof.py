"""The rows behind each day's difference, and certificates of idempotency."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "comparisons",
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["unit"], ["units.id"], name=op.f("fk_comparisons_unit_units")),
        sa.PrimaryKeyConstraint("unit", "dataset", "day", name=op.f("pk_comparisons")),
    )
    op.create_table(
        "certificates",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
    )
    op.create_index(op.f("ix_certificates_dataset"), "certificates", ["dataset"], unique=False)
    op.create_index(op.f("ix_certificates_unit"), "certificates", ["unit"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER certificates_refuses_{change} BEFORE {change.upper()} ON certificates "
                "BEGIN SELECT RAISE(ABORT, 'certificates is append-only'); END"
            )
    else:
        op.execute(
            "CREATE TRIGGER certificates_refuses_changes BEFORE UPDATE OR DELETE ON certificates "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
