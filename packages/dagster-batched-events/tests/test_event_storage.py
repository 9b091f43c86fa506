"""Dagster's event log in batches: the same events as in Dagster's own storage, with any process writing, reading or dying."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
import sqlalchemy as sa
import yaml
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent

from backfill_assets_tests.harness import postgres
from backfill_assets_tests.harness.waiting import wait_for
from dagster_batched_events import batched_events
from dagster_batched_events import batches as batches_module
from event_lab import (
    CHECKS,
    DAYS,
    KEY,
    SHADOW,
    batched_postgres,
    batched_sqlite,
    judged,
    open_instance,
    picture,
    results,
    run_chunk,
    stock_sqlite,
)

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MONTH = DAYS.get_partition_keys()[:15]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(batches_module.BATCH_VARIABLE, "10")
    monkeypatch.setattr(batches_module, "_SIZE", 7)


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


def elsewhere(home: Path) -> dict[str | None, str]:
    """The same, as another process sees it that uses Dagster's own storage."""
    script = (
        "import sys, json, dagster as dg\n"
        "from dagster._core.storage.event_log import SqliteEventLogStorage as S\n"
        f"key = dg.AssetCheckKey(dg.AssetKey({list(SHADOW.path)}), {KEY.name!r})\n"
        "found = S(sys.argv[1]).get_asset_check_execution_history(key, limit=999)\n"
        "print(json.dumps({r.partition: r.status.value for r in found}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(home / "state/history/runs")], check=True, capture_output=True, text=True
    )
    found: dict[str | None, str] = yaml.safe_load(done.stdout)
    return found


@pytest.mark.parametrize("fail_on", ["", "2024-01-07"])
def test_a_run_shows_the_same_as_in_dagsters_own_storage(tmp_path: Path, fail_on: str) -> None:
    shown = []
    for name, storage in (("stock", stock_sqlite), ("batched", batched_sqlite)):
        home = tmp_path / name
        with open_instance(home, storage(home)) as instance:
            shown.append(picture(instance, run_chunk(instance, MONTH, fail_on)))
    stock, batched = shown
    for part in stock:
        assert batched[part] == stock[part], part
    assert stock["in order"]
    assert len(stock["history"][CHECKS[0]]) == len(MONTH)
    assert ("FAILED" in str(stock["history"])) == bool(fail_on)


def test_a_run_shows_the_same_in_postgres(tmp_path: Path, postgres_url: str) -> None:
    from dagster_batched_events.postgres import BatchedPostgresEventLogStorage

    stock_config = {"postgres": {"postgres_url": postgres_url}}
    shown = []
    for name, config in (("stock", stock_config), ("batched", batched_postgres(postgres_url))):
        with open_instance(tmp_path / name, config) as instance:
            assert isinstance(instance.event_log_storage, BatchedPostgresEventLogStorage) == (name == "batched")
            shown.append(picture(instance, run_chunk(instance, MONTH, "2024-01-07")))
        engine = sa.create_engine(postgres_url)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
        engine.dispose()
    stock, batched = shown
    for part in stock:
        assert batched[part] == stock[part], part
    assert "FAILED" in str(stock["history"])


def test_a_webserver_answers_immediately_after_postgres_was_restarted(tmp_path: Path) -> None:
    with postgres.cluster() as url, open_instance(tmp_path / "home", batched_postgres(url)) as instance:
        instance.optimize_for_webserver(statement_timeout=9_000, pool_recycle=3600, max_overflow=5)

        def shown() -> tuple[object, ...]:
            return (
                instance.get_runs_count(),
                instance.all_instigator_state(),
                instance.get_latest_materialization_event(SHADOW),
            )

        before = shown()
        server = postgres.Killable(url)
        server.kill()
        server.start()
        assert shown() == before


def test_a_second_run_of_the_same_days_shows_beside_the_first(instance: dg.DagsterInstance) -> None:
    first, second = run_chunk(instance, MONTH, MONTH[3]), run_chunk(instance, MONTH)
    history = instance.event_log_storage.get_asset_check_execution_history(KEY, limit=99)
    assert Counter(record.run_id for record in history) == {first: len(MONTH), second: len(MONTH)}
    assert {record.status.value for record in history if record.run_id == second} == {"SUCCEEDED"}


