"""What is launched again for an incomplete unit, and for days that an upstream has left behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.errors import EvidenceError, UnitError
from backfill_assets.core.unit import Hold
from backfill_assets.dataset.releasing import DatasetState
from backfill_assets.evidence.basis import PUBLISHED
from backfill_assets.evidence.relaunches import LeftOut, Refresh, Relaunch, Relaunches, UpstreamPlaces
from backfill_assets.evidence.stale import StaleCause, StaleDays
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.evidence.test_upstream import Shop

D1, D2, D3, D4 = (day(i) for i in range(1, 5))
NAMES = ("zones", "sales", "areas")


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[World]:
    """`areas` is built from `sales`, and that from `zones`: upstream first is not alphabetical order."""
    world = World(tmp_path, ("zones", "sales<zones", "areas<sales"))
    yield world
    world.close()


def _plans(world: World) -> Relaunches:
    return Relaunches(world.warehouse())


def test_a_unit_gets_missing_days_and_what_is_built_from_them(chain: World) -> None:
    unit = chain.open_unit(dict.fromkeys(NAMES, (D1, D2, D3)))
    plans = _plans(chain).of_unit(unit, {("sales", D2)})
    assert plans == (Relaunch(("sales", "areas"), (D2,)),)
    assert _plans(chain).of_unit(unit, {("areas", D3), ("zones", D1)}) == (Relaunch(NAMES, (D1, D3)),)


def test_a_unit_whose_downstream_looks_back_is_resumed_within_its_own_days(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lookback=2)
    unit = shop.unit(D1, D2, D3)
    amounts = {D1: [1], D2: [2], D3: [3]}
    shop.world.build(unit, "sales", {D1: [1], D3: [3]})
    shop.world.build(unit, "sales", {D2: [2]}, passed=False)
    shop.world.build(unit, "totals", {D1: [1]})
    missing = {(f.dataset, f.day) for f in shop.world.publisher().blockers(unit.id)}
    assert missing == {("sales", D2), ("totals", D2), ("totals", D3)}
    assert _plans(shop.world).of_unit(unit, missing) == (Relaunch(("sales", "totals"), (D2, D3)),)
    shop.world.build(unit, "sales", {D2: [2]})
    shop.world.build(unit, "totals", amounts)
    shop.world.publisher().release(unit.id)
    assert shop.staleness.all() == ()
    shop.world.close()


def test_a_day_that_looks_back_at_a_rebuilt_day_is_launched_with_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lookback=1)
    unit = shop.unit(D1, D2, D3)
    assert _plans(shop.world).of_unit(unit, {("sales", D1)}) == (Relaunch(("sales", "totals"), (D1, D2)),)
    assert _plans(shop.world).of_unit(unit, {("sales", D3)}) == (Relaunch(("sales", "totals"), (D3,)),)
    shop.world.close()


def test_days_that_a_dataset_of_the_unit_does_not_have_are_launched_without_it(chain: World) -> None:
    unit = chain.open_unit({"zones": (D1, D2), "sales": (D2, D3)})
    plans = _plans(chain).of_unit(unit, {("zones", D1), ("zones", D2), ("sales", D3)})
    assert plans == (Relaunch(("zones",), (D1,)), Relaunch(("zones", "sales"), (D2,)), Relaunch(("sales",), (D3,)))


def _says(world: World, name: str, **what: object) -> None:
    world.datasets[name] = world.datasets[name].model_copy(update=what)


def test_a_unit_whose_datasets_begin_on_different_days_is_one_launch(chain: World) -> None:
    _says(chain, "areas", start=D3)
    unit = chain.open_unit({"zones": (D1, D2, D3), "sales": (D1, D2, D3), "areas": (D3,)})
    missing = {(name, day) for name, days in unit.targets.items() for day in days}
    assert _plans(chain).of_unit(unit, missing) == (Relaunch(NAMES, (D1, D2, D3)),)
    _says(chain, "areas", start=D4)
    with pytest.raises(UnitError, match=f"holds areas {D3}, and its history begins on {D4} now; restore `start`"):
        _plans(chain).of_unit(unit, missing)


def left_behind(name: str, *days: dt.date) -> StaleDays:
    return StaleDays(name, dict.fromkeys(days, frozenset({StaleCause.upstream})))


def _published(world: World, name: str, *days: dt.date) -> None:
    world.released({date: [1] for date in days}, name)


def test_stale_days_take_the_published_days_downstream_along_and_no_others(chain: World) -> None:
    _published(chain, "sales", D1, D2, D3)
    plans = _plans(chain)
    behind = (left_behind("sales", *(D1, D2, D3)),)
    assert plans.of_stale(behind).launches == (Relaunch(("sales",), (D1, D2, D3)),)
    _published(chain, "areas", D1, D4)
    assert plans.of_stale(behind).launches == (
        Relaunch(("sales", "areas"), (D1,)),
        Relaunch(("sales",), (D2, D3)),
    )
    _says(chain, "areas", state=DatasetState.draft)
    assert _plans(chain).of_stale(behind).launches == (Relaunch(("sales",), (D1, D2, D3)),)
    both = (*behind, left_behind("areas", D4))
    assert _plans(chain).of_stale(both).launches == (Relaunch(("areas",), (D4,)), Relaunch(("sales",), (D1, D2, D3)))


def test_days_of_an_upstream_that_its_start_hides_are_not_left_out_in_silence(chain: World) -> None:
    _published(chain, "zones", D1, D2)
    places = UpstreamPlaces(chain.warehouse())
    assert [of.places for of in places.of(None, "sales", (D2,))] == [{PUBLISHED: (D2,)}]
    _says(chain, "zones", start=D4)
    for day_ in (D2, D3):
        with pytest.raises(EvidenceError, match=f"zones has published days from {D1} on, and its `start` is {D4}"):
            UpstreamPlaces(chain.warehouse()).of(None, "sales", (day_,))
    UpstreamPlaces(chain.warehouse()).of(None, "sales", (D4,))
    UpstreamPlaces(chain.warehouse()).of(None, "sales", (D1 - ONE_DAY,))


def test_each_stale_dataset_is_launched_over_its_own_days(chain: World) -> None:
    _published(chain, "sales", D1, D2)
    _published(chain, "areas", D3, D4)
    found = (left_behind("sales", *(D1,)), left_behind("areas", *(D4,)))
    assert _plans(chain).of_stale(found).launches == (Relaunch(("sales",), (D1,)), Relaunch(("areas",), (D4,)))


def test_days_on_hold_are_left_out_and_nothing_is_taken_along_past_them(chain: World) -> None:
    for name in NAMES:
        _published(chain, name, D1, D2)
    hold = Hold(("sales", D1), "wrong", "ada", chain.clock.now())
    chain.ledger.hold([hold, Hold(("sales", D4), "nobody asks for it", "ada", chain.clock.now())])
    out = LeftOut(hold.target, reason="wrong")
    found = _plans(chain).of_stale([left_behind("zones", *(D1, D2))])
    assert found == Refresh((Relaunch(("zones",), (D1,)), Relaunch(NAMES, (D2,))), (out,))
    found = _plans(chain).of_stale([left_behind("sales", *(D1,)), left_behind("areas", *(D1,))])
    assert found == Refresh((Relaunch(("areas",), (D1,)),), (out,))


def test_days_of_an_open_unit_are_left_out_even_on_hold_and_nothing_is_taken_along_past_them(chain: World) -> None:
    for name in NAMES:
        _published(chain, name, D1, D2)
    unit = chain.open_unit({"sales": (D1,)})
    chain.ledger.hold([Hold(("sales", D1), "wrong", "ada", chain.clock.now())])
    found = _plans(chain).of_stale([left_behind("zones", *(D1, D2))])
    out = LeftOut(("sales", D1), resume=unit.id, reason="wrong")
    assert found == Refresh((Relaunch(("zones",), (D1,)), Relaunch(NAMES, (D2,))), (out,))
