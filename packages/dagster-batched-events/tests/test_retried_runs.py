"""A run of a backfill that will be retried is marked before its failure is visible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.events import DagsterEvent, JobFailureData, RunFailureReason
from dagster._core.execution.asset_backfill import backfill_runs_are_complete
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.tags import BACKFILL_ID_TAG, WILL_RETRY_TAG

from event_lab import batched_sqlite, stock_sqlite

BACKFILL = "abcdefgh"


class _Runs(SqliteRunStorage):
    """Dagster's own; the backfill daemon checks just after a failure is stored."""

    look: Callable[[str], None]

    def handle_run_event(self, run_id: str, event: DagsterEvent, *rest: Any) -> None:
        super().handle_run_event(run_id, event, *rest)
        if event.is_run_failure:
            self.look(run_id)


@dg.job
def nothing() -> None:
    """A job without a step."""


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[Callable[[Mapping[str, Any]], dg.DagsterInstance]]:
    made: list[dg.DagsterInstance] = []

    def open_one(storage: Mapping[str, Any]) -> dg.DagsterInstance:
        retries = {"enabled": True, "max_retries": 1, "retry_on_asset_or_op_failure": False}
        config = {"storage": storage, "telemetry": {"enabled": False}, "run_retries": retries}
        (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        made.append(dg.DagsterInstance.from_config(str(tmp_path)))
        made[0].run_storage.__class__ = _Runs
        return made[0]

    yield open_one
    for instance in made:
        instance.dispose()


def looks_while_it_fails(instance: dg.DagsterInstance, reason: RunFailureReason | None) -> list[tuple[bool, bool]]:
    """What the daemon sees each time the only run of a backfill is marked as failed.

    Whether the daemon counts the backfill as done, and whether the event that retries the run is there.
    """
    looks: list[tuple[bool, bool]] = []
    runs = instance.run_storage
    assert isinstance(runs, _Runs)

    def look(run_id: str) -> None:
        over = backfill_runs_are_complete(BACKFILL, instance, logging.getLogger())
        looks.append(
            (over, bool(instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records))
        )

    runs.look = look
    run = instance.create_run_for_job(nothing, tags={BACKFILL_ID_TAG: BACKFILL})
    instance.report_run_failed(run, job_failure_data=JobFailureData(error=None, failure_reason=reason))
    return looks


def test_the_backfill_of_a_worker_that_died_waits_for_the_retry(instances: Any, tmp_path: Path) -> None:
    """The daemon that retries it, by its event, finds that it has failed."""
    assert looks_while_it_fails(instances(batched_sqlite(tmp_path)), None) == [(False, False), (False, True)]


def test_with_the_storage_of_dagster_it_does_not_wait(instances: Any, tmp_path: Path) -> None:
    """When this fails, Dagster has fixed it (dagster-io/dagster#34204), and our storage's workaround can be removed."""
    assert looks_while_it_fails(instances(stock_sqlite(tmp_path)), None) == [(True, True)]


def test_a_run_that_is_not_retried_is_not_waited_for(instances: Any, tmp_path: Path) -> None:
    instance = instances(batched_sqlite(tmp_path))

    assert looks_while_it_fails(instance, RunFailureReason.STEP_FAILURE) == [(True, True)]
    (run,) = instance.get_runs()
    assert run.tags[WILL_RETRY_TAG] == "false"
