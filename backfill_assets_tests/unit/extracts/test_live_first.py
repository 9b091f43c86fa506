"""Extracts that meet at one source: live runs go first, in whatever other extracts wait, and a dead one holds up nobody."""

from __future__ import annotations

import datetime as dt
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from backfill_assets.extracts.take import Extracts
from backfill_assets.ledger.open import open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.unit.extracts.kit import D1, D2, D3, orders

pytestmark = pytest.mark.slow

SCRIPT = """
import pathlib, time

def extract(day):
    place = pathlib.Path({place!r})
    with (place / "begun").open("a") as begun:
        print(day, file=begun)
    while not (place / "open").exists():
        time.sleep(0.02)
    return []
"""
PLACE = "extract:orders:0"
LIVE = "extract:orders:live:0"


@dataclass
class Gate:
    """A source that lets extracts begin, and lets none end before it is opened; its clock stands still."""

    root: Path
    clock: FixedClock = field(default_factory=FixedClock)

    def declare(self, **limits: object) -> None:
        """Declare the dataset with these limits."""
        application = orders(self.root, {"file": "extract.py", **limits}, SCRIPT.format(place=str(self.root)))
        self.ledger = open_ledger(application.settings.ledger_url, self.clock)
        self.extracts = Extracts(replace(application.warehouse, clock=self.clock, ledger=self.ledger))

    def takes(self, *days: dt.date, live: bool = False) -> threading.Thread:
        """Begin to take these days, as a run of its own does."""
        run = threading.Thread(target=self.extracts.take, args=("orders", days), kwargs={"live": live}, daemon=True)
        run.start()
        return run

    def open(self) -> None:
        """Let all extracts end."""
        (self.root / "open").touch()

    @property
    def begun(self) -> Sequence[dt.date]:
        """The days whose extract has begun, in order."""
        found = self.root / "begun"
        return [dt.date.fromisoformat(line) for line in found.read_text().split()] if found.exists() else []

    def holders(self, lock: str) -> int:
        """How many have held a lock until now."""
        return sum(self._stored(f"SELECT token FROM locks WHERE name = '{lock}'"))

    @property
    def turns(self) -> int:
        """How many names have a turn in the ledger."""
        return sum(self._stored("SELECT count(*) FROM meta WHERE key LIKE 'turn %'"))

    def _stored(self, query: str) -> Sequence[int]:
        with closing(sqlite3.connect(self.root / "ledger.db")) as connection:
            return [row[0] for row in connection.execute(query)]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.open()


def ended(*runs: threading.Thread) -> None:
    for run in runs:
        run.join(60 * PATIENCE)
        assert not run.is_alive()


def test_a_live_run_that_waits_comes_before_the_next_day_of_a_backfill(gate: Gate) -> None:
    gate.declare()
    backfill = gate.takes(D1, D2)
    wait_for(lambda: gate.begun == [D1], "the backfill to begin")
    live = gate.takes(D3, live=True)
    wait_for(lambda: gate.holders(LIVE), "the live run to wait")
    gate.open()
    ended(live, backfill)
    assert gate.begun == [D1, D3, D2]


def test_live_runs_do_not_wait_for_each_other_while_there_are_places(gate: Gate) -> None:
    gate.declare(max_parallel=2)
    both = [gate.takes(day, live=True) for day in (D1, D2)]
    wait_for(lambda: set(gate.begun) == {D1, D2}, "both to begin")
    gate.open()
    ended(*both)


def test_a_backfill_that_waits_for_its_turn_leaves_its_place_to_a_live_run(gate: Gate) -> None:
    gate.declare(rate_limit="2/min")
    gate.open()
    ended(gate.takes(D1))
    backfill = gate.takes(D2)
    wait_for(lambda: gate.holders(PLACE) == 2, "the backfill to enter")
    live = gate.takes(D3, live=True)
    wait_for(lambda: gate.holders(PLACE) == 3, "the live run to enter")
    gate.clock.advance(dt.timedelta(seconds=30))
    ended(live)
    gate.clock.advance(dt.timedelta(seconds=30))
    ended(backfill)
    assert gate.begun == [D1, D3, D2]


def test_a_live_run_that_was_killed_holds_up_nobody_once_its_lease_is_over(gate: Gate) -> None:
    gate.declare()
    gate.open()
    # The clock of the dead does not go on.
    dead = open_ledger(f"sqlite:///{gate.root / 'ledger.db'}", FixedClock())
    with dead.lock(LIVE, dt.timedelta(0)):
        backfill = gate.takes(D1)
        asked = gate.clock.asked
        wait_for(lambda: gate.clock.asked > asked + 3, "the backfill to look some times")
        assert gate.holders(PLACE) == 0
        gate.clock.advance(dt.timedelta(seconds=60))
        ended(backfill)
    assert gate.begun == [D1]


def test_only_a_rate_limit_leaves_turns_in_the_ledger(gate: Gate) -> None:
    gate.declare()
    gate.open()
    ended(gate.takes(D1))
    assert gate.turns == 0
    gate.declare(rate_limit="5/s")
    ended(gate.takes(D1))
    assert gate.turns == 1
