"""A run worker that is killed on the shared installation: no command is needed."""

from __future__ import annotations

import datetime as dt

import dagster as dg
import psutil
import pytest

from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets_tests.dagster.lab import Lab, amounts
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed

DATASET = "tickets_killed"
DAY = dt.date(2024, 3, 1)


@pytest.mark.faults
def test_the_run_of_a_killed_worker_is_failed_retried_and_released(observed: Observed, lab: Lab) -> None:
    observed.injected("kill -9 of a run worker that has begun to build a day")
    lab.deliver(DATASET, DAY, [(1, 10)])
    ledger = lab.application.ledger
    backfill = lab.launch(DATASET, (DAY,))

    def begun() -> list[Attempt]:
        return [a for a in ledger.attempts(state=AttemptState.running) if a.dataset == DATASET]

    wait_for(begun, "an attempt to begin", 240, every=0.05, instead=lab.logs)
    (attempt,) = begun()
    psutil.Process(int(attempt.worker.rsplit(":", 1)[1])).kill()
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    with lab.instance as instance:
        run = instance.get_run_by_id(attempt.run)
        assert run is not None
        assert run.status is dg.DagsterRunStatus.FAILURE
    lost = [a for a in ledger.attempts(attempt.unit) if a.state is AttemptState.lost]
    assert [a.number for a in lost] == [attempt.number]
    assert amounts(lab, DATASET, [DAY]) == {DAY: 10}
    observed.found(f"attempt {attempt.number} is lost, its run is failed, and {DAY} is released by the retry")
