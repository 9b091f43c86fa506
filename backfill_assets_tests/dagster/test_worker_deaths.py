"""A run worker dies by SIGKILL between any two steps of the pipeline; its run is retried and does only what is missing."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator

import pytest

from backfill_assets.core.unit import AttemptState
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.gates import HOLD_VARIABLE, killed_at
from backfill_assets_tests.dagster.lab import ROOT, Lab, amounts, started
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.observed import Observed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200 * PATIENCE)]

DATASET = "tickets_deaths"
FIRST = dt.date(2024, 11, 1)
# Before which call it dies, and which occurrence of it; what was done before; whether the shadow is built again.
DEATHS = {
    "add_deliveries.1": ("raw is written", True),
    "add_staged.1": ("staging is written", True),
    "add_evidence.1": ("the shadow is written", True),
    "add_evidence.2": ("the checks have run", True),
    "store_manifest.1": ("the evidence is stored", False),
    "intend.1": ("the manifest is stored", False),
    "commit.1": ("the intent is stored", False),
    "finalize_publication.1": ("the Delta commit is made", False),
    "seal.1": ("the release is finalized", False),
}


@pytest.fixture(scope="module")
def lab(spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation of its own, whose code location has gates."""
    root = tmp_path_factory.mktemp("deaths")
    gates = {HOLD_VARIABLE: str(root / "gates"), "PYTHONPATH": str(ROOT)}
    made = Lab(root, spark_server.folder.root.parent, variables=gates)
    made.module = ("-m", "backfill_assets_tests.dagster.held_definitions")
    made.set_up({DATASET: "tickets"})
    (root / "gates").mkdir()
    with started(made):
        yield made


@pytest.mark.parametrize("call", DEATHS)
def test_a_run_worker_dies_between_two_steps_of_the_pipeline(lab: Lab, observed: Observed, call: str) -> None:
    done, again = DEATHS[call]
    day = FIRST + dt.timedelta(days=list(DEATHS).index(call))
    lab.deliver(DATASET, day, [(1, 10), (2, 20)])
    gate = lab.root / "gates" / call
    os.mkfifo(gate)
    backfill = lab.launch(DATASET, (day,))
    pid = killed_at(gate)
    observed.injected(f"kill -9 of the run worker {pid} when {done}")
    assert amounts(lab, DATASET, [day]) == ({day: 30} if call in {"finalize_publication.1", "seal.1"} else {})
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    assert amounts(lab, DATASET, [day]) == {day: 30}
    attempts = [a for a in lab.application.ledger.attempts() if a.layer == "shadow" and day in a.days]
    assert [a.state for a in attempts].count(AttemptState.done) == 1
    assert (len(attempts) > 1) == (again and call.startswith("add_evidence"))
    releases = [r for r in lab.application.ledger.releases(DATASET) if day in {s.day for s in r.manifest.days}]
    assert [r.state.value for r in releases].count("finalized") == 1
    # The sensor ends the attempt of the dead worker a little later.
    wait_for(lambda: not lab.findings(), "the doctor to find nothing", 60)
    observed.found(f"{len(attempts)} attempts, {len(releases)} releases; the doctor: nothing")
