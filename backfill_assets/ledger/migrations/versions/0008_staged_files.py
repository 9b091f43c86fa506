"""Staged days name the files that hold them: what somebody else, or a backup, has put there is staged again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # Empty for days that were staged before: they are staged again when they are needed.
    op.add_column("staged_days", sa.Column("place", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("staged_days", sa.Column("files", sa.String(64), nullable=False, server_default=sa.text("''")))
