"""Locks: leases that are kept fresh while held, and taken over when their holder is dead."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.unit import LOCK_WAIT
from backfill_assets.ledger.database import DEFAULT_PACE, LockPace
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.unit.ledger.samples import LEASE, SECOND

AT_ONCE = dt.timedelta(0)
LONG = dt.timedelta(seconds=60)
EAGER = LockPace(LEASE, renew=dt.timedelta(milliseconds=20), poll=dt.timedelta(milliseconds=20))


def until_renewed(clock: FixedClock) -> None:
    # The keeper asks for the time once per renewal: when it asks a second time, one is complete.
    asked = clock.asked
    wait_for(lambda: clock.asked >= asked + 2, "the lease to be renewed", every=0.01)


DIES_HOLDING = """
import datetime as dt, os, sys
from backfill_assets.ledger.open import open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.samples import NOON
with open_ledger(sys.argv[1], FixedClock(NOON)).lock("table", dt.timedelta(0)):
    print(os.getpid(), flush=True)
    os._exit(9)
"""


@pytest.fixture
def other(url: str, ledger: Ledger, clock: FixedClock) -> Iterator[Ledger]:
    other = open_ledger(url, clock, lock_pace=EAGER)
    yield other
    other.close()


def test_a_process_that_waits_for_a_lock_gets_it_after_the_holder_was_killed() -> None:
    assert DEFAULT_PACE.lease + DEFAULT_PACE.renew < LOCK_WAIT


def test_a_held_lock_is_refused_with_the_name_of_its_holder(ledger: Ledger, other: Ledger) -> None:
    with (
        ledger.lock("table", AT_ONCE),
        pytest.raises(LedgerError, match=rf"'table': held by .+:{os.getpid()}"),
        other.lock("table", AT_ONCE),
    ):
        pytest.fail("two holders")
    with other.lock("table", AT_ONCE):
        pass


def test_locks_are_listed_as_long_as_they_are_held(ledger: Ledger, other: Ledger) -> None:
    assert ledger.locks() == ()
    with ledger.lock("b", AT_ONCE), ledger.lock("a", AT_ONCE):
        assert [lock.name for lock in other.locks()] == ["a", "b"]
        assert {str(os.getpid()) in lock.holder for lock in other.locks()} == {True}
    assert other.locks() == ()


def test_locks_of_different_names_do_not_meet(ledger: Ledger, other: Ledger) -> None:
    with ledger.lock("one", AT_ONCE), other.lock("two", AT_ONCE):
        pass


def test_tokens_of_a_name_only_grow(ledger: Ledger, other: Ledger) -> None:
    tokens = []
    for holder in (ledger, other, ledger):
        with holder.lock("table", AT_ONCE) as token:
            tokens.append(token)
    with ledger.lock("elsewhere", AT_ONCE) as first:
        assert first == 1
    assert tokens == [1, 2, 3]


def test_the_lock_is_released_when_its_body_fails(ledger: Ledger, other: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.lock("table", AT_ONCE):
        raise ZeroDivisionError
    with other.lock("table", AT_ONCE) as token:
        assert token == 2


def test_a_waiting_holder_gets_the_lock_when_it_is_released(ledger: Ledger, other: Ledger) -> None:
    with ExitStack() as first:
        first.enter_context(ledger.lock("table", AT_ONCE))
        got = []

        def wait_for_it() -> None:
            with other.lock("table", LONG) as token:
                got.append(token)

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        waiting.join(0.2)
        assert got == []
        first.close()
        waiting.join(60)
    assert got == [2]


def test_the_lease_of_a_dead_process_is_taken_over_when_it_is_over(url: str, ledger: Ledger, clock: FixedClock) -> None:
    dead = subprocess.run([sys.executable, "-c", DIES_HOLDING, url], capture_output=True, text=True, check=False)
    assert dead.returncode == 9, dead.stderr
    clock.advance(59 * SECOND)
    with pytest.raises(LedgerError, match=f":{dead.stdout.strip()},"), ledger.lock("table", AT_ONCE):
        pytest.fail("the lease was not over")
    clock.advance(SECOND)
    with ledger.lock("table", AT_ONCE) as token:
        assert token == 2


def test_a_holder_that_lives_keeps_its_lock_beyond_the_first_lease(
    ledger: Ledger, other: Ledger, clock: FixedClock
) -> None:
    with other.lock("table", AT_ONCE):
        for _ in range(4):
            clock.advance(40 * SECOND)
            until_renewed(clock)
            with pytest.raises(LedgerError), ledger.lock("table", AT_ONCE):
                pytest.fail("the lease was not renewed")


def test_a_holder_that_lost_its_lock_does_not_release_it_for_the_new_one(
    url: str, ledger: Ledger, other: Ledger, clock: FixedClock
) -> None:
    with ExitStack() as late, ExitStack() as slow:
        slow.enter_context(ledger.lock("table", AT_ONCE))
        clock.advance(61 * SECOND)
        assert late.enter_context(other.lock("table", AT_ONCE)) == 2
        slow.close()
        third = open_ledger(url, clock)
        with pytest.raises(LedgerError), third.lock("table", AT_ONCE):
            pytest.fail("released by a holder that no longer had it")
        third.close()


def test_nothing_waits_for_a_transaction_while_a_lock_is_held(ledger: Ledger, other: Ledger) -> None:
    with ledger.lock("table", AT_ONCE):
        other.hold([])
        assert other.units() == ()


def test_turns_of_a_name_are_an_interval_apart_whoever_takes_them(
    ledger: Ledger, other: Ledger, clock: FixedClock
) -> None:
    interval, half = 2 * SECOND, SECOND
    assert ledger.turn("shop", interval) == AT_ONCE
    assert other.turn("shop", interval) == interval
    assert other.turn("another" * 20, interval) == AT_ONCE
    clock.advance(half)
    assert ledger.turn("shop", interval) == half
    clock.advance(half)
    assert other.turn("shop", interval) == AT_ONCE
    assert ledger.turn("shop", interval) == interval
    assert ledger.turn("shop", AT_ONCE) == AT_ONCE


def test_a_clock_that_is_set_back_keeps_no_turn_waiting_longer_than_the_interval(
    ledger: Ledger, clock: FixedClock
) -> None:
    assert ledger.turn("shop", SECOND) == AT_ONCE
    clock.advance(-LONG)
    assert ledger.turn("shop", SECOND) == AT_ONCE
    assert ledger.turn("shop", SECOND) == SECOND
