"""Contents also say which deliveries and references a day was built from: a published day that lacks newer ones is late."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    # Null for contents of before: nobody knows what they were built from.
    op.add_column("contents", sa.Column("inputs", sa.Text(), nullable=True))