def test_a_thread_sees_its_own_events_before_the_batch_is_full(instance: dg.DagsterInstance) -> None:
    with batched_events(instance):
        instance.report_dagster_event(judged("2024-01-01"), "run")
        assert results(instance) == {"2024-01-01": "SUCCEEDED"}
        assert len(instance.event_log_storage.get_records_for_run("run").records) == 1


def test_events_held_back_are_stored_before_what_follows_them(instance: dg.DagsterInstance) -> None:
    with batched_events(instance):
        instance.report_dagster_event(judged("2024-01-01"), "run")
        instance.report_engine_event("in between", run_id="run", job_name="job")
        instance.report_dagster_event(judged("2024-01-02"), "run")
        instance.report_dagster_event(judged("2024-01-03"), "other run")
    shown = [record.event_log_entry for record in instance.event_log_storage.get_records_for_run("run").records]
    assert [e.dagster_event_type for e in shown] == [
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
        dg.DagsterEventType.ENGINE_EVENT,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    ]
    assert len(instance.event_log_storage.get_records_for_run("other run").records) == 1


def test_the_last_of_two_results_of_a_check_counts(instance: dg.DagsterInstance) -> None:
    with batched_events(instance):
        instance.report_dagster_event(judged("2024-01-01", passed=False), "run")
        instance.report_dagster_event(judged("2024-01-01", passed=True), "run")
    assert results(instance) == {"2024-01-01": "SUCCEEDED"}
    assert len(instance.event_log_storage.get_records_for_run("run").records) == 2


@pytest.mark.parametrize("together", [True, False])
def test_a_later_result_without_a_run_is_the_newest(instance: dg.DagsterInstance, together: object) -> None:
    with batched_events(instance) if together else contextlib.nullcontext():
        instance.report_runless_asset_event(judged("2024-01-01").asset_check_evaluation_data)
        instance.report_dagster_event(judged("2024-01-01"), "run")
        instance.report_runless_asset_event(judged("2024-01-01", passed=False).asset_check_evaluation_data)
    assert results(instance) == {"2024-01-01": "FAILED"}
    (newest,) = instance.event_log_storage.get_latest_asset_check_execution_by_key([KEY]).values()
    assert (newest.run_id, newest.status.value) == ("", "FAILED")
    (info,) = instance.event_log_storage.get_asset_check_partition_info([KEY])
    assert info.latest_execution_status.value == "FAILED"


def test_ten_thousand_partitions_can_be_planned_and_judged(instance: dg.DagsterInstance) -> None:
    days = dg.DailyPartitionsDefinition("1997-01-01", end_date="2024-05-19")
    keys = days.get_partition_keys()
    planned = AssetCheckEvaluationPlanned(
        asset_key=SHADOW,
        check_name=CHECKS[0],
        partitions_subset=days.subset_with_partition_keys(keys).to_serializable_subset(),
    )
    event = DagsterEvent("ASSET_CHECK_EVALUATION_PLANNED", "job", event_specific_data=planned)
    entry = dg.EventLogEntry(None, 10, "", "run", time.time(), dagster_event=event)
    instance.event_log_storage.store_event_batch([entry])
    with batched_events(instance):
        for key in keys[:20]:
            instance.report_dagster_event(judged(key), "run")
    assert Counter(results(instance).values()) == {"PLANNED": 9_980, "SUCCEEDED": 20}


