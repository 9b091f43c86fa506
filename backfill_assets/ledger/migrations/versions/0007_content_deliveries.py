"""Contents name the deliveries that a day was built from: what came later is told without comparing times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # Null for contents of before, of which only the digest of all inputs is known.
    op.add_column("contents", sa.Column("deliveries", sa.Text(), nullable=True))
