"""Releases are counted by state, and their times are compared, without a look at their manifests, which are long."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_index(op.f("ix_releases_state"), "releases", ["state"], unique=False)
    op.create_index(op.f("ix_releases_committed_at"), "releases", ["committed_at"], unique=False)
