"""Who may write a table through Spark: sessions of one driver together, drivers one after the other."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.unit import LOCK_WAIT
from backfill_assets.ledger.database import Database, LockPace, parsed_url
from backfill_assets.ledger.leases import DRIVER_WAIT
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets.ledger.schema import drivers
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.unit.ledger.samples import LEASE, SECOND

AT_ONCE = dt.timedelta(0)
LONG = dt.timedelta(seconds=60)
EAGER = LockPace(LEASE, renew=dt.timedelta(milliseconds=20), poll=dt.timedelta(milliseconds=5))
PLACE = "raw/sales"

DIES_WRITING = """
import datetime as dt, os, sys
from backfill_assets.ledger.open import open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.samples import NOON
with open_ledger(sys.argv[1], FixedClock(NOON)).driver("raw/sales", "local-1", dt.timedelta(0)):
    print(os.getpid(), flush=True)
    os._exit(9)
"""


@pytest.fixture
def other(url: str, ledger: Ledger, clock: FixedClock) -> Iterator[Ledger]:
    other = open_ledger(url, clock, lock_pace=EAGER)
    yield other
    other.close()


def rows(url: str) -> list[tuple[str, bool]]:
    """The drivers that write or wait, in order of arrival, with whether they write."""
    with Database(parsed_url(url)).read() as connection:
        return [(row.driver, row.holds) for row in connection.execute(select(drivers).order_by(drivers.c.number))]


class Waiting(threading.Thread):
    """A session that waits for its turn, and writes until it is told to end."""

    def __init__(self, turn: AbstractContextManager[int], name: str, log: list[str]) -> None:
        super().__init__(daemon=True)
        self._turn, self._called, self._log, self.ended = turn, name, log, threading.Event()

    def run(self) -> None:
        with self._turn:
            self._log.append(self._called)
            self.ended.wait(60)


def test_sessions_of_one_driver_write_at_the_same_time(url: str, ledger: Ledger, other: Ledger) -> None:
    with ledger.driver(PLACE, "local-1", AT_ONCE), other.driver(PLACE, "local-1", AT_ONCE):
        assert rows(url) == [("local-1", True), ("local-1", True)]
    assert rows(url) == []


def test_another_driver_is_refused_with_the_name_of_the_one_that_writes_and_leaves_nothing(
    url: str, ledger: Ledger, other: Ledger
) -> None:
    with (
        ledger.driver(PLACE, "local-1", AT_ONCE),
        pytest.raises(LedgerError, match=rf"'raw/sales': held by local-1 for .+:{os.getpid()}"),
        other.driver(PLACE, "app-2", AT_ONCE),
    ):
        pytest.fail("two drivers write")
    assert rows(url) == []
    with other.driver(PLACE, "app-2", AT_ONCE):
        pass


def test_two_drivers_write_two_tables(url: str, ledger: Ledger, other: Ledger) -> None:
    with ledger.driver(PLACE, "local-1", AT_ONCE), other.driver("staging/sales", "app-2", AT_ONCE):
        pass


def test_a_driver_that_waits_is_not_overtaken_by_new_sessions_of_the_one_that_writes(
    url: str, ledger: Ledger, other: Ledger
) -> None:
    log: list[str] = []
    with ExitStack() as first:
        first.enter_context(ledger.driver(PLACE, "local-1", AT_ONCE))
        second = Waiting(other.driver(PLACE, "app-2", LONG), "app-2", log)
        second.start()
        wait_for(lambda: rows(url) == [("local-1", True), ("app-2", False)], "the second driver to wait", every=0.01)
        third = Waiting(other.driver(PLACE, "local-1", LONG), "local-1", log)
        third.start()
        wait_for(lambda: len(rows(url)) == 3, "a new session of the first to wait", every=0.01)
        assert log == []
        first.close()
        wait_for(lambda: log == ["app-2"], "the second driver to write", every=0.01)
        assert rows(url) == [("app-2", True), ("local-1", False)]
        second.ended.set()
        wait_for(lambda: log == ["app-2", "local-1"], "the new session to write", every=0.01)
        third.ended.set()
        second.join(60)
        third.join(60)
    assert rows(url) == []


def test_a_dead_session_gives_way_when_its_lease_is_over_and_its_own_driver_does_not_wait_for_it(
    url: str, ledger: Ledger, clock: FixedClock
) -> None:
    dead = subprocess.run([sys.executable, "-c", DIES_WRITING, url], capture_output=True, text=True, check=False)
    assert dead.returncode == 9, dead.stderr
    with ledger.driver(PLACE, "local-1", AT_ONCE):
        pass
    clock.advance(59 * SECOND)
    with pytest.raises(LedgerError, match=f":{dead.stdout.strip()},"), ledger.driver(PLACE, "app-2", AT_ONCE):
        pytest.fail("the lease was not over")
    clock.advance(SECOND)
    with ledger.driver(PLACE, "app-2", AT_ONCE):
        assert rows(url) == [("app-2", True)]


def test_a_driver_that_waits_and_dies_holds_nobody_up(url: str, ledger: Ledger, clock: FixedClock) -> None:
    writes = ledger.driver(PLACE, "local-1", AT_ONCE)
    with ExitStack() as first:
        first.enter_context(writes)
        code = DIES_WRITING.replace("local-1", "app-2").replace("dt.timedelta(0)", "dt.timedelta(seconds=60)")
        waiting = subprocess.Popen([sys.executable, "-c", code, url])
        wait_for(lambda: rows(url)[1:] == [("app-2", False)], "the second driver to wait", every=0.01)
        waiting.kill()
        waiting.wait()
    clock.advance(61 * SECOND)
    with ledger.driver(PLACE, "app-3", AT_ONCE):
        assert rows(url) == [("app-3", True)]


def test_a_session_that_fails_keeps_others_out_as_long_as_its_driver_may_still_write(
    url: str, ledger: Ledger, other: Ledger, clock: FixedClock
) -> None:
    def fails(*, over: bool) -> None:
        with ledger.driver(PLACE, "local-1", AT_ONCE, lambda error: over and "no room" in str(error)):
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fails(over=True)
    assert rows(url) == []
    with pytest.raises(OSError, match="no room"):
        fails(over=False)
    assert rows(url) == [("local-1", True)]
    with pytest.raises(LedgerError, match="held by local-1"), other.driver(PLACE, "app-2", AT_ONCE):
        pytest.fail("two drivers write")

    def never_says(_: BaseException) -> bool:
        raise KeyboardInterrupt

    clock.advance(LONG)
    with pytest.raises(KeyboardInterrupt), ledger.driver(PLACE, "local-1", AT_ONCE, never_says):
        raise OSError("no room")
    assert rows(url)[-1] == ("local-1", True)
    with pytest.raises(LedgerError, match="held by local-1"), other.driver(PLACE, "app-2", AT_ONCE):
        pytest.fail("two drivers write")
    clock.advance(LONG)
    with other.driver(PLACE, "app-2", AT_ONCE):
        assert rows(url) == [("app-2", True)]


def test_a_session_that_lives_keeps_its_turn_beyond_the_first_lease(
    ledger: Ledger, other: Ledger, clock: FixedClock
) -> None:
    with other.driver(PLACE, "local-1", AT_ONCE):
        for _ in range(3):
            clock.advance(40 * SECOND)
            asked = clock.asked
            wait_for(lambda asked=asked: clock.asked >= asked + 2, "the lease to be renewed", every=0.01)  # type: ignore[misc]
            with pytest.raises(LedgerError), ledger.driver(PLACE, "app-2", AT_ONCE):
                pytest.fail("the lease was not renewed")


def test_a_driver_after_a_dead_one_waits_longer_than_a_lease() -> None:
    assert DRIVER_WAIT > LOCK_WAIT


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["local-1", "app-2", "app-3"])), max_size=14))
def test_never_do_two_drivers_write_one_table(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    """Each step begins or ends one of five writers; each that may not write is refused immediately."""
    clock = FixedClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    ledger = open_ledger(url, clock)
    held: dict[int, tuple[str, ExitStack]] = {}
    for writer, driver in steps:
        if writer in held:
            held.pop(writer)[1].close()
            continue
        stack, others = ExitStack(), {one for one, _ in held.values()} - {driver}
        try:
            stack.enter_context(ledger.driver(PLACE, driver, AT_ONCE))
        except LedgerError:
            assert others
        else:
            assert not others
            held[writer] = (driver, stack)
    for _, stack in held.values():
        stack.close()
    assert rows(url) == []
    ledger.close()


def test_a_ledger_keeps_the_id_that_it_got_when_it_was_created(url: str, ledger: Ledger, other: Ledger) -> None:
    assert len(ledger.id) == 16
    assert other.id == ledger.id
    again = open_ledger(url, FixedClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)))
    assert again.id == ledger.id
    again.close()


def test_two_ledgers_have_two_ids(tmp_path: Path, clock: FixedClock) -> None:
    both = [open_ledger(f"sqlite:///{tmp_path / name}", clock) for name in ("one.db", "two.db")]
    assert both[0].id != both[1].id
    for one in both:
        one.close()
