"""Shared by the cases of units of two tables: half of one is committed, and what readers must see in the end."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from backfill_assets.core.errors import BackfillError
from backfill_assets.core.release import Manifest
from backfill_assets.core.unit import UnitState
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.publish import Released
from backfill_assets_tests.harness.between import Died, dies_at
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD

BOTH = ("orders", "sales")
LATER = max(DAYS) + dt.timedelta(days=7)


def ready_unit(two: World) -> str:
    """Readers see OLD in both tables, and a unit is ready to replace both by NEW."""
    for name in BOTH:
        two.released(OLD, name)
    unit = two.open_unit(dict.fromkeys(BOTH, DAYS))
    for name in BOTH:
        two.build(unit, name, NEW)
    return unit.id


def half_of_it(two: World, unit: str) -> None:
    """The publication of the unit dies between its commits, and its leases are over."""
    with pytest.raises(Died):
        two.publisher(dies_at("commit")).release(unit)
    two.clock.advance(dt.timedelta(minutes=5))


def contents(two: World) -> tuple[object, ...]:
    return tuple(two.content(name) for name in BOTH)


def assert_it_can_be_published_again(two: World, unit: str) -> None:
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.open
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    assert isinstance(two.publisher().release(unit), Released)
    assert contents(two) == (NEW, NEW)
    assert two.doctor().examine() == ()


def refused_commit(two: World, unit: str) -> Manifest:
    """Publish the unit: the commit of sales fails, and what was committed of orders is taken back."""

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(two.tables["sales"], name)

        def commit(self, *_: object) -> int:
            raise BackfillError("timed out")

    tables: dict[str, PublishedTable] = {**two.tables, "sales": Refusing()}  # type: ignore[dict-item]
    with pytest.raises(BackfillError, match="timed out"):
        replace(two.publisher(), warehouse=replace(two.warehouse(), tables=tables)).release(unit)
    assert all(two.content(name) == OLD for name in two.tables)
    return next(r.manifest for r in two.ledger.releases("sales", unit))
