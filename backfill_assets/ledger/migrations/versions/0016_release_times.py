"""The states and the times of all releases are read without a look at their manifests, which are long."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_index(op.f("ix_releases_state_release"), "releases", ["state", "release"], unique=False)
    op.create_index(op.f("ix_releases_committed_at"), "releases", ["committed_at"], unique=False)
