"""Real processes at the same moment: one migration, one unit, one holder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from backfill_assets.core.errors import ClaimedDaysError
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.ledgers import new_database
from backfill_assets_tests.unit.ledger.processes import together
from backfill_assets_tests.unit.ledger.samples import a_launch, a_unit, march

pytestmark = pytest.mark.slow

PROCESSES = 3
TURNS = 10

AT_THE_SAME_MOMENT = """
import datetime as dt, sys, time
from pathlib import Path
from backfill_assets.core.errors import ClaimedDaysError
from backfill_assets.ledger.database import LockPace
from backfill_assets.ledger.open import open_ledger
from backfill_assets_tests.unit.ledger.samples import a_launch, a_unit, march
from backfill_assets.system import SystemClock

url, folder, me, turns = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
(folder / f"ready-{me}").touch()
while not (folder / "go").exists():
    time.sleep(0.002)
ledger = open_ledger(url, SystemClock(), lock_pace=LockPace(poll=dt.timedelta(milliseconds=5)))
for day in range(1, turns + 1):
    days = march(day)
    unit = ledger.assign(a_launch(days, f"same_{day}"), a_unit(days, f"same_{day}", id=f"u_{day}_{me}"))
    print("same", unit.id)
for first in range(turns + 1, 30, 3):
    days, by = march(first + me % 2, first + 1 + me % 2), f"overlap_{first}_{me}"
    try:
        print("overlap", ledger.assign(a_launch(days, by), a_unit(days, by)).id)
    except ClaimedDaysError:
        print("refused", by)
for _ in range(turns):
    with ledger.lock("table", dt.timedelta(seconds=60)) as token:
        before = int((folder / "count").read_text())
        time.sleep(0.001)
        (folder / "count").write_text(str(before + 1))
        print("token", token)
"""


@dataclass(frozen=True)
class Race:
    """What is left in the ledger, and the output of each process, by kind."""

    ledger: Ledger
    counted: int
    printed: tuple[tuple[tuple[str, ...], ...], ...]

    def said(self, kind: str) -> list[list[str]]:
        return [[line[1] for line in lines if line[0] == kind] for lines in self.printed]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def race(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    folder = tmp_path_factory.mktemp("race")
    url = f"sqlite:///{folder}/state/ledger.db"
    if request.param == "postgres":
        url = new_database(str(request.getfixturevalue("postgres_cluster")), "race")
    (folder / "count").write_text("0")
    said = together(AT_THE_SAME_MOMENT, url, folder, PROCESSES, TURNS)
    printed = tuple(tuple(tuple(line.split()) for line in lines) for lines in said)
    ledger = open_ledger(url, SystemClock())
    yield Race(ledger, int((folder / "count").read_text()), printed)
    ledger.close()


def test_a_fresh_ledger_is_migrated_once_and_each_launch_opens_one_unit(race: Race) -> None:
    first, *others = race.said("same")
    assert len(set(first)) == TURNS
    assert all(other == first for other in others)
    assert {u.id for u in race.ledger.units() if u.opened_by.startswith("same")} == set(first)


def test_one_of_overlapping_launches_opens_and_the_others_join_or_are_refused(race: Race) -> None:
    units = [u for u in race.ledger.units() if u.opened_by.startswith("overlap")]
    days = [day for unit in units for _, day in unit.days]
    assert len(units) == 7
    assert len(days) == len(set(days)) == 14
    claims = race.ledger.claims("flights", march(TURNS + 1, 31))
    assert claims == {day: unit.id for unit in units for _, day in unit.days}
    # Two of the three ask for the same days, the third for days shifted by one: one or two of each three are refused.
    assert 7 <= sum(len(refused) for refused in race.said("refused")) <= 14


def test_a_lock_has_one_holder_at_a_time_and_every_token_once(race: Race) -> None:
    tokens = [int(token) for said in race.said("token") for token in said]
    assert race.counted == TURNS * PROCESSES
    assert sorted(tokens) == list(range(1, TURNS * PROCESSES + 1))


def test_threads_share_one_ledger(ledger: Ledger) -> None:
    def launch(number: int) -> str:
        by = f"b_{number % 4}"
        days = march(1 + number % 4)
        try:
            return ledger.assign(a_launch(days, by), a_unit(days, by, id=f"u_{number}")).id
        except ClaimedDaysError:
            return "claimed"

    with ThreadPoolExecutor(8) as pool:
        units = list(pool.map(launch, range(40)))
    assert "claimed" not in units
    assert {unit.id for unit in ledger.units()} == set(units)
    assert len(set(units)) == 4