def test_threads_do_not_wait_for_each_other(instance: dg.DagsterInstance) -> None:
    def write(run: str) -> None:
        for day in MONTH:
            with batched_events(instance):
                instance.report_dagster_event(judged(day, check=run), run)
                instance.report_engine_event("x", run_id=run, job_name="job")
                instance.report_runless_asset_event(dg.AssetMaterialization(SHADOW, partition=day))
                instance.report_dagster_event(judged(day, check=run), run)

    threads = [threading.Thread(target=write, args=(f"run{n}",), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    counts = [len(instance.event_log_storage.get_records_for_run(f"run{n}").records) for n in range(4)]
    assert counts == [3 * len(MONTH)] * 4
    assert len(instance.fetch_materializations(SHADOW, limit=999).records) == 4 * len(MONTH)


def test_a_watcher_is_notified_of_events_that_another_storage_writes(instance: dg.DagsterInstance, home: Path) -> None:
    instance.report_engine_event("first", run_id="run", job_name="job")
    observed: list[str] = []
    instance.event_log_storage.watch("run", None, lambda entry, _cursor: observed.append(entry.message))  # type: ignore[arg-type]
    with dg.DagsterInstance.from_config(str(home)) as writer:
        # The writer stays open, so that the database file itself does not change: only its write-ahead log does.
        for text in ("second", "third"):
            writer.report_engine_event(text, run_id="run", job_name="job")
        wait_for(lambda: "third" in observed, "the third event to be watched")
    assert observed[:3] == ["first", "second", "third"]


def test_few_databases_of_runs_stay_open(instance: dg.DagsterInstance, home: Path) -> None:
    for n in range(20):
        instance.report_engine_event("x", run_id=f"run{n}", job_name="job")
    ours = {Path(f.path).name for f in psutil.Process().open_files() if f.path.startswith(str(home))}
    assert 1 < len([name for name in ours if name.startswith("run") and name.endswith(".db")]) <= 16
    assert len(instance.event_log_storage.get_records_for_run("run0").records) == 1


def test_a_wiped_storage_can_be_used_again(instance: dg.DagsterInstance) -> None:
    instance.report_dagster_event(judged("2024-01-01"), "run")
    instance.event_log_storage.wipe()
    assert results(instance) == {}
    instance.report_dagster_event(judged("2024-01-02"), "run")
    assert results(instance) == {"2024-01-02": "SUCCEEDED"}


def test_nothing_stays_open_after_the_instance(home: Path) -> None:
    with open_instance(home, batched_sqlite(home)) as instance:
        run_chunk(instance, MONTH[:2])
    assert [f.path for f in psutil.Process().open_files() if f.path.startswith(str(home))] == []
    assert list((home / "state/history/runs").glob("*-wal")) == []


def test_another_storage_is_left_as_it_is(home: Path) -> None:
    with open_instance(home, stock_sqlite(home)) as instance, batched_events(instance):
        instance.report_dagster_event(judged("2024-01-01"), "run")
        assert elsewhere(home) == {"2024-01-01": "SUCCEEDED"}


def test_a_process_with_dagsters_own_storage_reads_while_this_one_writes(
    instance: dg.DagsterInstance, home: Path
) -> None:
    with batched_events(instance):
        for day in MONTH[:7]:
            instance.report_dagster_event(judged(day), "run")
        assert elsewhere(home) == dict.fromkeys(MONTH[:7], "SUCCEEDED")
        instance.report_dagster_event(judged(MONTH[7]), "run")
    assert len(elsewhere(home)) == 8


def test_two_processes_write_at_once(home: Path) -> None:
    with open_instance(home, batched_sqlite(home)):
        pass
    command = [sys.executable, "-m", "event_lab", str(home), MONTH[0], MONTH[-1]]
    workers = [subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    ends = [worker.communicate(timeout=240) for worker in workers]
    runs = [out.decode().strip() for out, _ in ends]
    assert [worker.returncode for worker in workers] == [0, 0], ends
    with dg.DagsterInstance.from_config(str(home)) as instance:
        history = instance.event_log_storage.get_asset_check_execution_history(KEY, limit=999)
        assert Counter(record.run_id for record in history) == dict.fromkeys(runs, len(MONTH))
        assert {record.status.value for record in history} == {"SUCCEEDED"}
        assert Counter(r.run_id for r in instance.fetch_materializations(SHADOW, limit=999).records) == dict.fromkeys(
            runs, len(MONTH)
        )
        assert [len(instance.event_log_storage.get_records_for_run(run).records) for run in runs] == [
            len(instance.event_log_storage.get_records_for_run(runs[0]).records)
        ] * 2
