"""Real processes at the same moment: one unit, one holder, one migration."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backfill_assets.domain.errors import ClaimedDaysError
from backfill_assets.domain.units import UnitState
from backfill_assets.ledger import SqlLedger, open_ledger
from backfill_assets_tests.unit.ledger.samples import WallClock, a_launch, a_unit, march

PROCESSES = 3

AT_THE_SAME_MOMENT = """
import datetime as dt, sys, time
from pathlib import Path
from backfill_assets.domain.errors import ClaimedDaysError
from backfill_assets.ledger import LockPace, open_ledger
from backfill_assets_tests.unit.ledger.samples import WallClock, a_launch, a_unit, march

url, folder, me, role = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
(folder / f"ready-{me}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
ledger = open_ledger(url, WallClock(), lock_pace=LockPace(poll=dt.timedelta(milliseconds=5)))
if role == "same":
    for i in range(10):
        days = march(i + 1)
        print(ledger.assign(a_launch(days, f"b_{i}"), a_unit(days, f"b_{i}", id=f"u_{i}_{me}")).id)
if role == "overlap":
    for i in range(0, 30, 3):
        days, by = march(i + 1 + me % 2, i + 2 + me % 2), f"b_{i}_{me}"
        try:
            print(ledger.assign(a_launch(days, by), a_unit(days, by)).id)
        except ClaimedDaysError:
            print("claimed")
if role == "lock":
    for _ in range(10):
        with ledger.lock("table", dt.timedelta(seconds=60)) as token:
            before = int((folder / "count").read_text())
            time.sleep(0.001)
            (folder / "count").write_text(str(before + 1))
            print(token)
"""


def together(url: str, folder: Path, role: str) -> list[list[str]]:
    """Let several processes do the same at once; what each printed, line by line."""
    command = [sys.executable, "-c", AT_THE_SAME_MOMENT, url, str(folder)]
    processes = [
        subprocess.Popen([*command, str(me), role], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for me in range(PROCESSES)
    ]
    while len(list(folder.glob("ready-*"))) < PROCESSES and all(p.poll() is None for p in processes):
        time.sleep(0.01)
    (folder / "go").touch()
    printed = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, [error for _, error in printed]
    return [out.split() for out, _ in printed]


def test_a_fresh_ledger_opened_by_several_processes_is_migrated_once_and_one_launch_opens_one_unit(
    url: str, tmp_path: Path
) -> None:
    first, *others = together(url, tmp_path, "same")
    assert len(set(first)) == 10
    assert all(other == first for other in others)
    ledger = open_ledger(url, WallClock())
    assert {unit.id for unit in ledger.units()} == set(first)
    ledger.close()


def test_of_overlapping_launches_one_opens_and_the_other_is_refused(url: str, tmp_path: Path) -> None:
    together(url, tmp_path, "overlap")
    ledger = open_ledger(url, WallClock())
    units = ledger.units(states={UnitState.open})
    days = [day for unit in units for _, day in unit.days]
    assert len(days) == len(set(days))
    assert ledger.claims("flights", march(1, 31)) == {day: unit.id for unit in units for _, day in unit.days}
    assert len(units) == 10
    ledger.close()


def test_a_lock_has_one_holder_at_a_time_and_every_token_once(url: str, tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    tokens = [int(token) for printed in together(url, tmp_path, "lock") for token in printed]
    assert (tmp_path / "count").read_text() == str(10 * PROCESSES)
    assert sorted(tokens) == list(range(1, 10 * PROCESSES + 1))


def test_threads_share_one_ledger(ledger: SqlLedger) -> None:
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
