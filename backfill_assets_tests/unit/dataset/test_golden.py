"""Golden cases: how they are read, laid out and compared."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backfill_assets
from backfill_assets.core.errors import DatasetError
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import discover
from backfill_assets.testing.cases import collect_cases, lay_out
from backfill_assets.testing.tables import Table, differences, read_table
from backfill_assets_tests.harness.dataset_folders import YAML, write_dataset

DAY = dt.date(2024, 1, 1)
RAW = "trip,fare,city\n1,2.50,Bonn\n"
EXPECTED = "trip_date,trip,fare,city\n2024-01-01,1,2.50,\n"


def write_case(root: Path, files: dict[str, str], yaml: str = YAML) -> Path:
    folder = write_dataset(root, yaml=yaml) / "cases" / "one"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_every_dataset_of_the_package_has_a_case() -> None:
    folder = Path(backfill_assets.__file__).parent / "datasets"
    names = {path.parent.name for path in folder.glob("*/dataset.yaml")}
    assert {case.loaded.name for case in collect_cases(folder)} == names


def test_a_case_with_one_file_is_delivered_on_the_day_of_its_expected_rows(tmp_path: Path) -> None:
    write_case(tmp_path, {"raw.csv": RAW, "expected.csv": EXPECTED, "cities.csv": "city\nBonn\n"})
    (case,) = collect_cases(tmp_path)
    assert case.id == "trips/one"
    assert case.days == (DAY,)
    assert [(d.day, d.delivered_at) for d in case.deliveries] == [(DAY, dt.datetime(2024, 1, 2, 6, tzinfo=dt.UTC))]
    assert case.expected is not None
    assert case.expected.rows == ({"trip_date": DAY, "trip": 1, "fare": Decimal("2.50"), "city": None},)
    assert case.expected_staging is None


def test_deliveries_arrive_in_the_order_of_their_names_and_late_days_reach_back(tmp_path: Path) -> None:
    yaml = YAML.replace("path: trips/{day}.csv", "path: trips/{day}/*.csv\n  late_days: 1")
    yaml += "staging: {deduplicate: latest_delivery}\n"
    write_case(tmp_path, {"raw/2024-01-02/b.csv": RAW, "raw/2024-01-02/a.csv": RAW, "expected.csv": EXPECTED}, yaml)
    (case,) = collect_cases(tmp_path)
    assert [d.file.name for d in case.deliveries] == ["a.csv", "b.csv"]
    assert case.deliveries[0].delivered_at < case.deliveries[1].delivered_at
    assert case.days == (DAY, dt.date(2024, 1, 2))


@pytest.mark.parametrize(
    ("path", "first", "last"), [("{day}.csv", 1, 2), ("{yyyymm}.csv", 1, 31)], ids=["daily", "monthly"]
)
def test_a_case_may_have_days_outside_the_history(path: str, first: int, last: int, tmp_path: Path) -> None:
    yaml = YAML.replace("path: trips/{day}.csv", f"path: trips/{path}")
    yaml = yaml.replace("start: 2024-01-01", "start: 2026-01-01\nend: 2026-01-31")
    write_case(tmp_path, {"raw/2024-01-01/a.csv": RAW, "raw/2024-01-02/a.csv": RAW, "expected.csv": EXPECTED}, yaml)
    (case,) = collect_cases(tmp_path)
    assert case.days == tuple(DAY.replace(day=number) for number in range(first, last + 1))


def test_a_case_is_laid_out_where_the_dataset_looks_for_it(tmp_path: Path) -> None:
    yaml = (
        YAML.replace("path: trips/{day}.csv", "path: trips/*/{day}*.csv") + "staging: {deduplicate: latest_delivery}\n"
    )
    write_case(tmp_path / "d", {"raw/2024-01-01/a.csv": RAW, "expected.csv": EXPECTED}, yaml)
    (case,) = collect_cases(tmp_path / "d")
    sources = tmp_path / "sources"
    lay_out(case, sources)
    (file,) = sources.glob("trips/*/2024-01-01*.csv")
    assert file.read_text() == RAW
    assert file.stat().st_mtime == case.deliveries[0].delivered_at.timestamp()
    assert (sources / "cities.csv").read_text() == "city\n"


def test_a_case_of_a_parquet_source_is_written_as_csv(tmp_path: Path) -> None:
    yaml = YAML.replace("format: csv\n  path: trips/{day}.csv", "format: parquet\n  path: trips/{day}.parquet")
    yaml = yaml.replace("    format: csv\n    path: cities.csv", "    format: parquet\n    path: cities.parquet")
    write_case(tmp_path / "d", {"raw.csv": RAW + "2,,\n", "expected.csv": EXPECTED}, yaml)
    (case,) = collect_cases(tmp_path / "d")
    lay_out(case, tmp_path / "sources")
    assert pq.read_table(tmp_path / "sources" / "trips" / "2024-01-01.parquet").to_pylist() == [
        {"trip": 1, "fare": Decimal("2.50"), "city": "Bonn"},
        {"trip": 2, "fare": None, "city": None},
    ]
    assert pq.read_table(tmp_path / "sources" / "cities.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("path", "case", "place"),
    [
        ("trips/{yyyy}/{mm}/{dd}/*.csv", "raw/2024-01-01/1.csv", "trips/2024/01/01/1.csv"),
        ("trips-{yyyymmdd}*.csv.gz", "raw/2024-01-01/1.csv", "trips-20240101_1_.csv.gz"),
        ("trips-{yyyymmdd}*.csv.gz", "raw/2024-01-01/trips-20240101-b.csv", "trips-20240101-b.csv.gz"),
        ("{yyyymmdd}[0-9][ab]?.csv.zst", "raw/2024-01-01/a.csv", "202401010ax.csv.zst"),
        ("*{day}.csv", "raw/2024-01-01/a.csv", "a2024-01-01.csv"),
    ],
)
def test_a_case_has_the_name_and_the_compression_that_the_path_asks_for(
    path: str, case: str, place: str, tmp_path: Path
) -> None:
    yaml = YAML.replace("path: trips/{day}.csv", f"path: '{path}'") + "staging: {deduplicate: latest_delivery}\n"
    yaml = yaml.replace(
        "path: cities.csv\n    columns: {city: string}",
        "path: cities.csv.gz\n    encoding: latin-1\n    columns: {city: {from: 'Stra\u00dfe, \"x\"', type: string}}",
    )
    write_case(tmp_path / "d", {case: RAW, "expected.csv": EXPECTED}, yaml)
    (golden,) = collect_cases(tmp_path / "d")
    layout = Layout(OnDisk(tmp_path / "warehouse"), OnDisk(tmp_path / "sources"))
    lay_out(golden, path_of(layout.sources))
    assert [file.path for file in discover(golden.loaded, layout, [DAY])] == [place]
    with pa.input_stream(str(path_of(layout.sources) / place), compression="detect") as file:
        assert file.read() == RAW.encode()
    reference = golden.loaded.dataset.references["cities"]
    require_columns((layout.sources / "cities.csv.gz"), "cities.csv.gz", reference)


def test_a_case_of_a_parquet_source_has_the_headers_of_its_files(tmp_path: Path) -> None:
    yaml = YAML.replace("format: csv\n  path: trips/{day}.csv", "format: parquet\n  path: trips/{day}.parquet")
    yaml = yaml.replace("    trip: long", "    trip: {from: Trip No, type: long}")
    write_case(tmp_path / "d", {"raw.csv": RAW, "expected.csv": EXPECTED}, yaml)
    (case,) = collect_cases(tmp_path / "d")
    lay_out(case, tmp_path / "sources")
    file = tmp_path / "sources" / "trips" / "2024-01-01.parquet"
    assert pq.read_table(file).column_names == ["Trip No", "fare", "city"]
    require_columns(OnDisk(file), "a", case.loaded.dataset.landing)


def test_two_files_for_one_place_are_refused(tmp_path: Path) -> None:
    files = {"raw/2024-01-01/a.csv": RAW, "raw/2024-01-01/b.csv": RAW, "expected.csv": EXPECTED}
    write_case(tmp_path / "d", files)
    (case,) = collect_cases(tmp_path / "d")
    with pytest.raises(DatasetError, match="has room for one file a day"):
        lay_out(case, tmp_path / "sources")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"raw.csv": RAW}, "there is no expected.csv"),
        ({"expected.csv": EXPECTED}, r"write either raw.csv or raw/<delivery day>/"),
        ({"raw.csv": RAW, "raw/2024-01-01/a.csv": RAW, "expected.csv": EXPECTED}, "write either raw.csv or raw/"),
        ({"raw.csv": RAW, "expected.csv": "trip\n1\n"}, "its delivery day is the only trip_date of the expected rows"),
        ({"raw/monday/a.csv": RAW, "expected.csv": EXPECTED}, "the delivery day 'monday' is not an ISO date"),
        ({"raw/2024-01-01/a.txt": RAW, "expected.csv": EXPECTED}, r"has no \*.csv file"),
        ({"raw.csv": RAW, "expected.csv": EXPECTED, "towns.csv": ""}, "towns.csv: is no file of a case"),
        (
            {"raw.csv": RAW, "expected.csv": "trip_date,ride\n"},
            "expected.csv:1: no column 'ride'; known columns: trip_date",
        ),
        ({"raw.csv": RAW, "expected.csv": "trip,trip\n"}, "must name each column once"),
        ({"raw.csv": RAW, "expected.csv": ""}, "must name each column once; found: nothing"),
        ({"raw.csv": RAW, "expected.csv": "trip,fare\n1\n"}, "expected.csv:2: 1 cells for 2 columns"),
        ({"raw.csv": RAW, "expected.csv": "trip\none\n"}, "expected.csv:2: trip = 'one' is no long"),
        ({"raw.csv": RAW, "expected.csv": "fare\nx\n"}, "fare = 'x' is no decimal"),
    ],
)
def test_a_case_that_is_not_as_it_must_be_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    write_case(tmp_path, files)
    with pytest.raises(DatasetError, match=message):
        collect_cases(tmp_path)


def test_a_dataset_with_problems_fails_the_collection(tmp_path: Path) -> None:
    write_dataset(tmp_path, yaml="name: trips")
    with pytest.raises(DatasetError, match="start is missing"):
        collect_cases(tmp_path)


def test_cells_are_read_by_their_types(tmp_path: Path) -> None:
    types = {"b": "boolean", "i": "integer", "d": "double", "t": "timestamp", "s": "string", "n": "decimal(4,2)"}
    file = tmp_path / "t.csv"
    file.write_text('b,i,d,t,s,n\ntrue,-3,0.5,2024-01-01T01:00:00+01:00,"a,""b""",1.20\nNA,NA,NA,NA,NA,NA\n')
    midnight = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    assert read_table(file, types, null="NA").rows == (
        {"b": True, "i": -3, "d": 0.5, "t": midnight, "s": 'a,"b"', "n": Decimal("1.20")},
        dict.fromkeys(types),
    )
    file.write_text("b\nyes\n")
    with pytest.raises(DatasetError, match=r"t.csv:2: b = 'yes' is no boolean"):
        read_table(file, types)


def test_rows_are_compared_as_a_multiset_in_the_expected_columns() -> None:
    expected = Table(("trip", "fare"), ({"trip": 1, "fare": Decimal("2.5")}, {"trip": 1, "fare": Decimal("2.5")}))
    same = {"trip": 1, "fare": Decimal("2.50"), "more": "x"}
    assert differences(expected, [same, same], ["trip"]) == ()
    assert differences(expected, [same], ["trip"]) == ("expected, but not found: trip=1: fare=2.5",)
    assert differences(expected, [same, same, {"trip": 2}], ["trip"]) == ("found, but not expected: trip=2: fare=None",)


def test_times_are_compared_as_moments_and_floats_without_their_last_digits() -> None:
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    expected = Table(("t", "x"), ({"t": moment, "x": 0.3},))
    local = moment.astimezone().replace(tzinfo=None)
    assert differences(expected, [{"t": local, "x": 0.1 + 0.2}], []) == ()
    assert differences(expected, [{"t": local + dt.timedelta(seconds=1), "x": 0.3}], [])
    assert differences(expected, [{"t": local, "x": 0.31}], [])
