"""Postgres, with the ledger and Dagster's storage, is killed under a running worker: one command finishes the work."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil
import pytest
from deltalake import DeltaTable

from backfill_assets.core.days import day_range
from backfill_assets.core.release import ReleaseState
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.gates import HOLD_VARIABLE, open_gates, reached, set_gate
from backfill_assets_tests.dagster.lab import ROOT, Lab, content, started
from backfill_assets_tests.dagster.on_postgres import CONFIG, LEDGER, documented_urls
from backfill_assets_tests.harness.postgres import Killable, is_running
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.observed import Observed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200 * PATIENCE)]

DATASET = "tickets_postgres_deaths"
# Where the worker is when a long outage begins: the days of the case, what the outage cuts, how the sensor detects the
# worker's death, and what continues afterwards. If the lease ended during the outage, the first check detects it.
LONG = {
    "add_evidence.1": (
        day_range(dt.date(2024, 3, 11), dt.date(2024, 3, 12)), "the evidence", "has not renewed the lease", "resume",
    ),
    "commit.1": (
        day_range(dt.date(2024, 3, 21), dt.date(2024, 3, 22)), "what comes after the commit", "process {} of this run is gone",
        "publish",
    ),
}  # fmt: skip
RETRIES_SECONDS = 12
"""Longer than Dagster retries to reach Postgres: about 0.2 s, doubled five times."""


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with documented_urls() as variables:
        yield variables


@pytest.fixture(scope="module")
def lab(urls: dict[str, str], spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation with everything on Postgres and the run limits as shipped, whose workers have gates."""
    root = tmp_path_factory.mktemp("postgres_deaths")
    gates = {HOLD_VARIABLE: str(root / "gates"), "PYTHONPATH": str(ROOT)}
    made = Lab(root, spark_server.folder.root.parent, CONFIG, {**urls, **gates})
    made.module = ("-m", "backfill_assets_tests.dagster.held_definitions")
    made.set_up({DATASET: "tickets"}, run_limits={})
    (root / "gates").mkdir()
    with started(made):
        yield made
    # The outage has also killed the thread of a code server that would end it.
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("DAGSTER_HOME") == str(made.home):
                process.kill()


def test_postgres_is_killed_under_a_worker_that_commits(lab: Lab, urls: dict[str, str], observed: Observed) -> None:
    days = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 3))
    backfill, gate, pid = held(lab, days, "commit.1")
    unit, server = lab.unit(backfill).handle, Killable(urls[LEDGER])
    server.kill()
    try:
        open_gates(gate)
        # The commit needs no ledger; the steps after it do.
        wait_for(lambda: readers_see(lab, days) == dict.fromkeys(days, 30), "the commit of the worker", 60)
    finally:
        server.start()
    published = lab.run("backfill", "publish", unit)
    assert published.returncode == 0, published.stderr
    observed.injected(f"kill -9 of Postgres with ledger and runs on it before the Delta commit of the worker {pid}")
    observed.found(f"the days were committed without it; after `backfill publish`: {assert_once(lab, days)}")


@pytest.mark.parametrize("call", LONG)
def test_postgres_is_away_for_longer_than_all_retries_take(
    lab: Lab, urls: dict[str, str], observed: Observed, call: str
) -> None:
    days, cut, known, command = LONG[call]
    backfill, gate, pid = held(lab, days, call)
    unit, server, worker = lab.unit(backfill).handle, Killable(urls[LEDGER]), psutil.Process(pid)
    server.kill()
    try:
        open_gates(gate)
        wait_for(lambda: not is_running(worker), "the end of the worker, which cannot tell of it", 240)
        # The thread of the code server that would fail its run also ends.
        time.sleep(RETRIES_SECONDS)
    finally:
        server.start()
    ended, first = lab.finished(backfill), lab.runs(backfill)[-1]
    assert first.is_finished
    # By the sensor, and not by a limit of Dagster's that gives no reason.
    assert known.format(pid) in reported_end(lab, first.run_id)
    then = "tried again"
    # Whether Dagster has failed the backfill depends on whether it checked it during the outage.
    if ended != "COMPLETED_SUCCESS":
        went_on = lab.run("backfill", command, unit, *(["--webserver", lab.url] if command == "resume" else []))
        assert went_on.returncode == 0, went_on.stderr
        then = f"after `backfill {command}`"
    wait_for(lambda: readers_see(lab, days) == dict.fromkeys(days, 30), "the days", 240)
    observed.injected(
        f"kill -9 of Postgres for so long that the worker {pid} ended of it, {cut} unsaid; then it came back"
    )
    observed.found(f"the run failed by the sensor; {then}: {assert_once(lab, days)}")


def held(lab: Lab, days: Sequence[dt.date], call: str) -> tuple[str, Path, int]:
    """A backfill whose worker waits before a call: the backfill, the gate and the worker's process."""
    for day in days:
        lab.deliver(DATASET, day, [(1, 10), (2, 20)])
    gate = set_gate(lab.root / "gates", call)
    backfill = lab.launch(DATASET, days)
    return backfill, gate, reached(gate)


def reported_end(lab: Lab, run: str) -> str:
    """What was reported to Dagster about the end of a run."""
    ends = {dg.DagsterEventType.PIPELINE_FAILURE, dg.DagsterEventType.PIPELINE_CANCELED}
    with lab.instance as instance:
        return "\n".join(event.message for event in instance.all_logs(run, of_type=ends))


def readers_see(lab: Lab, days: Collection[dt.date]) -> dict[dt.date, int]:
    """Sum of the published amounts per day, read from the files only: an application would ask the ledger."""
    table = DeltaTable(Path(lab.environ["BACKFILL_ASSETS_WAREHOUSE"]) / "published" / DATASET)
    return {day: sum(rows.values()) for day, rows in content(table).items() if day in days}


def assert_once(lab: Lab, days: Sequence[dt.date]) -> str:
    """Readers see the model's content, each day was released exactly once, and the doctor finds nothing; returns this in words."""
    assert readers_see(lab, days) == dict.fromkeys(days, 30)
    wait_for(lambda: lab.materialized("published", DATASET) >= {str(day) for day in days}, "Dagster to hear of it", 240)
    releases = [r for r in lab.application.ledger.releases(DATASET) if days[0] in {s.day for s in r.manifest.days}]
    assert [(r.state, r.version) for r in releases] == [(ReleaseState.finalized, lab.version(DATASET))]
    assert [swap.day for swap in releases[0].manifest.days] == list(days)
    wait_for(lambda: not lab.findings(), "the doctor to find nothing", 60)
    return f"one release of {len(days)} days; the doctor: nothing"
