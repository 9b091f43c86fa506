"""Clocks that were set back, and days that are not 24 hours after each other."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backfill_assets.core.days import day_range
from backfill_assets.core.errors import LedgerError, RollbackError
from backfill_assets.core.release import AHEAD
from backfill_assets.core.unit import Hold, Launch, ReleaseMode, Unit, UnitState
from backfill_assets.doctor.findings import FindingSeverity
from backfill_assets.ledger.database import LockPace
from backfill_assets.ledger.open import open_ledger
from backfill_assets.release.publish import AlreadyReleased
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD, assert_one_command_finishes_it, published

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MINUTE, HOUR, DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.mark.parametrize("back", [MINUTE, HOUR, 40 * DAY], ids=str)
def test_a_clock_set_back_confuses_no_release(world: World, observed: Observed, unit: str, back: dt.timedelta) -> None:
    observed.injected(f"the clock set back by {back} before each of publish, rollback, publish, publish, rollback")
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
    said = [str(found) for found in world.doctor().examine()]
    assert all("in the future: that clock was ahead" in line for line in said)
    assert bool(said) == (back > AHEAD)
    # Once the clock is right again, no release of that time has a window that ended too early.
    world.clock.advance(5 * back + DAY)
    assert world.doctor().examine() == ()
    assert [swept.paths for swept in world.sweep().execute()] == [()]
    world.publisher().release(unit)
    assert world.content() == NEW
    observed.found(
        "each release found its own predecessor; the doctor names times in the future, and nothing once the clock is right"
    )


YEARS = dt.timedelta(days=3653)


def test_one_release_by_a_clock_that_was_ahead_dates_no_other(world: World, observed: Observed, unit: str) -> None:
    observed.injected("a clock ten years ahead during one release; before the next one it is set right")
    right = world.clock.now()
    world.clock.advance(YEARS)
    ahead = world.publisher().release(unit).release
    world.clock.advance(-YEARS)
    (said,) = world.doctor().examine()
    assert said.severity is FindingSeverity.warning
    assert str(said) == (
        f"warning: release {ahead} of sales by ada is dated 2036-03-01 12:00 UTC, in the future: that clock was "
        "ahead, or the one of this host is behind: no later release shows when it was made, so its rollback window does not "
        "end; set both right; the next release of any dataset is dated right and ends this"
    )
    # Only this is different: it can be undone, and is not swept while its window is unknown.
    world.clock.advance(60 * DAY)
    assert [swept.paths for swept in world.sweep().execute()] == [()]
    after = world.released({day(5): [1]})
    made = {r.manifest.release: r for r in world.ledger.releases()}
    assert [*made][:2] == [after, ahead]
    assert made[after].manifest.created_at == made[after].committed_at == right + 60 * DAY
    assert made[ahead].since == right + 60 * DAY
    assert [found.severity for found in world.doctor().examine()] == [FindingSeverity.info]
    # Its window counts from the next release, and ends.
    world.clock.advance(29 * DAY)
    assert world.rollback().plan(ahead).until == right + 90 * DAY
    world.clock.advance(9 * DAY)
    for path in world.homes["sales"].rglob("*"):
        os.utime(path, (0, 0))
    assert [swept.paths for swept in world.sweep().execute()] != [()]
    with pytest.raises(RollbackError, match="was restorable until 2026-05-30 12:00"):
        world.rollback().execute(ahead, "too late")
    assert {d: world.content()[d] for d in DAYS} == NEW
    observed.found(
        "the next release is dated right; the window of the first one ends as that of the next; the doctor names it"
    )


def test_a_release_by_a_clock_that_was_ahead_goes_back(world: World, observed: Observed, unit: str) -> None:
    observed.injected("a clock ten years ahead during one release, and set right before its rollback")
    world.clock.advance(YEARS)
    ahead = world.publisher().release(unit).release
    world.clock.advance(-YEARS)
    done = world.rollback().execute(ahead, "no")
    assert world.content() == OLD
    assert world.ledger.unit(unit).state is UnitState.rolled_back
    assert world.ledger.release(done.release).committed_at == world.clock.now()
    again = world.publisher().release(unit).release
    assert world.content() == NEW
    # The later of two publications of the unit counts, whatever their dates.
    assert world.publisher().release(unit).release == again
    world.rollback().execute(again, "no")
    assert world.content() == OLD
    assert [found.severity for found in world.doctor().examine()] == [FindingSeverity.info]
    observed.found("it goes back, and so does what is published after it")


def test_a_release_of_the_future_keeps_no_later_launch_from_its_work(
    world: World, observed: Observed, unit: str
) -> None:
    observed.injected("a clock ten years ahead during one release; the same days are launched once more after it")
    world.clock.advance(YEARS)
    world.publisher().release(unit)
    world.clock.advance(-YEARS)
    made_at = world.clock.now() + MINUTE
    world.clock.advance(2 * MINUTE)
    launch = Launch({"sales": frozenset(DAYS)}, "launch_later", since=made_at)
    proposal = Unit("u_later", "launch_later", world.clock.now(), "ada", {"sales": DAYS}, ReleaseMode.auto)
    assert world.ledger.assign(launch, proposal).id == "u_later"
    observed.found("it opens a unit of its own")


def test_the_lock_of_a_clock_that_was_ahead_blinds_no_doctor(world: World, observed: Observed, unit: str) -> None:
    observed.injected("whoever held a publish lock died by a clock ten years ahead; then readers lose a file")
    world.publisher().release(unit)
    world.clock.advance(YEARS)
    until = f"{world.clock.now() + MINUTE:%Y-%m-%d %H:%M:%S.%f}"
    with closing(sqlite3.connect(world.folder / "ledger.db")) as connection, connection:
        connection.execute("UPDATE locks SET until = ? WHERE name = 'publish:sales'", (until,))
    world.clock.advance(-YEARS)
    hold = Hold(("sales", DAYS[0]), "no", "ada", world.clock.now() + YEARS)
    world.ledger.hold([hold])
    attempt = world.open_unit({"sales": [day(7)]})
    world.clock.advance(YEARS)
    world.ledger.start_attempt(attempt.id, "sales", [day(7)], "run_1", dt.timedelta(minutes=1))
    world.clock.advance(-YEARS)
    said = "\n".join(str(found) for found in world.doctor().examine())
    for kind in (
        "1 locks lie in the future, first publish:sales",
        "1 attempts lie in the future",
        "1 holds lie in the future",
    ):
        assert kind in said
    (lost, *_) = world.tables["sales"].active([DAYS[1]])[DAYS[1]]
    (world.homes["sales"] / lost.path).unlink()
    assert "files that readers see are gone" in "\n".join(str(found) for found in world.doctor().examine())
    observed.found("lock, attempt and hold are named, and so is the file")


def test_a_clock_set_back_shortens_no_window(world: World, observed: Observed, unit: str) -> None:
    observed.injected("the clock set back by 10 days after a release with keep_for 30d, then 39 days gone by")
    release = world.publisher().release(unit).release
    world.clock.advance(-10 * DAY)
    world.clock.advance(39 * DAY)
    assert [swept.paths for swept in world.sweep().execute()] == [()]
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    world.rollback().execute(release, "no")
    assert world.content() == OLD
    assert world.doctor().examine() == ()
    observed.found("nothing was swept, and the release went back")


def test_a_dead_holder_of_a_lock_is_noticed_though_the_clock_was_set_back(
    world: World, observed: Observed, unit: str, tmp_path: Path
) -> None:
    pace = LockPace(lease=dt.timedelta(milliseconds=300), renew=HOUR, poll=dt.timedelta(milliseconds=5))
    clock = FixedClock()
    url = f"sqlite:///{tmp_path}/ledger.db"
    dead, alive = open_ledger(url, clock, lock_pace=pace), open_ledger(url, clock, lock_pace=pace)
    observed.injected("the clock set back by a day while the holder of a publish lock is dead")
    with dead.lock("publish:sales", dt.timedelta(0)) as died:
        clock.advance(-DAY)
        with pytest.raises(LedgerError, match="held by"), alive.lock("publish:sales", dt.timedelta(0)):
            pytest.fail("nobody knows yet that it is dead")
        with alive.lock("publish:sales", MINUTE) as token:
            assert token == died + 1
        finished = assert_one_command_finishes_it(world, "publish", unit)
    observed.found("the lock is taken over once nobody has renewed it for a whole lease of watching", *finished)
    dead.close()
    alive.close()


def test_a_living_holder_keeps_its_lock_though_the_clock_was_set_back(
    world: World, observed: Observed, unit: str, tmp_path: Path
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
    observed.injected("a host whose clock is a day behind waits for a lock that a living process holds")
    with (
        holder.lock("publish:sales", dt.timedelta(0)),
        pytest.raises(LedgerError, match="held by"),
        other.lock("publish:sales", 2 * pace.lease),
    ):
        pytest.fail("two holders")
    observed.found(
        "it is told who holds it, for as long as it waits", *assert_one_command_finishes_it(world, "publish", unit)
    )
    holder.close()
    other.close()


def test_the_newest_attempt_counts_though_the_clock_was_set_back(world: World, observed: Observed) -> None:
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [3] for d in DAYS})
    observed.injected("the clock set back by a day between two attempts of the same days")
    world.clock.advance(-DAY)
    world.build(unit, "sales", NEW)
    world.publisher().release(unit.id)
    assert world.content() == NEW
    world.clock.advance(DAY)
    assert world.doctor().examine() == ()
    observed.found("the later attempt is the one that is published")


CALENDARS = {
    "leap day": (dt.date(2024, 2, 27), dt.date(2024, 3, 2), 5),
    "no leap day in a century": (dt.date(2100, 2, 27), dt.date(2100, 3, 2), 4),
    "year end": (dt.date(2026, 12, 30), dt.date(2027, 1, 2), 4),
    "a day of 23 hours in New York": (dt.date(2026, 3, 7), dt.date(2026, 3, 9), 3),
    "a day of 25 hours in New York": (dt.date(2026, 10, 31), dt.date(2026, 11, 2), 3),
}


@pytest.mark.parametrize("what", CALENDARS)
def test_a_range_over_an_odd_day_is_released_and_goes_back_day_by_day(
    world: World, observed: Observed, what: str
) -> None:
    first, last, count = CALENDARS[what]
    days = day_range(first, last)
    assert len(days) == count
    observed.injected(f"a release of {first} to {last}, with a {what}" if what[0] != "a" else f"a release over {what}")
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
    observed.found(f"{count} days released, the odd one alone rolled back")
