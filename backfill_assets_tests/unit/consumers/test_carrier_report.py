"""A Python asset downstream of a published table, through `DeltaTableResource`, without a JVM."""

from __future__ import annotations

import csv
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_deltalake import DeltaTableResource, LocalConfig

from backfill_assets.consumers.carrier_report import carrier_report
from backfill_assets.orchestration.definitions import published_table
from backfill_assets.orchestration.release_events import report_outside_runs
from backfill_assets_tests.unit.delta.flights import AIRLINES, DISTANCE, SEATS, Departure, Flights

DATASETS = Path(__file__).resolve().parents[2] / "dagster" / "datasets"
KEY = dg.AssetKey(["consumers", "carrier_report"])
UPSTREAM = dg.AssetKey(["flights", "published"])
MARCH, APRIL = dt.date(2013, 3, 31), dt.date(2013, 4, 1)
SOME: list[Departure] = [("B6", 1, 10), ("B6", 2, 25), ("B6", 3, None), ("UA", 4, -5)]
TWICE = [*SOME, *SOME]
LISTED = """
import json
from backfill_assets.definitions import defs
graph = defs.resolve_asset_graph()
print(json.dumps(sorted(key.to_user_string() for key in graph.get_all_asset_keys() if key.path[0] == "consumers")))
"""


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    return Flights(tmp_path)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports"


def materialize(
    reports: Path, table: DeltaTableResource, first: str, last: str | None = None
) -> Mapping[str, Mapping[str, Any]]:
    """Make the report of some months in one run; returns its metadata by month."""
    span = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
    result = dg.materialize([carrier_report(reports)], resources={"flights_table": table}, tags=span)
    made = [event.materialization for event in result.get_asset_materialization_events()]
    return {str(m.partition): {name: value.value for name, value in m.metadata.items()} for m in made}


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_a_month_is_summed_up_by_airline_and_says_from_which_release(flights: Flights, reports: Path) -> None:
    release = flights.release({MARCH: SOME, APRIL: SOME})
    made = materialize(reports, published_table(flights.application, "flights"), "2013-03")
    assert rows(reports / "2013-03.csv") == [
        {"carrier": "B6", "airline": AIRLINES["B6"], "departures": "3", "cancelled": "1",
         "mean_departure_delay": "17.5", "available_seat_miles": str(2 * SEATS * DISTANCE)},
        {"carrier": "UA", "airline": AIRLINES["UA"], "departures": "1", "cancelled": "0",
         "mean_departure_delay": "-5.0", "available_seat_miles": str(SEATS * DISTANCE)},
    ]  # fmt: skip
    observed = made["2013-03"]
    assert (observed["release"], observed["version"], observed["airlines"], observed["departures"]) == (
        release,
        1,
        2,
        4,
    )
    assert [file.name for file in reports.iterdir()] == ["2013-03.csv"]


def test_a_correction_changes_the_report_when_it_is_made_again(flights: Flights, reports: Path) -> None:
    table = published_table(flights.application, "flights")
    flights.release({MARCH: TWICE, APRIL: TWICE})
    materialize(reports, table, "2013-03", "2013-04")
    april = (reports / "2013-04.csv").read_text(encoding="utf-8")
    second = flights.release({MARCH: SOME})
    made = materialize(reports, table, "2013-03")
    assert [row["departures"] for row in rows(reports / "2013-03.csv")] == ["3", "1"]
    assert made["2013-03"]["release"] == second
    assert (reports / "2013-04.csv").read_text(encoding="utf-8") == april


def test_several_months_of_one_run_are_read_from_one_release(flights: Flights, reports: Path) -> None:
    flights.release({MARCH: TWICE})
    release = flights.release({MARCH: SOME, APRIL: TWICE})
    made = materialize(reports, published_table(flights.application, "flights"), "2013-03", "2013-05")
    assert {month: (observed["release"], observed["departures"]) for month, observed in made.items()} == {
        "2013-03": (release, 4), "2013-04": (release, 8), "2013-05": (release, 0),
    }  # fmt: skip
    assert rows(reports / "2013-05.csv") == []


