"""A launch finds its days done if another launch has released them meanwhile and nothing has moved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.core.delivery import Delivery
from backfill_assets.core.release import AHEAD
from backfill_assets.core.unit import UnitState
from backfill_assets.orchestration.launches import BACKFILL_TAG
from backfill_assets.storage.disk import path_of
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.orchestration.house import BOTH, House, materialize

pytestmark = pytest.mark.slow

D1, D2 = day(1), day(2)
# Releases of these tests are made after their launches, by a clock that may still be right.
LATER = AHEAD - dt.timedelta(minutes=1)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    found = House(tmp_path, monkeypatch)
    found.world.clock.advance(SystemClock().now() + LATER - found.world.clock.now())
    yield found
    found.close()


@pytest.mark.faults
def test_a_launch_that_reaches_its_days_after_another_has_released_them_does_nothing(
    observed: Observed, house: House
) -> None:
    observed.injected("a launch whose days another has released since it was made")
    unit = house.released({D1: [1], D2: [2]})
    before = (house.world.ledger.releases(), house.world.ledger.attempts())
    assert materialize(house, "sales/shadow", "totals/shadow", "sales/published", "totals/published") == ""
    assert [u.id for u in house.world.ledger.units()] == [unit.id]
    assert (house.world.ledger.releases(), house.world.ledger.attempts()) == before
    assert house.world.ledger.unit(unit.id).state is UnitState.published
    observed.found(f"it ends well; {unit.id} is the only unit, and nothing was built or released again")


@pytest.mark.faults
def test_released_days_stay_current_until_a_delivery_a_file_or_another_release_moves_them(
    observed: Observed, house: House
) -> None:
    observed.injected("after a release of two days: a late delivery, a new file, another release")
    pipeline = house.application.pipeline
    unit = house.released({D1: [1], D2: [2]})
    assert all(pipeline.is_current(unit, name, (D1, D2)) for name in BOTH)

    house.world.ledger.add_deliveries(
        [Delivery("sales", D1, "late.csv", "f" * 64, 1, *[house.world.clock.now()] * 2, 1, 0)]
    )
    assert not pipeline.is_current(unit, "sales", (D1, D2))
    assert pipeline.is_current(unit, "sales", (D2,))

    source = path_of(house.application.settings.sources) / "x" / f"{D2}.csv"
    source.parent.mkdir()
    source.write_text("id,day,amount\n", encoding="utf-8")
    assert not pipeline.is_current(unit, "sales", (D2,))
    source.unlink()

    house.released({D2: [3]})
    assert not pipeline.is_current(unit, "sales", (D2,))
    assert not pipeline.is_current(unit, "totals", (D2,))
    assert pipeline.is_current(unit, "totals", (D1,))
    observed.found("each moves the day that it touches and no other")


def test_a_backfill_that_found_some_days_built_elsewhere_opens_no_unit_for_the_rest_once_something_moved(
    house: House,
) -> None:
    unit = house.released({D1: [1], D2: [2]})
    house.world.ledger.add_deliveries(
        [Delivery("sales", D1, "late.csv", "f" * 64, 1, *[house.world.clock.now()] * 2, 1, 0)]
    )
    refused = materialize(house, "sales/shadow", "totals/shadow", tags={BACKFILL_TAG: "twin"}, ended="twin")
    assert f"unit {unit.id} has released sales {D1}..{D2}" in refused
    assert "backfill twin was working" in refused
    assert "launch the same days again" in refused
    assert [u.id for u in house.world.ledger.units()] == [unit.id]
