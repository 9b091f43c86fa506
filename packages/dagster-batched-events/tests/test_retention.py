"""Old logs of runs are deleted, and what assets, checks and runs show stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.compute_log_manager import ComputeIOType

from backfill_assets.system import SystemClock
from backfill_assets_tests.harness import postgres
from dagster_batched_events import UnsupportedStorageError, delete_old_logs
from event_lab import DAYS, batched_postgres, batched_sqlite, open_instance, picture, run_chunk, stock_sqlite

pytestmark = pytest.mark.slow

now = SystemClock().now
WEEK = DAYS.get_partition_keys()[:7]
ONLY_OF_A_RUN = ("events", "in order", "steps", "stats")
"""What `picture` takes from the log of the run."""


@pytest.fixture(params=["sqlite", "postgres"])
def config(request: pytest.FixtureRequest, home: Path) -> Iterator[dict[str, Any]]:
    with ExitStack() as opened:
        yield (
            batched_sqlite(home)
            if request.param == "sqlite"
            else batched_postgres(opened.enter_context(postgres.cluster()))
        )


def lines(instance: dg.DagsterInstance, run: str) -> list[str]:
    """What only the page of a run shows."""
    records = instance.event_log_storage.get_records_for_run(run).records
    steps = dg.DagsterEventType.STEP_START
    return [r.event_log_entry.user_message for r in records if r.event_log_entry.dagster_event_type in (None, steps)]


def of_assets(instance: dg.DagsterInstance, run: str) -> dict[str, Any]:
    return {part: shown for part, shown in picture(instance, run).items() if part not in ONLY_OF_A_RUN}


@pytest.mark.parametrize("fail_on", ["", WEEK[2]])
def test_pages_of_assets_checks_and_runs_show_the_same_without_the_logs(
    home: Path, config: dict[str, Any], fail_on: str
) -> None:
    with open_instance(home, config) as instance:
        run = run_chunk(instance, WEEK, fail_on)
        before, record = of_assets(instance, run), instance.get_run_record_by_id(run)
        assert lines(instance, run)
        assert delete_old_logs(instance, now(), dry_run=True) == 1
        assert lines(instance, run)
        assert delete_old_logs(instance, now()) == 1
        assert lines(instance, run) == []
        assert of_assets(instance, run) == before
        after = instance.get_run_record_by_id(run)
        assert record is not None
        assert after is not None
        assert (after.dagster_run, after.end_time) == (record.dagster_run, record.end_time)


def test_only_runs_that_ended_before_the_moment_lose_their_logs(home: Path, config: dict[str, Any]) -> None:
    with open_instance(home, config) as instance:
        old = run_chunk(instance, WEEK[:2])
        moment = now()
        new = run_chunk(instance, WEEK[2:4])
        at_work = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
        instance.report_engine_event("it works", at_work)
        instance.report_runless_asset_event(dg.AssetMaterialization(["shadow", "sales"], partition=WEEK[5]))
        assert delete_old_logs(instance, moment) == 1
        assert [bool(lines(instance, run)) for run in (old, new)] == [False, True]
        assert delete_old_logs(instance, now()) >= 1, "with the file that a page of the old run made again"
        assert [bool(lines(instance, run)) for run in (old, new)] == [False, False]
        assert instance.event_log_storage.get_records_for_run(at_work.run_id).records
        assert WEEK[5] in instance.get_materialized_partitions(dg.AssetKey(["shadow", "sales"]))


def test_what_the_steps_printed_goes_as_well(home: Path, config: dict[str, Any]) -> None:
    with open_instance(home, config) as instance:
        run = run_chunk(instance, WEEK[:1])
        manager = instance.compute_log_manager
        printed = [run, "compute_logs", "step"]
        with manager.open_log_stream(printed, ComputeIOType.STDOUT) as stream:
            assert stream is not None
            stream.write("what a step printed")
        assert manager.get_log_data(printed).stdout
        assert delete_old_logs(instance, now()) == 1
        assert not manager.get_log_data(printed).stdout


def test_another_process_that_had_the_log_open_shows_an_empty_one(home: Path) -> None:
    config = batched_sqlite(home)
    with open_instance(home, config) as webserver:
        run = run_chunk(webserver, WEEK[:2])
        assert lines(webserver, run)
        with open_instance(home, config) as sweep:
            assert delete_old_logs(sweep, now()) == 1
        assert list((home / "state/history/runs").glob(f"{run}*")) == []
        assert lines(webserver, run) == []
        assert run_chunk(webserver, WEEK[2:3])


def test_a_deletion_that_died_is_completed_by_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_instance(home, batched_sqlite(home)) as instance:
        run = run_chunk(instance, WEEK[:2])
        real, seen = Path.unlink, list[Path]()

        def dies(path: Path, *, missing_ok: bool = False) -> None:
            seen.append(path)
            if path.name == f"{run}.db":
                raise KeyboardInterrupt
            real(path, missing_ok=missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", dies)
            with pytest.raises(KeyboardInterrupt):
                delete_old_logs(instance, now())
        assert seen[-1].exists()
        assert delete_old_logs(instance, now()) == 1
        assert not seen[-1].exists()


def test_a_storage_of_another_package_is_left_alone(home: Path) -> None:
    with open_instance(home, stock_sqlite(home)) as instance:
        run = run_chunk(instance, WEEK[:1])
        with pytest.raises(UnsupportedStorageError, match=r"SqliteEventLogStorage.*BatchedSqliteStorage"):
            delete_old_logs(instance, now())
        assert lines(instance, run)


@dg.op
def nothing() -> None: ...


@dg.job
def job() -> None:
    nothing()
