"""Ways to be wrong and green that need another process, another clock or another user of the host, by the commands only.

They import nothing of the package, and also run against an older one: see docs/proof.md.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from backfill_assets_tests.dagster.shop import D1, D2, D3, Shop, refuses

if TYPE_CHECKING:  # an older package has it elsewhere
    from backfill_assets.spark.server import SparkServer

STRANGER = Path(__file__).parents[1] / "spark" / "stop_executor.py"
OF_ID = {"columns": {"id": "integer"}}
AHEAD = """\
import datetime as module
import time

import pandas  # it needs the true one while it is imported

true, true_time = module.datetime, time.time
ten_years = module.timedelta(days=3653)


class Clock(type):
    def __instancecheck__(cls, one):
        return isinstance(one, true)

    def __subclasscheck__(cls, other):
        return issubclass(other, true)


class datetime(true, metaclass=Clock):
    def __new__(cls, *given, **named):
        return true(*given, **named)

    @classmethod
    def now(cls, tz=None):
        return true.now(tz) + ten_years

    @classmethod
    def utcnow(cls):
        return true.utcnow() + ten_years


datetime.__module__ = "datetime"
module.datetime = datetime
time.time = lambda: true_time() + ten_years.total_seconds()
"""
"""A `sitecustomize` of Python for a host whose clock is ten years ahead."""


@pytest.fixture
def shop(tmp_path: Path, spark_server: SparkServer) -> Shop:
    shop = Shop(tmp_path, spark_server.folder.root.parent)
    # Where the runs are stored that the sensor checks.
    home = shop.write("home/dagster.yaml", "telemetry: {enabled: false}\n").parent
    shop.environ["DAGSTER_HOME"] = str(home)
    return shop


def test_a_file_whose_landing_began_before_a_release_and_ended_after_it_is_late(shop: Shop) -> None:
    adds_up = "SELECT CASE id WHEN 9 THEN DATE'2026-01-01' ELSE _lineage.delivery_day END AS day, id, _lineage FROM raw"
    shop.describe("overtaken", OF_ID | {"late_days": 1}, (adds_up, ""), staging={"deduplicate": "none"})
    shop.deliver("overtaken", D1, "id", "1")
    done(shop.build("overtaken", D1))
    unit = open_unit(shop)

    # The file of the next day brings a late row of the first one.
    shop.deliver("overtaken", D2, "id", "2", "9")
    with stopped_once_raw_has_it(shop, "overtaken", D2) as landing:
        done(shop.run("backfill", "publish", unit))
    assert landing.returncode == 0
    assert known(shop, "overtaken") == [D1, D2]
    assert shop.sees("overtaken") == [[D1, "1"]]
    assert shop.late() == 1, "the late row is lost"


def test_a_clock_that_was_ahead_dates_no_later_release_and_hides_no_late_row(shop: Shop) -> None:
    shop.describe("dated", OF_ID | {"late_days": 1}, staging={"deduplicate": "none"})
    shop.deliver("dated", D1, "id", "1")
    shop.write("ahead/sitecustomize.py", AHEAD)
    with shop.observed(PYTHONPATH=str(shop.root / "ahead")):
        done(shop.launch("dated", D1))
    shop.deliver("dated", D2, "id", "2")
    done(shop.launch("dated", D2))
    # Each day now has a file that the run of another day has landed.
    shop.deliver("dated", D3, "id", "3")
    done(shop.run(*shop.materialize(D3, "dated/raw")))

    releases = json.loads(done(shop.run("backfill", "releases", "dated", "--json")))
    years = {one["days"]: int(one["at"][:4]) - time.gmtime().tm_year for one in releases}
    assert years[D1] == 10, "the clock of the first launch was ahead"
    late = shop.late()
    assert (years[D2], late) == (0, 2), f"the later release is dated {years[D2]} years ahead; {late} of 2 days are late"


def test_another_process_on_the_host_cannot_stop_the_work_of_a_server_and_the_status_is_right(tmp_path: Path) -> None:
    shop = Shop(tmp_path, tmp_path / ".state")
    shop.describe("any", OF_ID)
    with shop.observed(BACKFILL_ASSETS_SPARK_MEMORY="1g"):
        started = done(shop.run("backfill", "spark", "start"))
    try:
        (port,) = re.findall(r"sc://[^:]+:(\d+)", started)
        strangers = shop.run(sys.executable, str(STRANGER), *map(str, internal_ports(int(port)))).stdout.splitlines()
        assert strangers, "no other port is open"
        accepted = [line for line in strangers if line.endswith("told")]
        works = shop.run("backfill", "sql", "SELECT count(*) FROM range(9) WHERE rand() < 2").returncode == 0
        said = shop.run("backfill", "spark", "status").returncode == 0
        assert (accepted, works, said) == ([], True, True), (
            f"somebody else was heard: {accepted}; {works=}, and {said=}"
        )
    finally:
        shop.run("backfill", "spark", "stop")


def test_a_first_file_that_comes_after_the_daily_run_is_run_and_a_refused_day_is_tried_again(shop: Shop) -> None:
    today = dt.datetime.fromtimestamp(time.time(), dt.UTC).date()
    first, due = (str(today - dt.timedelta(days=days)) for days in (3, 2))
    shop.describe("live", OF_ID, start=first, end=None, live={"at": "00:00"})
    shop.deliver("live", first, "id", "1")
    done(shop.launch("live", first))
    assert shop.late() == 0

    shop.deliver("live", due, "id", "2")
    came = shop.late()
    done(shop.build("live", due))
    unit = open_unit(shop)
    tags = json.dumps({"dagster/partition": due, "backfill_assets/live": "true"})
    live = shop.run("dagster", "job", "execute", "-f", "definitions.py", "-j", "live_live", "--tags", tags)
    refuses(live, f"claimed by open unit {unit}")
    done(shop.run("backfill", "discard", unit))
    freed = shop.late()
    assert (came, freed) == (1, 1), f"runs once its file came: {came}; runs once its claim ended: {freed}"


def open_unit(shop: Shop) -> str:
    """The open unit."""
    (unit,) = json.loads(done(shop.run("backfill", "status", "--json")))["units"]
    return str(unit["unit"])


@contextmanager
def stopped_once_raw_has_it(shop: Shop, name: str, day: str) -> Iterator[subprocess.Popen[bytes]]:
    """Land a file in a process that is paused within the block: raw has its rows, and the ledger does not know it."""
    log = Path(shop.environ["BACKFILL_ASSETS_WAREHOUSE"]) / "raw" / name / "_delta_log"
    before = len([*log.glob("*.json")])
    landing = subprocess.Popen(
        shop.materialize(day, f"{name}/raw"), cwd=shop.root, env=shop.environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: len([*log.glob("*.json")]) > before, "raw to have the file")
        os.killpg(landing.pid, signal.SIGSTOP)
        assert day not in known(shop, name), "it had told the ledger already"
        yield landing
    finally:
        os.killpg(landing.pid, signal.SIGCONT)
        landing.wait(300)


def known(shop: Shop, name: str) -> list[str]:
    """The delivery days that the ledger knows of."""
    with closing(sqlite3.connect(shop.root / ".state" / "ledger.db")) as ledger:
        return [day for (day,) in ledger.execute("SELECT day FROM deliveries WHERE dataset = ? ORDER BY day", (name,))]


def internal_ports(port: int) -> list[int]:
    """The other ports of the process that listens on a port."""
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid is not None]
    (pid,) = {c.pid for c in listening if c.laddr.port == port}
    return sorted({c.laddr.port for c in listening if c.pid == pid} - {port})


def until(condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def done(command: subprocess.CompletedProcess[str]) -> str:
    """The output of a command that succeeded."""
    assert command.returncode == 0, (command.stdout + command.stderr)[-3000:]
    return command.stdout
