"""A live run does not wait for a long backfill, whether a slot is kept for it or both need the same slot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from backfill_assets.core.days import day_range
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.lab import Lab, amounts, started
from backfill_assets_tests.harness.waiting import wait_for

DATASET = "tickets_live"
HISTORY = day_range(dt.date(2024, 5, 1), dt.date(2024, 5, 15))
TODAY = dt.date(2024, 5, 16)
LIMITS: dict[str, dict[str, Any]] = {
    # As shipped: one slot of the queue is for live runs only.
    "beside": {},
    # One slot for all: only the priority brings the live run before the chunks that were queued earlier.
    "before": {"max_concurrent_runs": 1, "tag_concurrency_limits": []},
}


@pytest.fixture(params=LIMITS)
def lab(request: pytest.FixtureRequest, spark_server: SparkServer, tmp_path: Path) -> Iterator[Lab]:
    """An installation of its own; all share the session's warehouse, so each has another dataset."""
    lab = Lab(tmp_path, spark_server.folder.root.parent)
    lab.set_up({f"{DATASET}_{request.param}": "tickets"}, run_limits=LIMITS[request.param])
    with started(lab):
        yield lab


def test_a_live_run_starts_within_one_batch_of_a_long_backfill(lab: Lab) -> None:
    (dataset,) = lab.application.datasets
    for day in (*HISTORY, TODAY):
        lab.deliver(dataset, day, [(1, 7)])
    backfill = lab.launch(dataset, HISTORY)
    with lab.instance as instance:
        wait_for(lambda: len(lab.runs(backfill)) == len(HISTORY) // 3, "all chunks to be queued", 60)
        live = lab.launch_live(dataset, TODAY)

        def record() -> dg.RunRecord:
            found = instance.get_run_record_by_id(live)
            assert found is not None
            return found

        wait_for(lambda: record().dagster_run.is_finished, "the live run to end", 300)
        assert record().dagster_run.status is dg.DagsterRunStatus.SUCCESS
        assert amounts(lab, dataset, [TODAY]) == {TODAY: 7}
        assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
        runs = instance.get_run_records(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        queued, started = record().create_timestamp.timestamp(), record().start_time or 0
        between = [r for r in runs if queued < (r.start_time or 0) < started]
        later = [r for r in runs if (r.start_time or 0) > started]
    assert len(between) <= 1, f"{len(between)} chunks were started before the live run"
    assert later, "the backfill was over too soon to prove anything"
