"""A batch of Dagster's events that is refused, interrupted or killed: nothing is lost, and nothing is stored twice."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.storage.event_log import SqliteEventLogStorage

from backfill_assets_tests.harness import postgres
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed
from dagster_batched_events import BatchedEvents, BatchedSqliteEventLogStorage, batched_events
from dagster_batched_events import batches as batches_module
from event_lab import DAYS, SHADOW, batched_postgres, batched_sqlite, built, judged, open_instance, results

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MONTH = DAYS.get_partition_keys()[:9]
KILLED = """
import os, signal, sys
import dagster as dg
from dagster_batched_events import BatchedEvents, batched_events
from event_lab import judged

instance = dg.DagsterInstance.from_config(sys.argv[1])
with batched_events(instance):
    for day in ("2024-01-01", "2024-01-02"):
        instance.report_dagster_event(judged(day), "killed")
index = BatchedEvents._index

def die(*arguments):
    if sys.argv[2] == "in the index":
        index(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

BatchedEvents._index = die
with batched_events(instance):
    instance.report_dagster_event(judged("2024-01-03"), "killed")
"""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(batches_module.BATCH_VARIABLE, "10")
    monkeypatch.setattr(batches_module, "_SIZE", 7)
    # A machine that is busy must not end a batch before its time.
    monkeypatch.setattr(batches_module, "_SECONDS", 600.0)


@pytest.fixture
def on_postgres(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with postgres.cluster() as url, open_instance(tmp_path / "home", batched_postgres(url)) as opened:
        yield opened


def logged(instance: dg.DagsterInstance, run: str = "run") -> list[str | None]:
    """Partitions of the materializations in a run's log."""
    records = instance.event_log_storage.get_records_for_run(run).records
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    return [record.partition_key for record in records if record.event_log_entry.dagster_event_type is kind]


def indexed(instance: dg.DagsterInstance) -> list[str | None]:
    """Partitions of the materializations that the asset shows, oldest first."""
    found = instance.fetch_materializations(SHADOW, limit=99, ascending=True).records
    return [record.partition_key for record in found]


class Break:
    """Makes a function raise at its first call or at another one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch

    def __call__(self, owner: type, name: str, error: BaseException, on: int = 1) -> None:
        original: Callable[..., Any] = getattr(owner, name)
        calls = itertools.count(1)

        def raising(*arguments: Any) -> Any:
            if next(calls) == on:
                raise error
            return original(*arguments)

        self.patch.setattr(owner, name, raising)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    return Break(monkeypatch)


@pytest.mark.parametrize("shard", ["run", "index"])
def test_a_commit_that_fails_leaves_each_event_once(
    instance: dg.DagsterInstance, shard: str, caplog: pytest.LogCaptureFixture
) -> None:
    instance.report_engine_event("opens the database", run_id="run", job_name="job")
    storage = instance.event_log_storage
    assert isinstance(storage, BatchedSqliteEventLogStorage)
    failed: list[str] = []

    def fail(_connection: object) -> None:
        if not failed:
            failed.append(shard)
            raise sa.exc.OperationalError("COMMIT", {}, Exception("disk I/O error"))

    sa.event.listen(storage._engine(shard), "commit", fail)  # noqa: SLF001 - a disk that is full only then
    with batched_events(instance):
        for day in MONTH[:3]:
            instance.report_dagster_event(built(day), "run")
    assert failed
    assert "a batch of 3 events was refused" in caplog.text
    assert logged(instance) == MONTH[:3]
    assert indexed(instance) == MONTH[:3]


def test_events_that_the_index_refuses_together_are_indexed_one_by_one(
    instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    with instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        connection.execute(sa.text("DROP INDEX idx_asset_check_executions_unique"))
    with batched_events(instance):
        for day in MONTH[:5]:
            instance.report_dagster_event(judged(day), "run")
    assert "a batch of 5 events was refused" in caplog.text
    assert results(instance) == dict.fromkeys(MONTH[:5], "SUCCEEDED")
    assert len(instance.event_log_storage.get_records_for_run("run").records) == 5


def test_a_batch_that_dagster_stores_again_one_by_one_is_stored_once(
    instance: dg.DagsterInstance, broken: Break
) -> None:
    broken(BatchedEvents, "_index", RuntimeError("database is locked"))
    entries = [
        dg.EventLogEntry(None, 10, "", "run", time.time(), dagster_event=built(day), job_name="job")
        for day in MONTH[:3]
    ]
    # As Dagster does it with the planned events of a run.
    with pytest.raises(RuntimeError, match="database is locked"):
        instance.event_log_storage.store_event_batch(entries)
    for entry in entries:
        instance.event_log_storage.store_event(entry)
    assert logged(instance) == MONTH[:3]
    assert indexed(instance) == MONTH[:3]


def test_one_event_that_cannot_be_stored_does_not_take_the_rest_with_it(
    instance: dg.DagsterInstance, broken: Break
) -> None:
    broken(BatchedEvents, "_write", RuntimeError("refused"))
    broken(SqliteEventLogStorage, "store_event", RuntimeError("this one is broken"), on=2)

    def write() -> None:
        with batched_events(instance):
            for day in MONTH[:4]:
                instance.report_dagster_event(built(day), "run")

    with pytest.raises(RuntimeError, match="this one is broken"):
        write()
    assert logged(instance) == [MONTH[0], MONTH[2], MONTH[3]]
    assert indexed(instance) == logged(instance)


def test_events_before_an_exception_are_stored(instance: dg.DagsterInstance) -> None:
    def interrupted() -> None:
        with batched_events(instance):
            instance.report_dagster_event(judged("2024-01-01"), "run")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert results(instance) == {"2024-01-01": "SUCCEEDED"}


@pytest.mark.parametrize("number", [2, 7, 9], ids=["at the end of the block", "in a full batch", "after a full batch"])
@pytest.mark.parametrize("place", ["_log_together", "_index"])
def test_a_run_that_is_cancelled_while_a_batch_is_written_loses_nothing(
    instance: dg.DagsterInstance, broken: Break, place: str, number: int
) -> None:
    broken(BatchedEvents, place, DagsterExecutionInterruptedError(), on=2 if number > 7 else 1)

    def cancelled() -> None:
        with batched_events(instance):
            for day in MONTH[:number]:
                instance.report_dagster_event(built(day), "run")

    with pytest.raises(DagsterExecutionInterruptedError):
        cancelled()
    assert logged(instance) == MONTH[:number]
    assert indexed(instance) == MONTH[:number]


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["between the commits", "in the index"])
def test_a_worker_killed_in_mid_batch_leaves_a_usable_storage(observed: Observed, home: Path, moment: str) -> None:
    observed.injected(f"kill -9 of a run worker that writes a batch of events, {moment}")
    with open_instance(home, batched_sqlite(home)):
        pass
    command = [sys.executable, "-c", KILLED, str(home), moment]
    done = subprocess.run(command, cwd=HERE, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    for name in ("index", "killed"):
        with sqlite3.connect(home / f"state/history/runs/{name}.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        # Dagster shows nothing that is not in the run's log.
        assert results(instance) == dict.fromkeys(("2024-01-01", "2024-01-02"), "SUCCEEDED")
        assert len(instance.event_log_storage.get_records_for_run("killed").records) == 3
        with batched_events(instance):
            instance.report_dagster_event(judged("2024-01-03"), "the retry")
        assert len(results(instance)) == 3
        assert len(instance.event_log_storage.get_records_for_run("the retry").records) == 1
    observed.found("both databases are whole, show what the log of the run has, and take the events of the retry")


def test_a_reader_that_continues_from_the_newest_event_misses_none_of_a_batch_in_postgres(
    on_postgres: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, seen = threading.Event(), threading.Event()
    index = BatchedEvents._index  # noqa: SLF001 - to hold its transaction open

    def slow(*arguments: Any) -> None:
        index(*arguments)
        taken.set()
        assert seen.wait(60)

    monkeypatch.setattr(BatchedEvents, "_index", slow)

    def write_batch() -> None:
        with batched_events(on_postgres):
            for day in MONTH[:5]:
                on_postgres.report_dagster_event(built(day), "batch")

    def write_one() -> None:
        on_postgres.report_dagster_event(built(MONTH[5]), "single")

    threads = [threading.Thread(target=write, daemon=True) for write in (write_batch, write_one)]
    threads[0].start()
    assert taken.wait(60)
    threads[1].start()
    wait_for(lambda: MONTH[5] in indexed(on_postgres), "the single event to be stored")
    newest = on_postgres.fetch_materializations(SHADOW, limit=1).records[0].storage_id
    before = indexed(on_postgres)
    seen.set()
    for thread in threads:
        thread.join(60)
    later = dg.AssetRecordsFilter(SHADOW, after_storage_id=newest)
    assert before == MONTH[:6]
    assert on_postgres.fetch_materializations(later, limit=99).records == []


CREATES = """
import sys
from dagster_batched_events import BatchedSqliteStorage

print("ready", flush=True)
sys.stdin.readline()
BatchedSqliteStorage.from_local(sys.argv[1])
"""


def test_processes_that_create_the_same_storage_at_once_leave_a_usable_one(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CREATES, str(tmp_path)]
    begun = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in begun:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    # All of them are loaded, so they meet in the folder.

    for process in begun:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[1] for process in begun]
    assert [process.returncode for process in begun] == [0, 0, 0, 0], answers
    for file in sorted(tmp_path.rglob("*.db")):
        with sqlite3.connect(file) as database:
            assert database.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,), file
