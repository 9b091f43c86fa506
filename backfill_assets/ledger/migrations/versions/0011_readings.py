"""Deliveries say how they were read: what was read otherwise is read again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # Empty for deliveries of before: they are read again when they are needed.
    op.add_column("deliveries", sa.Column("reading", sa.String(64), nullable=False, server_default=sa.text("''")))
