"""Contents: what a layout of a day holds, to tell changed rows from moved files; and the hash beside the evidence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "contents",
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("layout", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "day", "layout", name=op.f("pk_contents")),
    )
    # Null for evidence of before: its hash is computed from its body, as it always was.
    op.add_column("evidence", sa.Column("hash", sa.String(length=64), nullable=True))
