"""The live pipeline: which jobs, schedules and runs there are; evaluated as Dagster does, without a daemon."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.core.days import day_range
from backfill_assets.core.errors import SourceError
from backfill_assets.evidence.late_deliveries import LateDay
from backfill_assets.orchestration.batches import apart
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.orchestration.sensors import LATE_TAG
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import ProcessRef, Registration
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.judged import dataset
from backfill_assets_tests.observed import Observed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
DATASETS = ROOT / "backfill_assets_tests" / "dagster" / "datasets"
OPEN = """\
name: rides
partition_column: day
time_zone: America/New_York
start: 2024-01-01
key: [day, ride]
live: {at: "04:30"}
columns:
  day: {type: date}
  ride: {type: long}
source:
  format: csv
  path: rides/{day}.csv
  columns: {day: date, ride: long}
"""
TOTALS = """\
name: ride_totals
partition_column: day
time_zone: America/New_York
start: 2024-01-01
key: [day]
columns:
  day: {type: date}
  rides: {type: long}
upstream: {rides: {}}
"""


@pytest.fixture
def application(tmp_path: Path) -> Application:
    for name, yaml, fact in (
        ("rides", OPEN, "SELECT day, ride FROM staging"),
        ("ride_totals", TOTALS, "SELECT day, count(*) AS rides FROM rides GROUP BY day"),
    ):
        folder = tmp_path / "datasets" / name
        folder.mkdir(parents=True)
        (folder / "dataset.yaml").write_text(yaml, encoding="utf-8")
        (folder / "fact.sql").write_text(fact, encoding="utf-8")
    (tmp_path / "datasets" / "rides" / "staging.sql").write_text("SELECT day, ride, _lineage FROM raw")
    (tmp_path / "state" / "sources").mkdir(parents=True)
    return Application(
        Settings.from_env(
            {
                "BACKFILL_ASSETS_STATE": str(tmp_path / "state"),
                "BACKFILL_ASSETS_DATASETS": str(tmp_path / "datasets"),
            }
        )
    )


def _tick(application: Application, moment: dt.datetime) -> Any:
    definitions = definitions_of(application)
    schedule = definitions.resolve_schedule_def("daily_rides")
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_schedule_context(
            instance, scheduled_execution_time=moment, repository_def=definitions.get_repository_def()
        ) as context,
    ):
        return schedule.evaluate_tick(context)


def test_a_release_group_has_one_live_job_with_all_its_assets(application: Application) -> None:
    job = definitions_of(application).resolve_job_def("live_rides")
    keys = {key.to_user_string() for key in job.asset_layer.selected_asset_keys}
    assert keys == {
        "rides/raw", "rides/staging", "rides/shadow", "rides/published", "ride_totals/shadow", "ride_totals/published",
    }  # fmt: skip
    assert job.tags["backfill_assets/live"] == "true"
    assert int(job.tags["dagster/priority"]) > 0


def test_a_draft_has_no_part_in_live_runs(tmp_path: Path, application: Application) -> None:
    file = tmp_path / "datasets" / "ride_totals" / "dataset.yaml"
    file.write_text(f"{file.read_text(encoding='utf-8')}state: draft\n", encoding="utf-8")
    definitions = definitions_of(Application(application.settings))
    job = definitions.resolve_job_def("live_rides")
    assert {key.path[0] for key in job.asset_layer.selected_asset_keys} == {"rides"}
    assert dg.AssetKey(["ride_totals", "shadow"]) in definitions.resolve_all_asset_keys()


def test_all_members_of_a_group_have_the_partitions_of_the_one_that_begins_first(
    tmp_path: Path, application: Application
) -> None:
    file = tmp_path / "datasets" / "ride_totals" / "dataset.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("2024-01-01", "2024-01-05"), encoding="utf-8")
    fresh = Application(application.settings)
    for asset in definitions_of(fresh).assets or ():
        for spec in asset.specs if isinstance(asset, dg.AssetsDefinition) else ():
            assert spec.partitions_def is not None
            assert spec.partitions_def.get_first_partition_key() == "2024-01-01"
    begin = _tick(fresh, dt.datetime(2024, 1, 2, 9, 30, tzinfo=dt.UTC))
    assert [request.partition_key for request in begin.run_requests or []] == ["2024-01-01"]


@pytest.mark.faults
@pytest.mark.parametrize("local", ["2024-03-10T04:30", "2024-03-11T04:30", "2024-11-04T04:30"])
def test_the_schedule_takes_yesterday_in_the_datasets_time_zone(
    observed: Observed, application: Application, local: str
) -> None:
    observed.injected(f"a tick of a schedule at {local} in New York")
    schedule = definitions_of(application).resolve_schedule_def("daily_rides")
    assert schedule.cron_schedule == "30 4 * * *"
    assert schedule.execution_timezone == "America/New_York"
    moment = dt.datetime.fromisoformat(local).replace(tzinfo=ZoneInfo("America/New_York"))
    data = _tick(application, moment)
    (request,) = data.run_requests or []
    assert request.partition_key == str(moment.date() - dt.timedelta(days=1))
    observed.found(f"the run of {request.partition_key}")


@pytest.mark.parametrize(("offset", "newest"), [(-2, "2024-03-08"), (0, "2024-03-10"), (1, "2024-03-10")])
def test_the_schedule_takes_the_newest_complete_day_that_is_a_partition(
    tmp_path: Path, application: Application, offset: int, newest: str
) -> None:
    for name in ("rides", "ride_totals"):
        file = tmp_path / "datasets" / name / "dataset.yaml"
        file.write_text(f"{file.read_text(encoding='utf-8')}end_offset: {offset}\n", encoding="utf-8")
    data = _tick(Application(application.settings), dt.datetime(2024, 3, 11, 9, 30, tzinfo=dt.UTC))
    (request,) = data.run_requests or []
    assert request.partition_key == newest


def test_the_schedule_waits_for_the_days_that_a_dataset_of_the_group_looks_ahead_to(
    tmp_path: Path, application: Application
) -> None:
    file = tmp_path / "datasets" / "rides" / "dataset.yaml"
    file.write_text(f"{file.read_text(encoding='utf-8')}lookahead_days: 2\n", encoding="utf-8")
    data = _tick(Application(application.settings), dt.datetime(2024, 3, 11, 9, 30, tzinfo=dt.UTC))
    assert [request.partition_key for request in data.run_requests or []] == ["2024-03-08"]


def test_the_schedule_lands_the_days_once_more_that_are_extracted_again(
    tmp_path: Path, application: Application
) -> None:
    file = tmp_path / "datasets" / "rides" / "dataset.yaml"
    extract = 'extract: {database: "env:RIDES_URL", query: "SELECT * FROM rides WHERE day = :day", again: 3d}'
    text = file.read_text(encoding="utf-8").replace("format: csv\n  path: rides/{day}.csv", extract)
    file.write_text(text, encoding="utf-8")
    data = _tick(Application(application.settings), dt.datetime(2024, 3, 11, 8, 30, tzinfo=dt.UTC))
    daily, *again = data.run_requests or []
    assert (daily.partition_key, daily.asset_selection) == ("2024-03-10", None)
    assert [(request.partition_key, request.asset_selection) for request in again] == [
        ("2024-03-09", [dg.AssetKey(["rides", "raw"])]), ("2024-03-08", [dg.AssetKey(["rides", "raw"])]),
    ]  # fmt: skip
    begin = _tick(Application(application.settings), dt.datetime(2024, 1, 2, 9, 30, tzinfo=dt.UTC))
    assert [request.partition_key for request in begin.run_requests or []] == ["2024-01-01"]
    # A day that has to wait for the days after it is taken at once.
    file.write_text(f"{text}lookahead_days: 1\n", encoding="utf-8")
    data = _tick(Application(application.settings), dt.datetime(2024, 3, 11, 8, 30, tzinfo=dt.UTC))
    daily, *again = data.run_requests or []
    assert [request.partition_key for request in (daily, *again)] == ["2024-03-09", "2024-03-10", "2024-03-08"]


def test_before_the_history_begins_nothing_is_run(application: Application) -> None:
    data = _tick(application, dt.datetime(2024, 1, 1, 9, 30, tzinfo=dt.UTC))
    assert not data.run_requests
    assert "begins on 2024-01-01" in str(data.skip_message)


def test_a_closed_history_has_a_live_job_but_no_schedule(tmp_path: Path) -> None:
    environ = {"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_DATASETS": str(DATASETS)}
    definitions = definitions_of(Application(Settings.from_env(environ)))
    assert definitions.resolve_job_def("live_tickets")
    assert [schedule.name for schedule in definitions.schedules or ()] == ["daily_sweep"]


def test_a_sweep_can_be_scheduled_and_is_off_at_first(application: Application) -> None:
    definitions = definitions_of(application)
    schedule = definitions.resolve_schedule_def("daily_sweep")
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.job_name, schedule.default_status) == ("sweep", dg.DefaultScheduleStatus.STOPPED)
    orphan = path_of(application.layout.published_path("rides")) / "_shadow" / "u_gone" / "1" / "x.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    assert definitions.resolve_job_def("sweep").execute_in_process().success
    assert not orphan.exists()


@pytest.mark.parametrize("by", ["command", "job"])
def test_a_sweep_deletes_old_logs_of_runs_if_it_is_asked_to(
    application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("BACKFILL_ASSETS_DAGSTER_STATE", str(tmp_path / "dagster"))
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    definitions = definitions_of(application)
    with dg.DagsterInstance.get() as instance:

        def swept() -> str:
            if by == "command":
                return CliRunner().invoke(app, ["sweep"]).output
            keeps = application.settings.model_copy(update={"keep_run_logs": dt.timedelta(days=90)})
            job = definitions_of(Application(keeps)).resolve_job_def("sweep")
            return log_of(instance, job.execute_in_process(instance=instance).run_id)

        for name in ("STATE", "DATASETS"):
            monkeypatch.setenv(f"BACKFILL_ASSETS_{name}", str(getattr(application.settings, name.lower())))
        run = definitions.resolve_job_def("sweep").execute_in_process(instance=instance).run_id
        assert log_of(instance, run)
        assert CliRunner().invoke(app, ["sweep"]).exit_code == 0
        monkeypatch.setenv("BACKFILL_ASSETS_KEEP_RUN_LOGS", "90d")
        assert "logs of" not in swept()
        with sqlite3.connect(tmp_path / "dagster/history/runs.db") as connection:
            connection.execute("UPDATE runs SET update_timestamp = '2000-01-01' WHERE run_id = ?", (run,))
        said = CliRunner().invoke(app, ["sweep", "--dry-run"]).output
        assert "logs of 1 run that ended more than 90d ago would go" in said
        assert "logs of 1 run that ended more than 90d ago are gone" in swept()
        assert log_of(instance, run) == ""
        assert instance.get_run_by_id(run)


def log_of(instance: dg.DagsterInstance, run: str) -> str:
    records = instance.event_log_storage.get_records_for_run(run).records
    return "\n".join(record.event_log_entry.user_message for record in records)


def test_logs_in_a_storage_of_dagsters_own_are_left_alone_and_all_else_is_swept(application: Application) -> None:
    keeps = Application(application.settings.model_copy(update={"keep_run_logs": dt.timedelta(days=90)}))
    orphan = path_of(application.layout.published_path("rides")) / "_shadow" / "u_gone" / "1" / "x.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    with pytest.raises(dg.Failure, match=r"old logs are left alone: .*BatchedSqliteStorage"):
        definitions_of(keeps).resolve_job_def("sweep").execute_in_process()
    assert not orphan.exists()


def test_the_sensor_says_that_nothing_is_late(application: Application) -> None:
    definitions = definitions_of(application)
    repository = definitions.get_repository_def()
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance, repository_def=repository) as context,
    ):
        data = definitions.resolve_sensor_def("late_deliveries").evaluate_tick(context)
    assert (data.run_requests or [], data.skip_message) == ([], "no late deliveries")


class Late:
    """Replaces the check of the files: these days are late."""

    def __init__(self, *days: LateDay, broken: str = "") -> None:
        self.days = days
        self.broken = broken

    def of(self, name: str) -> tuple[LateDay, ...]:
        if name == self.broken:
            raise SourceError("x.csv: fits two days")
        return tuple(day for day in self.days if day.dataset == name)


def _look(application: Application, *days: LateDay, after: Sequence[tuple[str, dg.DagsterRunStatus]] = ()) -> Any:
    """What the sensor says of these days, after runs for some of them (by their tag) with this status."""
    vars(application)["late_deliveries"] = Late(*days)
    return _evaluated(application, after)


def _evaluated(application: Application, after: Sequence[tuple[str, dg.DagsterRunStatus]] = ()) -> Any:
    definitions = definitions_of(application)
    repository = definitions.get_repository_def()
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance, repository_def=repository) as context,
    ):
        for name, status in after:
            create_run_for_test(instance, job_name="live_rides", status=status, tags={LATE_TAG: name})
        return definitions.resolve_sensor_def("late_deliveries").evaluate_tick(context)


def test_each_late_day_becomes_one_live_run_of_its_group(application: Application) -> None:
    first, second = dt.date(2024, 3, 1), dt.date(2024, 3, 2)
    data = _look(
        application,
        LateDay("rides", first, ("rides/2024-03-01.csv",), "d1gest"),
        LateDay("rides", second, ("rides/2024-03-02.csv",), "d1gest", "claimed by open unit u_1"),
    )
    (request,) = data.run_requests
    assert (request.job_name, request.partition_key) == ("live_rides", "2024-03-01")
    assert request.run_key == "rides:2024-03-01:d1gest"
    assert request.tags["backfill_assets/live"] == "true"


def test_a_missing_sources_folder_is_reported_and_hides_no_day(application: Application) -> None:
    path_of(application.settings.sources).rmdir()
    data = _look(application, LateDay("rides", dt.date(2024, 3, 1), (), "d1gest"))
    assert [request.partition_key for request in data.run_requests or ()] == ["2024-03-01"]
    data = _look(application)
    assert "there is no such folder, so nothing of rides can be landed" in str(data.skip_message)


def test_a_waiting_day_is_reported_with_what_it_waits_for(application: Application) -> None:
    held = LateDay("rides", dt.date(2024, 3, 1), ("rides/2024-03-01.csv",), "d1gest", "on hold: rolled back")
    data = _look(application, held)
    assert not data.run_requests
    assert data.skip_message == "rides 2024-03-01 (rides/2024-03-01.csv) waits: on hold: rolled back"


def test_a_flood_of_late_days_is_run_in_portions(application: Application) -> None:
    days = [LateDay("rides", dt.date(2024, 3, i), ("f",), "d") for i in range(1, 20)]
    assert len(_look(application, *days).run_requests) == 5


def test_a_gap_that_a_live_run_is_working_on_is_left_to_it(application: Application) -> None:
    gap = LateDay("rides", dt.date(2024, 3, 1), ("rides/2024-03-01.csv",), "d1gest", gap=True)
    vars(application)["late_deliveries"] = Late(gap)
    definitions = definitions_of(application)
    repository = definitions.get_repository_def()
    tags = {"backfill_assets/live": "true", "dagster/partition": "2024-03-01"}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance, repository_def=repository) as context,
    ):
        sensor = definitions.resolve_sensor_def("late_deliveries")
        daily = create_run_for_test(instance, job_name="live_rides", status=dg.DagsterRunStatus.STARTED, tags=tags)
        assert not sensor.evaluate_tick(context).run_requests
        # For example refused because of a claim.
        instance.report_run_failed(daily)
        (request,) = sensor.evaluate_tick(context).run_requests or []
        assert (request.partition_key, request.run_key) == ("2024-03-01", "rides:2024-03-01:d1gest")


def test_late_days_wait_and_lose_no_try_while_the_server_is_registered_by_another_host(
    application: Application,
) -> None:
    folder = SparkServer(application.settings).folder
    folder.root.mkdir(parents=True)
    itself = ProcessRef.of(os.getpid())
    folder.write(Registration(host="elsewhere", server=itself, watcher=itself, port=15002, token="t", configuration={}))
    data = _look(application, _late(1, "f"))
    assert not data.run_requests
    assert (
        f"1 day to run, waiting for the Spark server: The Spark server of {folder.root} is registered by the host elsewhere"
        in data.skip_message
    )
    folder.remove()
    assert len(_look(application, _late(1, "f")).run_requests) == 1


def _late(number: int, *files: str) -> LateDay:
    return LateDay("rides", dt.date(2024, 3, number), files, "d")


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED]
)
def test_days_that_were_run_already_do_not_hold_back_others(
    application: Application, status: dg.DagsterRunStatus
) -> None:
    days = [_late(i, "f") for i in range(1, 10)]
    data = _look(application, *days, after=[(f"rides:{day.day}:d", status) for day in days[:7]])
    assert [request.partition_key for request in data.run_requests] == ["2024-03-08", "2024-03-09"]


def test_a_run_that_failed_before_landing_is_asked_for_again_three_times(application: Application) -> None:
    keys = []
    for failures in range(6):
        failed = [("rides:2024-03-01:d", dg.DagsterRunStatus.FAILURE)] * failures
        data = _look(application, _late(1, "f"), after=failed)
        keys.append([request.run_key for request in data.run_requests or []])
    name = "rides:2024-03-01:d"
    assert keys == [[name], [f"{name}:1"], [f"{name}:2"], [f"{name}:3"], [], []]


def test_a_run_that_failed_after_landing_is_not_repeated(application: Application) -> None:
    failed = [("rides:2024-03-01:d", dg.DagsterRunStatus.FAILURE)]
    assert not _look(application, _late(1), after=failed).run_requests
    assert _look(application, _late(1)).run_requests[0].tags["backfill_assets/late_files"] == "0"


def test_a_dataset_that_cannot_be_checked_does_not_stop_the_others(application: Application) -> None:
    vars(application)["late_deliveries"] = Late(_late(1, "f"), broken="ride_totals")
    (request,) = _evaluated(application).run_requests
    assert request.partition_key == "2024-03-01"
    vars(application)["late_deliveries"] = Late(broken="rides")
    data = _evaluated(application)
    assert not data.run_requests
    assert data.skip_message == "rides: x.csv: fits two days"


def test_a_day_that_a_provisional_one_awaits_is_a_batch_of_its_own() -> None:
    said = {"lookahead_days": 2, "provisional": {"may_change": ["fare"]}, "live": {"at": "03:00"}, "time_zone": "UTC"}
    described, days = dataset(**said), day_range(dt.date(2024, 3, 8), dt.date(2024, 3, 10))
    night, morning = (dt.datetime(2024, 3, 10, hour, tzinfo=dt.UTC) for hour in (2, 3))
    assert apart(described, days, night) == (days[:1], days[1:])
    assert apart(described, days[1:], night) == (days[1:2], days[2:])
    assert apart(described, days, morning) == (days[:2], days[2:])
    assert apart(dataset(**said | {"provisional": None}), days, night) == (days, ())
