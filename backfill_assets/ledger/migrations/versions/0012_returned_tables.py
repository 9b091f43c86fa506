"""A table that was adopted can be given back: its finalized releases become those of a returned table."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"

_KEPT = ("number", "release", "dataset", "unit", "created_at", "manifest")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER releases_refuses_update")
        op.execute(
            f"CREATE TRIGGER releases_refuses_update BEFORE UPDATE ON releases WHEN {_rewritten('IS NOT')} "
            "BEGIN SELECT RAISE(ABORT, 'releases is append-only'); END"
        )
    else:
        op.execute("DROP TRIGGER releases_refuses_update ON releases")
        op.execute(
            "CREATE TRIGGER releases_refuses_update BEFORE UPDATE ON releases FOR EACH ROW "
            f"WHEN ({_rewritten('IS DISTINCT FROM')}) EXECUTE FUNCTION refuse_change()"
        )


def _rewritten(distinct: str) -> str:
    """What an update of a release must not do; the only way on from a commit is that its table is given back."""
    touched = " OR ".join(f"OLD.{column} {distinct} NEW.{column}" for column in _KEPT)
    return (
        f"{touched} OR NEW.state = 'intent' OR OLD.state = 'returned' "
        f"OR ((OLD.state = 'finalized') {distinct} (NEW.state = 'returned'))"
    )
