"""Workers that are cancelled or killed: their Spark work ends, their runs do not stay open, the work continues."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import dagster as dg
import psutil
import pytest

from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.lab import Lab, amounts, started_alone
from backfill_assets_tests.engine import works
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed

DATASET = "slow"
_TERMINATE = "mutation Stop($run: String!) { terminateRun(runId: $run) { __typename } }"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation with a Spark server of its own: its CPU shows whether it is working."""
    root = tmp_path_factory.mktemp("workers")
    made = Lab(root, root / "state", variables={"BACKFILL_ASSETS_SPARK_MEMORY": "1g"})
    made.set_up({DATASET: DATASET})
    with started_alone(made):
        yield made


@pytest.fixture(scope="module")
def spark_server(lab: Lab) -> SparkServer:
    """The server of this installation."""
    return SparkServer(lab.application.settings)


def _working(lab: Lab, spark_server: SparkServer, day: dt.date) -> tuple[str, Attempt]:
    """Launch the slow dataset for a day and wait until Spark works on its shadow."""
    lab.deliver(DATASET, day, [(1, 10)])
    backfill = lab.launch(DATASET, (day,))

    def attempts() -> list[Attempt]:
        running = lab.application.ledger.attempts(state=AttemptState.running)
        return [a for a in running if a.dataset == DATASET and a.layer == "shadow" and day in a.days]

    wait_for(lambda: bool(attempts()), "the attempt to start", 240)
    wait_for(lambda: works(spark_server), "Spark to work on the shadow", 120)
    return backfill, attempts()[0]


def test_cancelling_a_run_ends_its_spark_work(lab: Lab, spark_server: SparkServer) -> None:
    backfill, attempt = _working(lab, spark_server, dt.date(2024, 1, 1))
    assert lab.graphql(_TERMINATE, run=attempt.run)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    assert lab.finished(backfill) != "COMPLETED_SUCCESS"
    wait_for(lambda: not works(spark_server), "Spark to stop working", 120)
    with lab.instance as instance:
        run = instance.get_run_by_id(attempt.run)
        assert run is not None
        assert run.status is dg.DagsterRunStatus.CANCELED
    (after,) = [a for a in lab.application.ledger.attempts(attempt.unit) if a.number == attempt.number]
    assert after.state is AttemptState.failed
    assert lab.published(DATASET) == {}


@pytest.mark.faults
def test_a_killed_worker_is_noticed_by_its_lease_and_its_run_is_failed_and_retried(
    observed: Observed, lab: Lab, spark_server: SparkServer
) -> None:
    observed.injected("kill -9 of a run worker while Spark works on its shadow")
    day = dt.date(2024, 1, 2)
    backfill, attempt = _working(lab, spark_server, day)
    psutil.Process(int(attempt.worker.rsplit(":", 1)[1])).kill()
    lab.edit_model(DATASET, "fact.sql", " + (SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 8) AS amount", "")

    def failed() -> bool:
        with lab.instance as instance:
            run = instance.get_run_by_id(attempt.run)
            return run is not None and run.status is dg.DagsterRunStatus.FAILURE

    wait_for(failed, "the run of the dead worker to be failed", 180)
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    assert amounts(lab, DATASET, [day]) == {day: 10}
    (lost,) = [a for a in lab.application.ledger.attempts(attempt.unit) if a.number == attempt.number]
    assert lost.state is AttemptState.lost
    wait_for(lambda: not works(spark_server), "Spark to stop working", 120)
    observed.found(f"attempt {lost.number} is {lost.state}, its run is failed, and {day} is released by the retry")
