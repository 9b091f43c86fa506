"""What dataset.yaml may say about golden sources."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from backfill_assets.core.evidence import Severity
from backfill_assets_tests.harness.dataset_folders import YAML, loaded, problems, write_dataset

GOLDEN = """\
golden:
  finance_totals:
    description: What finance booked.
    file: {format: csv, path: golden/finance.csv, columns: {booked_on: date, net: "decimal(18,2)"}}
    sql: SELECT booked_on AS trip_date, sum(net) AS fare FROM finance_totals GROUP BY ALL
    ours: SELECT trip_date, sum(fare) AS fare FROM trips GROUP BY ALL
    key: [trip_date]
    columns: {fare: {tolerance: 0.01}}
    severity: warn
    max_mismatches: 3
  trips_of_the_source:
    table: golden/trips
    key: [trip_date, trip]
"""
FILE = "file: {format: csv, path: g.csv, columns: {trip_date: date, trip: long, fare: double}}"


def with_golden(one: str, name: str = "finance") -> str:
    return f"{YAML}golden:\n  {name}: {{{one}}}\n"


def test_golden_sources_are_read_with_their_grain_and_their_severity(tmp_path: Path) -> None:
    found = loaded(write_dataset(tmp_path, yaml=YAML + GOLDEN)).dataset.golden
    one, other = found["finance_totals"], found["trips_of_the_source"]
    assert (one.columns["fare"].tolerance, one.max_mismatches, one.key) == (Decimal("0.01"), 3, ("trip_date",))
    assert (one.severity, one.blocks) == (Severity.warn, False)
    assert (other.table, other.columns, other.max_mismatches, other.blocks) == ("golden/trips", {}, 0, True)


def test_a_dataset_without_golden_sources_has_none(tmp_path: Path) -> None:
    assert loaded(write_dataset(tmp_path)).dataset.golden == {}


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (f"{FILE}, key: [trip]", "golden.finance.key has no partition column 'trip_date'; rows are compared day by day"),
        (f"{FILE}, key: [trip_date, trip, trip]", "golden.finance.key names 'trip' twice; once is enough"),
        (f"{FILE}, sql: SELECT 1, key: [trip_date, ride]", "'ride', which is not declared in the dataset's columns"),
        (
            f"{FILE}, ours: SELECT * FROM trips, key: [trip_date, ride]",
            "golden.finance.key names 'ride', which is not declared in file.columns; add it there, or set sql",
        ),
        (
            f"{FILE}, key: [trip_date], columns: {{toll: {{}}}}, sql: SELECT 1",
            "golden.finance.columns.toll: 'toll' is not declared in the dataset's columns; add it there, or set ours",
        ),
        (
            f"{FILE}, key: [trip_date], columns: {{trip_date: {{}}}}",
            "golden.finance.columns.trip_date is part of the key, which must be equal; name it in one of them",
        ),
        (f"{FILE}, key: []", "golden.finance.key"),
        (f"{FILE}, table: golden/trips, key: [trip_date]", "file and table are both set; keep one of them"),
        ("key: [trip_date]", "set file, table or sql: what the days are compared with"),
        ("table: ../trips, key: [trip_date]", "use a path relative to the sources folder, without '..'"),
        (f"{FILE}, key: [trip_date], columns: {{fare: {{tolerance: -1}}}}", "golden.finance.columns.fare.tolerance"),
        (f"{FILE}, key: [trip_date], max_mismatches: -1", "golden.finance.max_mismatches"),
        (f"{FILE}, key: [trip_date], severity: warn, blocking: true", "severity warn and blocking true contradict"),
        (f"{FILE}, key: [trip_date], sql: DROP TABLE finance", "golden.finance.sql: the statement begins with 'DROP'"),
        (f"{FILE}, key: [trip_date], ours: SELECT 1; SELECT 2", "golden.finance.ours: something follows the semicolon"),
    ],
)  # fmt: skip
def test_a_wrong_golden_source_is_refused_with_its_line(tmp_path: Path, one: str, message: str) -> None:
    yaml = with_golden(one)
    (problem,) = problems(write_dataset(tmp_path, yaml=yaml))
    assert message in str(problem)
    assert f"dataset.yaml:{len(yaml.splitlines())}: " in str(problem)


@pytest.mark.parametrize(
    ("name", "taken"),
    [("cities", "a reference"), ("trips", "the dataset itself"), ("staging", "a table of the models")],
)
def test_a_name_that_queries_know_already_is_refused(tmp_path: Path, name: str, taken: str) -> None:
    (problem,) = problems(write_dataset(tmp_path, yaml=with_golden(f"{FILE}, key: [trip_date]", name)))
    assert f"golden.{name}: {taken} has that name already; rename one" in str(problem)


def test_the_name_of_an_upstream_is_taken_as_well(tmp_path: Path) -> None:
    yaml = with_golden(f"{FILE}, key: [trip_date]", "rides") + "upstream:\n  rides: {}\n"
    (problem,) = problems(write_dataset(tmp_path, yaml=yaml))
    assert "golden.rides: an upstream has that name already; rename one" in str(problem)
