"""Clocks that were set back, and days that are not 24 hours after each other."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backfill_assets.campaigns.releasing.publish import AlreadyReleased
from backfill_assets.domain.days import day_range
from backfill_assets.domain.errors import LedgerError
from backfill_assets.domain.units import UnitState
from backfill_assets.ledger import LockPace, open_ledger
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.told import Told
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD, assert_one_command_goes_on, published

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MINUTE, HOUR, DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.mark.parametrize("back", [MINUTE, HOUR, 40 * DAY], ids=str)
def test_a_clock_set_back_confuses_no_release(world: World, told: Told, unit: str, back: dt.timedelta) -> None:
    told.injected(f"the clock set back by {back} before each of publish, rollback, publish, publish, rollback")
    world.clock.advance(-back)
    first = world.publisher().release(unit).release
    world.clock.advance(-back)
    world.rollback().execute(first, "no")
    assert world.content() == OLD
    world.clock.advance(-back)
    second = world.publisher().release(unit).release
    assert world.content() == NEW
    world.clock.advance(-back)
    again = world.publisher().release(unit)
    assert isinstance(again, AlreadyReleased)
    assert again.release == second
    world.clock.advance(-back)
    world.rollback().execute(second, "no")
    assert world.content() == OLD
    assert world.ledger.unit(unit).state is UnitState.rolled_back
    assert world.reconcile().run() == ()
    assert world.doctor().examine() == ()
    told.found("each release found its own predecessor; the doctor: nothing")


def test_a_clock_set_back_shortens_no_window(world: World, told: Told, unit: str) -> None:
    told.injected("the clock set back by 10 days after a release with keep_for 30d, then 39 days gone by")
    release = world.publisher().release(unit).release
    world.clock.advance(-10 * DAY)
    world.clock.advance(39 * DAY)
    assert [swept.paths for swept in world.sweep().execute()] == [()]
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    world.rollback().execute(release, "no")
    assert world.content() == OLD
    assert world.doctor().examine() == ()
    told.found("nothing was swept, and the release went back")


def test_a_dead_holder_of_a_lock_is_noticed_though_the_clock_was_set_back(
    world: World, told: Told, unit: str, tmp_path: Path
) -> None:
    pace = LockPace(lease=dt.timedelta(milliseconds=300), renew=HOUR, poll=dt.timedelta(milliseconds=5))
    clock = FixedClock()
    url = f"sqlite:///{tmp_path}/ledger.db"
    dead, alive = open_ledger(url, clock, lock_pace=pace), open_ledger(url, clock, lock_pace=pace)
    told.injected("the clock set back by a day while the holder of a publish lock is dead")
    with dead.lock("publish:sales", dt.timedelta(0)) as died:
        clock.advance(-DAY)
        with pytest.raises(LedgerError, match="held by"), alive.lock("publish:sales", dt.timedelta(0)):
            pytest.fail("nobody knows yet that it is dead")
        with alive.lock("publish:sales", MINUTE) as token:
            assert token == died + 1
        goes_on = assert_one_command_goes_on(world, "publish", unit)
    told.found("the lock is taken over once nobody has renewed it for a whole lease of watching", *goes_on)
    dead.close()
    alive.close()


def test_a_living_holder_keeps_its_lock_though_the_clock_was_set_back(
    world: World, told: Told, unit: str, tmp_path: Path
) -> None:
    pace = LockPace(
        lease=dt.timedelta(seconds=2), renew=dt.timedelta(milliseconds=50), poll=dt.timedelta(milliseconds=5)
    )
    url = f"sqlite:///{tmp_path}/ledger.db"

    class Back:
        """The system's clock, a day ago."""

        def now(self) -> dt.datetime:
            return SystemClock().now() - DAY

    holder, other = open_ledger(url, SystemClock(), lock_pace=pace), open_ledger(url, Back(), lock_pace=pace)
    told.injected("a host whose clock is a day behind waits for a lock that a living process holds")
    with (
        holder.lock("publish:sales", dt.timedelta(0)),
        pytest.raises(LedgerError, match="held by"),
        other.lock("publish:sales", 2 * pace.lease),
    ):
        pytest.fail("two holders")
    told.found("it is told who holds it, for as long as it waits", *assert_one_command_goes_on(world, "publish", unit))
    holder.close()
    other.close()


def test_the_newest_attempt_counts_though_the_clock_was_set_back(world: World, told: Told) -> None:
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [3] for d in DAYS})
    told.injected("the clock set back by a day between two attempts of the same days")
    world.clock.advance(-DAY)
    world.build(unit, "sales", NEW)
    world.publisher().release(unit.id)
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    told.found("the later attempt is the one that is published")


CALENDARS = {
    "leap day": (dt.date(2024, 2, 27), dt.date(2024, 3, 2), 5),
    "no leap day in a century": (dt.date(2100, 2, 27), dt.date(2100, 3, 2), 4),
    "year end": (dt.date(2026, 12, 30), dt.date(2027, 1, 2), 4),
    "a day of 23 hours in New York": (dt.date(2026, 3, 7), dt.date(2026, 3, 9), 3),
    "a day of 25 hours in New York": (dt.date(2026, 10, 31), dt.date(2026, 11, 2), 3),
}


@pytest.mark.parametrize("what", CALENDARS)
def test_a_range_over_an_odd_day_is_released_and_goes_back_day_by_day(world: World, told: Told, what: str) -> None:
    first, last, count = CALENDARS[what]
    days = day_range(first, last)
    assert len(days) == count
    told.injected(f"a release of {first} to {last}, with a {what}" if what[0] != "a" else f"a release over {what}")
    # Midnight of the odd day in New York, which is another date in UTC for some hours.
    midnight = dt.datetime.combine(days[1], dt.time(), ZoneInfo("America/New_York"))
    world.clock.advance(midnight.astimezone(dt.UTC) - world.clock.now())
    world.released({d: [1] for d in days})
    unit = world.open_unit({"sales": days})
    world.build(unit, "sales", {d: [2] for d in days})
    world.publisher().release(unit.id)
    assert world.content() == {d: [2] for d in days}
    world.rollback().execute(published(world, unit.id), "no", days=frozenset(days[1:2]))
    assert world.content() == {d: [1] if d == days[1] else [2] for d in days}
    assert world.doctor().examine() == ()
    told.found(f"{count} days released, the odd one alone rolled back")
