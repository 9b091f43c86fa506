"""Extracts in dataset.yaml: what is refused, what is filled in, and which days are extracted when."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.delivery import Delivery
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import to_extract
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.reading import reading_of
from backfill_assets.dataset.sources import Format
from backfill_assets_tests.harness.dataset_folders import YAML, loaded, problems, write_dataset

QUERY = "SELECT trip, fare, city FROM trips WHERE day = :day"
DATABASE = f'extract: {{database: "env:TRIPS_URL", query: "{QUERY}"}}'
SCRIPT = "extract: {file: extract.py}"
PLACE = "  format: csv\n  path: trips/{day}.csv\n"
DAY = dt.date(2024, 3, 30)
"""In Berlin its next day has 23 hours."""
OVER = dt.datetime(2024, 3, 30, 23, tzinfo=dt.UTC)
HOUR, ONE_DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def yaml_with(extract: str, *, zone: str = "UTC", place: str = "") -> str:
    text = YAML.replace(PLACE, f"{place}  {extract}\n").replace("start:", f"time_zone: {zone}\nstart:")
    assert extract in text
    return text


def write(root: Path, extract: str, script: str = "", **more: str) -> Path:
    folder = write_dataset(root, yaml=yaml_with(extract, **more))
    if script:
        (folder / "extract.py").write_text(script, encoding="utf-8")
    return folder


def berlin(root: Path, again: str = "never") -> Dataset:
    extract = DATABASE.replace("query:", f"again: {again}, query:")
    return loaded(write(root, extract, zone="Europe/Berlin")).dataset


def taken(dataset: Dataset, at: dt.datetime, day: dt.date = DAY) -> Delivery:
    path, reading = dataset.landing.template.filled(day), reading_of(dataset.landing)
    return Delivery(dataset.name, day, path, "f00d", 9, at, at, rows=3, order=1, reading=reading)


@pytest.mark.parametrize(
    ("extract", "message"),
    [
        ("extract: {}", "set database and query, or file: extract.py"),
        (f'{SCRIPT[:-1]}, query: "{QUERY}"}}', "set database and query, or file: extract.py"),
        ('extract: {database: "env:TRIPS_URL"}', "query is missing; set database and query together"),
        (f'extract: {{query: "{QUERY}"}}', "database is missing; set database and query together"),
        (DATABASE.replace("env:TRIPS_URL", "postgresql://bob:s3cret@db/x"), "write env:NAME"),
        (DATABASE.replace("env:TRIPS_URL", "env:trips"), "write env:NAME"),
        (DATABASE.replace(" WHERE day = :day", ""), "it does not use :day"),
        (DATABASE.replace("= :day", "= ':day'"), "it does not use :day"),
        (DATABASE.replace("WHERE day = :day", "/* :day */"), "it does not use :day"),
        (DATABASE.replace("= :day", "= 1::day"), "it does not use :day"),
        (DATABASE.replace(":day", ":day AND fare > :least"), "it has the parameter :least; there is only :day"),
        (DATABASE.replace("SELECT", "DELETE FROM trips; SELECT"), "an extract's query is one SELECT"),
        (DATABASE.replace("query:", "rate_limit: 5/d, query:"), "such as 5/s, 100/min or 30/h"),
        (DATABASE.replace("query:", "rate_limit: 0/s, query:"), "such as 5/s, 100/min or 30/h"),
        (DATABASE.replace("query:", "max_parallel: 0, query:"), "write a number of at least 1"),
        (DATABASE.replace("query:", "again: 3, query:"), "write never, or a duration such as 3d"),
        (DATABASE.replace("query:", "timeout: 0s, query:"), "give a duration above zero"),
        ("extract: {file: other.py}", "use 'extract.py'"),
        (SCRIPT, "source.extract.file: there is no extract.py; write one with def extract(day)"),
    ],
)
def test_an_extract_that_cannot_be_run_as_it_stands_is_refused(tmp_path: Path, extract: str, message: str) -> None:
    found = "\n".join(map(str, problems(write(tmp_path, extract))))
    assert message in found
    assert "s3cret" not in found


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("  format: csv\n", "source.format: an extract writes parquet"),
        ("  path: trips/*_{day}.parquet\n", "an extract writes one file per day"),
        ("  path: trips.parquet\n", "it does not contain the delivery day"),
    ],
)
def test_a_file_that_an_extract_cannot_write_is_refused(tmp_path: Path, place: str, message: str) -> None:
    assert message in "\n".join(map(str, problems(write(tmp_path, DATABASE, place=place))))


def test_format_and_path_are_filled_in_and_may_be_set(tmp_path: Path) -> None:
    source = loaded(write(tmp_path / "one", DATABASE)).dataset.landing
    assert (source.format, source.path) == (Format.parquet, "extracts/trips/{day}.parquet")
    own = loaded(write(tmp_path / "other", DATABASE, place="  path: mine/{yyyymmdd}\n")).dataset.landing
    assert own.template.filled(DAY) == "mine/20240330"


def test_a_source_without_an_extract_still_needs_format_and_path(tmp_path: Path) -> None:
    found = "\n".join(map(str, problems(write_dataset(tmp_path, yaml=YAML.replace(PLACE, "")))))
    assert "source.format is missing" in found
    assert "source.path is missing" in found


def test_an_extract_that_would_replace_the_files_of_another_dataset_is_refused(tmp_path: Path) -> None:
    place = "  path: trips/{day}.parquet\n"
    write(tmp_path, DATABASE, place=place)
    yaml = yaml_with(DATABASE, place=place).replace("name: trips", "name: rides")
    write_dataset(tmp_path, "rides", yaml)
    assert {problem.dataset for problem in load_folder(tmp_path).problems} == {"rides", "trips"}


def test_what_decides_about_the_rows_is_part_of_the_reading_and_limits_are_not(tmp_path: Path) -> None:
    def reading(name: str, extract: str, script: str = "", zone: str = "UTC") -> str:
        return reading_of(loaded(write(tmp_path / name, extract, script, zone=zone)).dataset.landing)

    plain = reading("plain", DATABASE)
    limits = "max_parallel: 3, rate_limit: 5/s, again: 2d, timeout: 1h, query:"
    assert reading("limits", DATABASE.replace("query:", limits)) == plain
    others = {
        plain,
        reading("query", DATABASE.replace(":day", ":day AND fare > 0")),
        reading("database", DATABASE.replace("TRIPS_URL", "OTHER_URL")),
        reading("zone", DATABASE, zone="Europe/Berlin"),
        reading("script", SCRIPT, "def extract(day): return []"),
        reading("script_2", SCRIPT, "def extract(day): return list()"),
    }
    assert len(others) == 6


def test_the_python_file_runs_as_it_was_hashed_and_counts_into_the_code_version(tmp_path: Path) -> None:
    def described(name: str, script: str) -> LoadedDataset:
        return loaded(write(tmp_path / name, SCRIPT, script))

    one, other = described("one", "def extract(day): ...\r\n"), described("two", "def extract(day): pass\n")
    assert one.code_version != other.code_version
    assert one.dataset.landing.extract is not None
    assert one.dataset.landing.extract.script == "def extract(day): ...\n"


def test_a_day_is_extracted_once_it_has_begun_and_until_it_has_landed(tmp_path: Path) -> None:
    dataset = berlin(tmp_path)
    days = (DAY - ONE_DAY, DAY, DAY + ONE_DAY)
    assert to_extract(dataset, days, (), OVER - HOUR) == (DAY - ONE_DAY, DAY)
    assert to_extract(dataset, days, (), OVER) == days
    landed = taken(dataset, OVER)
    assert to_extract(dataset, days, (landed,), OVER) == (DAY - ONE_DAY, DAY + ONE_DAY)
    for idle in (replace(landed, landings=0), replace(landed, withdrawn=True), replace(landed, path="trips/other")):
        assert DAY in to_extract(dataset, days, (idle,), OVER)


def test_a_day_that_was_extracted_before_it_was_over_is_extracted_again(tmp_path: Path) -> None:
    dataset = berlin(tmp_path)
    assert to_extract(dataset, (DAY,), (taken(dataset, OVER - HOUR),), OVER + ONE_DAY) == (DAY,)


def test_a_day_of_another_query_is_extracted_again(tmp_path: Path) -> None:
    before = berlin(tmp_path / "before")
    text = DATABASE.replace(":day", ":day AND fare > 0")
    now = loaded(write(tmp_path / "now", text, zone="Europe/Berlin")).dataset
    assert to_extract(now, (DAY,), (taken(before, OVER),), OVER) == (DAY,)


def test_a_young_day_is_extracted_again_only_where_that_is_asked(tmp_path: Path) -> None:
    dataset = berlin(tmp_path, "2d")
    landed = (taken(dataset, OVER + HOUR),)
    young, old = OVER + 2 * ONE_DAY - 2 * HOUR, OVER + 2 * ONE_DAY
    assert to_extract(dataset, (DAY,), landed, young) == ()
    assert to_extract(dataset, (DAY,), landed, young, again=True) == (DAY,)
    assert to_extract(dataset, (DAY,), landed, old, again=True) == ()


@given(st.integers(0, 366 * 86400), st.integers(0, 99))
def test_no_day_stays_as_it_was_while_it_lasted(tmp_path_factory: pytest.TempPathFactory, second: int, n: int) -> None:
    """Whenever a delivery was taken: it is final for its day only if the whole day lies before it."""
    dataset = _BERLIN.get("") or _BERLIN.setdefault("", berlin(tmp_path_factory.mktemp("any")))
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
    day = at.date() + (n % 5 - 2) * ONE_DAY
    now = at + n * HOUR
    final = to_extract(dataset, (day,), (taken(dataset, at, day),), now) == ()
    midnight = dt.datetime.combine(day + ONE_DAY, dt.time(), dataset.zone)
    begun = dt.datetime.combine(day, dt.time(), dataset.zone) <= now
    assert final == (at >= midnight or not begun)


_BERLIN: dict[str, Dataset] = {}
