from __future__ import annotations

import pytest

from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.conftest import two, world
from backfill_assets_tests.unit.faults.kit import ready

__all__ = ["two", "world"]


@pytest.fixture
def unit(world: World) -> str:
    """A unit that is ready to replace OLD by NEW."""
    return ready(world)