def test_a_resource_with_a_version_holds_the_asset_to_an_older_release(flights: Flights, reports: Path) -> None:
    first = flights.release({MARCH: TWICE})
    flights.release({MARCH: SOME})
    version = flights.application.time_travel.to_release("flights", first).version
    held = DeltaTableResource(url=str(flights.home), storage_options=LocalConfig(), version=version)
    made = materialize(reports, held, "2013-03")
    assert (made["2013-03"]["release"], made["2013-03"]["departures"]) == (first, 8)


def test_a_release_makes_the_months_of_its_days_due_and_no_other(reports: Path) -> None:
    days = dg.DailyPartitionsDefinition("2013-01-01", end_date="2014-01-01", timezone="America/New_York")
    upstream = dg.AssetSpec(UPSTREAM, partitions_def=days)
    table = DeltaTableResource(url="unused", storage_options=LocalConfig())
    defs = dg.Definitions([upstream, carrier_report(reports)], resources={"flights_table": table})
    with dg.DagsterInstance.ephemeral() as instance:
        seen = dg.evaluate_automation_conditions(defs, instance)
        assert seen.get_num_requested(KEY) == 0
        for day in ("2013-03-30", "2013-03-31", "2013-04-01"):
            instance.report_runless_asset_event(dg.AssetMaterialization(UPSTREAM, partition=day))
        seen = dg.evaluate_automation_conditions(defs, instance, cursor=seen.cursor)
        assert seen.get_requested_partitions(KEY) == {"2013-03", "2013-04"}
        for month in ("2013-03", "2013-04"):
            instance.report_runless_asset_event(dg.AssetMaterialization(KEY, partition=month))
        assert dg.evaluate_automation_conditions(defs, instance, cursor=seen.cursor).get_num_requested(KEY) == 0


def test_a_rollback_makes_the_months_of_its_days_due_again_and_the_report_is_what_it_was(
    flights: Flights, reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = dg.DailyPartitionsDefinition("2013-01-01", end_date="2014-01-01", timezone="America/New_York")
    table = published_table(flights.application, "flights")
    upstream = dg.AssetSpec(UPSTREAM, partitions_def=days)
    defs = dg.Definitions([upstream, carrier_report(reports)], resources={"flights_table": table})
    (home := tmp_path / "dagster").mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}", encoding="utf-8")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    flights.release({MARCH: SOME, APRIL: SOME})
    materialize(reports, table, "2013-03")
    right = (reports / "2013-03.csv").read_text(encoding="utf-8")
    wrong = flights.release({MARCH: TWICE})
    materialize(reports, table, "2013-03")
    with dg.DagsterInstance.get() as instance:
        seen = dg.evaluate_automation_conditions(defs, instance)
        done = flights.application.rollback.execute(wrong, "every flight is there twice")
        assert report_outside_runs(flights.application, done)
        seen = dg.evaluate_automation_conditions(defs, instance, cursor=seen.cursor)
        assert seen.get_requested_partitions(KEY) == {"2013-03"}
        (record,) = instance.fetch_materializations(UPSTREAM, limit=9).records
    assert record.asset_materialization is not None
    said = {name: value.value for name, value in record.asset_materialization.metadata.items()}
    assert (record.partition_key, said["release"], said["undoes"]) == (str(MARCH), done.release, wrong)
    made = materialize(reports, table, "2013-03")
    assert made["2013-03"]["release"] == done.release
    assert (reports / "2013-03.csv").read_text(encoding="utf-8") == right


@pytest.mark.slow
@pytest.mark.parametrize(("more", "expected"), [({}, [KEY]), ({"BACKFILL_ASSETS_DATASETS": str(DATASETS)}, [])])
def test_only_an_installation_with_flights_has_the_report(
    flights: Flights, more: dict[str, str], expected: list[dg.AssetKey]
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LISTED],
        cwd=flights.home.parents[2], env={**flights.shell(), **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [key.to_user_string() for key in expected]
