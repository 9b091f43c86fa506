"""Contents: which content a layout of a day holds, so that dependants can tell changed content from moved files."""

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
