"""Which code and which references the content of a day was built from, and the parts of that code."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("contents", sa.Column("references", sa.Text(), nullable=True))
    op.add_column("contents", sa.Column("parts", sa.String(length=16), nullable=True))
    op.create_table(
        "codes",
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("parts", sa.String(length=16), nullable=False),
        sa.Column("digests", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "parts", name=op.f("pk_codes")),
    )
