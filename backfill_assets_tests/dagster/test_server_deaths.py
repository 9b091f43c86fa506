"""The Spark server dies while it writes or checks, or is replaced by one of another configuration; one command continues."""

from __future__ import annotations

import datetime as dt
import re
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.days import day_range
from backfill_assets.core.unit import Attempt, AttemptState, Unit
from backfill_assets.spark.server import ServerState, SparkServer
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.dagster.lab import Lab, started
from backfill_assets_tests.engine import held_at
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.observed import Observed
from tools.cluster import connect

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200 * PATIENCE)]

DATASET = "tickets_servers"
DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 12))
OLD, NEW = 10, 7
# Rows of a day that takes a while to write: a test that sees the files of its neighbours has time to stop the server.
MANY = 1_000_000
FEW = 3
ANY = {"row_count": "any", "amount": "any"}
GOLDEN = """
golden:
  open_days:
    description: The days on which tickets are sold at all; read by the checks alone.
    table: open_days
    key: [day]
    ours: SELECT DISTINCT day, 1L AS sold FROM {dataset}
    columns: {{sold: {{}}}}
"""
# Settings that a server of another user may well have.
OTHERWISE = {
    "spark.driver.memory": "1200m",
    "spark.sql.shuffle.partitions": "13",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.session.timeZone": "Pacific/Auckland",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "gzip",
}
Days = tuple[dt.date, ...]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation with a Spark server of its own, in which all days are published and will be corrected."""
    root = tmp_path_factory.mktemp("servers")
    made = Lab(root, root / "state", variables={"BACKFILL_ASSETS_SPARK_MEMORY": "1g"})
    made.set_up({DATASET: "tickets"}, run_limits={"max_concurrent_runs": 1, "tag_concurrency_limits": []})
    # The model makes as many rows of a delivered one as its ticket says.
    made.edit_model(DATASET, "staging.sql", "ticket, amount", "explode(sequence(1L, ticket)) AS ticket, amount")
    made.edit_model(DATASET, "dataset.yaml", "chunk_days: 3", "chunk_days: 2")
    made.edit_model(DATASET, "dataset.yaml", "checks:", f"{GOLDEN.format(dataset=DATASET)}checks:")
    write_deltalake(
        root / "state" / "sources" / "open_days",
        pa.table({"day": DAYS, "sold": [1] * len(DAYS)}),
        partition_by=["day"],
    )
    for day in DAYS:
        made.deliver(DATASET, day, [(1, OLD)])
    try:
        with started(made):
            span = f"{DAYS[0]}...{DAYS[-1]}"
            first = ("dagster", "asset", "materialize", "-m", "backfill_assets.definitions", "--partition-range", span)
            done = made.run(*first, "--select", f"group:{DATASET}", BACKFILL_ASSETS_CHUNK="all")
            assert done.returncode == 0, done.stderr[-3000:]
            yield made
    finally:
        _server(made).stop()


def corrected(lab: Lab, days: Days, rows: int) -> str:
    """Launch a correction of four days, which is two consecutive runs; the last day has so many rows."""
    for day in days:
        lab.deliver(DATASET, day, [(rows if day == days[-1] else FEW, NEW)], number=2)
    return lab.launch(DATASET, days, contract=ANY)


def totals(lab: Lab, days: Collection[dt.date]) -> dict[dt.date, tuple[int, int]]:
    """Rows and amount of each day, as readers find them."""
    table = DeltaTable(path_of(lab.application.layout.published_path(DATASET))).to_pyarrow_table(
        columns=["day", "amount"]
    )
    grouped = table.group_by("day").aggregate([("amount", "count"), ("amount", "sum")]).to_pylist()
    return {row["day"]: (row["amount_count"], row["amount_sum"]) for row in grouped if row["day"] in days}


def as_before(days: Days) -> dict[dt.date, tuple[int, int]]:
    return dict.fromkeys(days, (1, OLD))


def as_modelled(days: Days, rows: int) -> dict[dt.date, tuple[int, int]]:
    """What the model makes of the files that `corrected` delivered."""
    return {day: (number, number * NEW) for day in days for number in [rows if day == days[-1] else FEW]}


def shadows(lab: Lab, unit: Unit, days: Collection[dt.date]) -> list[Attempt]:
    """The attempts of a unit that built shadows of any of the days, in order."""
    found = lab.application.ledger.attempts(unit.id)
    return sorted((a for a in found if a.layer == "shadow" and set(a.days) & set(days)), key=lambda a: a.number)


def at_work(lab: Lab, backfill: str, days: Days) -> Attempt:
    """The attempt that builds exactly these days, once it has begun."""

    def running() -> list[Attempt]:
        units = [u for u in lab.application.ledger.units() if u.opened_by == backfill]
        own = [attempt for unit in units for attempt in shadows(lab, unit, days)]
        return [attempt for attempt in own if attempt.state is AttemptState.running]

    wait_for(lambda: bool(running()), f"{days} to be at work", 600)
    (attempt,) = running()
    assert attempt.days == days
    return attempt


def frozen_in_mid_write(lab: Lab, attempt: Attempt) -> psutil.Process:
    """Stop the server when some files of a shadow are complete, others are not, and nothing is committed."""
    server = psutil.Process(_pid(lab))
    folder = path_of(lab.application.layout.published_path(DATASET)) / attempt.folder
    wait_for(lambda: whole(folder), f"the first file in {folder}", 300, every=0.002)
    server.send_signal(signal.SIGSTOP)
    wait_for(lambda: server.status() == psutil.STATUS_STOPPED, "the server to stand still", 30)
    assert not list((folder / "_delta_log").glob("*.json")), "the write was over too soon to be killed"
    assert 0 < len(whole(folder)) < len(attempt.days)
    return server


def whole(folder: Path) -> list[Path]:
    """The completely written data files of a folder."""
    return [
        file for file in folder.rglob("part-*.parquet") if file.read_bytes()[-4:] == b"PAR1" and file.stat().st_size > 4
    ]


def golden_file(lab: Lab, day: dt.date) -> Path:
    """The file that only the checks of a day read, and only in the server."""
    (file,) = (lab.root / "state" / "sources" / "open_days" / f"day={day}").glob("*.parquet")
    return file


def kill(server: psutil.Process) -> None:
    server.kill()
    wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "the server's end", 30)


def continues(observed: Observed, lab: Lab, backfill: str, days: Days, rows: int) -> None:
    """What must hold once the server has died in the second run of a correction, and after one command."""
    unit, first, second = lab.unit(backfill), days[:2], days[2:]
    assert lab.finished(backfill) != "COMPLETED_SUCCESS"
    failed = lab.failures(backfill)
    assert "went away while" in failed, failed
    assert "backfill resume" in failed, failed
    assert totals(lab, days) == as_before(days)
    (passed,) = shadows(lab, unit, first)
    assert {a.state for a in shadows(lab, unit, second)} <= {AttemptState.failed, AttemptState.lost}
    assert {f.day for f in lab.application.publisher.blockers(unit.id)} == set(second)
    agrees(lab)

    done = lab.run("backfill", "resume", unit.id, BACKFILL_ASSETS_WEBSERVER=lab.url)
    assert done.returncode == 0, done.stderr
    (resumed,) = re.findall(r"launched backfill (\w+)", done.stdout)
    assert lab.finished(resumed) == "COMPLETED_SUCCESS", lab.failures(resumed)
    assert totals(lab, days) == as_modelled(days, rows)
    assert shadows(lab, unit, first) == [passed]
    *lost, again = shadows(lab, unit, second)
    assert (again.state, again.days, len(lost)) == (AttemptState.done, second, 1)
    (release,) = lab.application.ledger.releases(unit=unit.id)
    brought = {file.path for swap in release.manifest.days for file in swap.add}
    assert not [path for path in brought if path.startswith(lost[0].folder)]
    agrees(lab)
    observed.found(failed.split("Error: ", 1)[-1])
    observed.found(f"{passed.days[0]} … kept, {second[0]} … built again, one release; the doctor: nothing")


def _server(lab: Lab) -> SparkServer:
    return SparkServer(lab.application.settings)


def _pid(lab: Lab) -> int:
    found = _server(lab).status()
    assert found.state is ServerState.RUNNING
    assert found.pid is not None
    return found.pid


def agrees(lab: Lab) -> None:
    """The doctor, which also asks Dagster, finds nothing, and nothing to repair."""
    done = lab.run("backfill", "doctor", "--repair")
    assert "nothing to repair automatically" in done.stdout, done.stdout + done.stderr
    assert "everything that was compared agrees" in done.stdout, done.stdout


def test_the_server_is_killed_while_it_writes_a_shadow(observed: Observed, lab: Lab) -> None:
    days = DAYS[:4]
    backfill = corrected(lab, days, MANY)
    attempt = at_work(lab, backfill, days[2:])
    server = frozen_in_mid_write(lab, attempt)
    assert totals(lab, days) == as_before(days)
    folder = path_of(lab.application.layout.published_path(DATASET)) / attempt.folder
    observed.injected(f"kill -9 of the Spark server with {len(whole(folder))} of 2 files of a shadow written")
    kill(server)
    continues(observed, lab, backfill, days, MANY)
    # Half-written files are ignored; the next sweep deletes them.
    assert not (folder / "_delta_log" / f"{0:020}.json").exists()


def test_the_server_is_killed_while_it_checks_a_shadow(observed: Observed, lab: Lab) -> None:
    days = DAYS[4:8]
    backfill = corrected(lab, days, FEW)
    with held_at(golden_file(lab, days[3]), _pid(lab)):
        assert totals(lab, days) == as_before(days)
        pending = lab.application.ledger.evidence(lab.unit(backfill).id, DATASET, days[2:])
        assert [evidence.verdicts for evidence in pending.values()] == [()] * 2, (
            "the shadow is written, nothing is judged"
        )
        observed.injected("kill -9 of the Spark server in the middle of the checks of a shadow")
        kill(psutil.Process(_pid(lab)))
    continues(observed, lab, backfill, days, FEW)


def test_the_server_is_replaced_by_one_of_another_configuration_in_the_middle_of_a_unit(
    observed: Observed, lab: Lab
) -> None:
    days = DAYS[8:]
    backfill = corrected(lab, days, FEW)
    with held_at(golden_file(lab, days[3]), _pid(lab)):
        stopped = lab.run("backfill", "spark", "stop")
        assert "stopped" in stopped.stdout, stopped.stderr
        observed.injected(f"the Spark server is stopped in mid-check, another one has {OTHERWISE}")
    assert lab.finished(backfill) != "COMPLETED_SUCCESS"
    lab.stop()
    with connect(lab.application.settings, lab.root / "elsewhere", OTHERWISE) as server:
        lab.environ["BACKFILL_ASSETS_SPARK_URL"] = server.url
        try:
            with started(lab):
                continues(observed, lab, backfill, days, FEW)
        finally:
            del lab.environ["BACKFILL_ASSETS_SPARK_URL"]
