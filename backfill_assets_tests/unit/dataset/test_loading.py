"""Loading dataset folders: what is accepted, and every refusal with its place, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

import backfill_assets
from backfill_assets.core.errors import DatasetError
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Language, ModelLayer
from backfill_assets_tests.harness.dataset_folders import FACT, YAML, loaded, problems, spoiled, write_dataset
from backfill_assets_tests.unit.hostile.watch import helpful

DATASETS = Path(backfill_assets.__file__).parent / "datasets"


def test_every_dataset_that_comes_with_the_package_can_be_used() -> None:
    catalog = load_folder(DATASETS)
    assert catalog.problems == ()
    assert "flights" in catalog.datasets


def test_a_folder_is_loaded_completely(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "cases" / "one").mkdir(parents=True)
    dataset = loaded(folder)
    assert dataset.name == "trips"
    assert dataset.dataset.columns["fare"].type == "decimal(10,2)"
    assert (dataset.fact.layer, dataset.fact.language, dataset.fact.text) == (ModelLayer.fact, Language.sql, FACT)
    assert dataset.staging_model is dataset.staging
    assert [case.name for case in dataset.cases] == ["one"]


def test_a_column_may_name_its_own_header(tmp_path: Path) -> None:
    text = YAML.replace("    trip: long", '    trip: {from: "TRIP", type: long}')
    assert text != YAML
    assert loaded(write_dataset(tmp_path, "trips", text)).dataset.landing.headers["trip"] == "trip"


def test_a_wrong_dataset_keeps_no_other_from_loading(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_dataset(tmp_path, "broken", "name: [")
    (tmp_path / "empty").mkdir()
    (tmp_path / "_notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.md").touch()
    catalog = load_folder(tmp_path)
    assert list(catalog.datasets) == ["trips"]
    assert {problem.dataset for problem in catalog.problems} == {"broken", "empty"}


def test_asking_for_a_wrong_dataset_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_dataset(tmp_path, "broken", "name: broken")
    catalog = load_folder(tmp_path)
    assert catalog.dataset("trips").name == "trips"
    with pytest.raises(DatasetError, match="start is missing"):
        catalog.dataset("broken")
    with pytest.raises(DatasetError, match="no dataset 'nothing'; choose one of: trips"):
        catalog.dataset("nothing")
    with pytest.raises(DatasetError, match="start is missing"):
        catalog.require_all()


def test_a_folder_of_datasets_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot be read \(No such file.*BACKFILL_ASSETS_DATASETS"):
        load_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("type: long", "type: int", "dataset.yaml:7: columns.trip.type = 'int': use string, boolean"),
        ("type: string", "type: 'decimal(39,2)'", "columns.city.type = 'decimal(39,2)': use string"),
        ("measures:", "mesures:", "unknown key mesures; did you mean measures? There are: name, description"),
        (
            "nullable: false",
            "nulable: false",
            "dataset.yaml:8: unknown key columns.fare.nulable; did you mean nullable?",
        ),
        ("nullable: false", "qqq: 1", "unknown key columns.fare.qqq; there are: type, nullable, description"),
        ("nullable: false", "nullable: no", "columns.fare.nullable = 'no': write true or false"),
        ("start: 2024-01-01\n", "", "dataset.yaml:1: start is missing; add it"),
        ("start: 2024-01-01", "start: 20240101", "start = 20240101: write an ISO date"),
        ("start: 2024-01-01", "start: 2024-02-30", "start = '2024-02-30': write an ISO date"),
        ("start: 2024-01-01", "start: 2024-01-02\nend: 2024-01-01", "end 2024-01-01 is before start 2024-01-02"),
        ("start: 2024-01-01", "start: 2024-01-01\ntime_zone: Berlin", "time_zone = 'Berlin': use a name of the IANA"),
        (
            "start: 2024-01-01",
            "start: 2024-01-01\nchunk_days: 0",
            "chunk_days = 0: write a number of at least 1",
        ),
        ("start: 2024-01-01", "start: 2024-01-01\nchunk_days: many", "chunk_days = 'many': write a whole number"),
        (
            "start: 2024-01-01",
            "start: 2024-01-01\npublication: maybe",
            "publication = 'maybe': use 'auto' or 'approval'",
        ),
        (
            "start: 2024-01-01",
            "start: 2024-01-01\nretention: {keep_for: 3 weeks}",
            "retention.keep_for = '3 weeks': write a duration",
        ),
        ("start: 2024-01-01", "start: 2024-01-01\nowner: 12", "owner = 12: write text"),
        ("key: [trip_date, trip]", "key: trip", "dataset.yaml:4: key = 'trip': write a list"),
        ("key: [trip_date, trip]", "key: []", "key = an empty list: name at least 1"),
        ("key: [trip_date, trip]", "key: [trip, trip]", "key names 'trip' 2 times"),
        ("key: [trip_date, trip]", "key: [ride]", "dataset.yaml:4: key names 'ride', which is not declared in columns"),
        ("partition_column: trip_date", "partition_column: day", "partition_column 'day' is not declared in columns"),
        (
            "partition_column: trip_date",
            "partition_column: trip",
            "dataset.yaml:7: partition_column 'trip' must have the type date",
        ),
        (
            "trip: {type: long}",
            "trip: {type: long}\n  unit: {type: string}",
            "dataset.yaml:8: columns declares 'unit', a name reserved",
        ),
        (
            "trip: {type: long}",
            "trip: {type: long}\n  Bad-Name: {type: string}",
            "dataset.yaml:8: columns: the name 'Bad-Name' is not a safe name",
        ),
        ("    trip: long", "    trip: int", "dataset.yaml:14: source.columns.trip = 'int': use string, boolean"),
        (
            "    trip: long",
            "    trip: 5",
            "source.columns.trip = 5: write a type, such as string, or {from: HEADER, type: TYPE}",
        ),
        ("    trip: long", "    trip: {from: Trip no}", "source.columns.trip.type is missing; add it"),
        (
            "    trip: long",
            "    trip: {form: Trip no, type: long}",
            "unknown key source.columns.trip.form; did you mean from?",
        ),
        ("    trip: long", "    trip: {from: 5, type: long}", "source.columns.trip.from = 5: write text"),
        (
            "    trip: long",
            "    trip: {from: City, type: long}",
            "dataset.yaml:14: columns.trip.from 'City' is the name of another column, and readers would mix them up; rename that",
        ),
        (
            "    trip: long\n    fare: decimal(10,2)",
            "    trip: {from: No 1, type: long}\n    fare: {from: no 1, type: long}",
            "dataset.yaml:15: columns.fare.from 'no 1': trip is read from there, too",
        ),
        (
            "    trip: long\n    fare: decimal(10,2)",
            "    trip: {from: No, type: long}\n    fare: {from: Trip, type: long}",
            "columns.fare.from 'Trip' is the name of another column",
        ),
        (
            "format: csv\n  path: trips/{day}.csv\n  columns:\n    trip: long",
            "format: csv\n  csv: {header: false}\n  path: trips/{day}.csv\n  columns:\n    trip: {from: No, type: long}",
            "columns.trip.from 'No': the files have no header (csv.header is false)",
        ),
        (
            "columns: {city: string}",
            "columns: {city: {from: ' City', type: string}}",
            "begins or ends with a space; remove it",
        ),
        ("columns: {city: string}", "columns: {city: {from: '', type: string}}", "write one line of text"),
        ("trip: {type: long}", "trip: long", "columns.trip = 'long': write a mapping"),
        ("name: trips", "name: rides", "dataset.yaml:1: name = 'rides': the folder is called 'trips'"),
        ("name: trips", "name: ../x", "name = '../x': the name '../x' is not a safe name"),
        (
            "path: trips/{day}.csv",
            "path: trips.csv",
            "source.path = 'trips.csv': it does not contain the delivery day; write {day} (2024-01-31)",
        ),
        (
            "path: trips/{day}.csv",
            "path: trips/{day}/{hour}.csv",
            "source.path = 'trips/{day}/{hour}.csv': {hour} is unknown; write the delivery day as {day}",
        ),
        (
            "path: trips/{day}.csv",
            "path: ../{day}.csv",
            "source.path = '../{day}.csv': use a path relative to the sources",
        ),
        ("path: cities.csv", "path: /etc/passwd", "references.cities.path = '/etc/passwd': use a path relative"),
        ("path: cities.csv", "path: .", "references.cities.path = '.': use a path relative"),
        ("path: cities.csv", "path: s3://bucket/x", "references.cities.path = 's3://bucket/x': use a path relative"),
        (
            "references:\n  cities:\n",
            "references:\n  raw:\n",
            "references.raw: models or golden queries use that name for their own tables",
        ),
        (
            "references:\n  cities:\n",
            "references:\n  trips: {format: csv, path: trips.csv, columns: {a: string}}\n  cities:\n",
            "references.trips: models or golden queries use that name for their own tables",
        ),
        ("fare: {tolerance: 2%}", "fare: {tolerance: 2}", "measures.fare.tolerance = 2: write a percentage"),
        ("fare: {tolerance: 2%}", "fair: {}", "measures names 'fair', which is not declared in columns"),
        ("fare: {tolerance: 2%}", "city: {}", "measures.city: a string cannot be summed; set sum: false"),
        ("fare: {tolerance: 2%}", "city: {sum: false}", "measures.city compares nothing"),
        (
            "fare: {tolerance: 2%}",
            "city: {sum: false, percentiles: true}",
            "measures.city: a string has no percentiles",
        ),
        ("fare: {tolerance: 2%}", "row_count: {}", "measures.row_count: row_count is measured anyway"),
        (
            "reference: cities",
            "reference: towns",
            "checks.references.cities.reference 'towns' is not declared in references",
        ),
        ("columns: [city], to", "columns: [town], to", "checks.references.cities: no column 'town' in columns"),
        ("to: [city]", "to: [town]", "checks.references.cities: cities has no column 'town'"),
        ("to: [city]", "to: [city, city]", "columns and to must name the same number of columns"),
        (
            "checks:\n",
            "checks:\n  not_null: {severity: warn, blocking: true}\n",
            "checks.not_null: severity warn and blocking true",
        ),
        (
            "checks:\n",
            "checks:\n  reconciliation: {metrics: [city]}\n",
            "checks.reconciliation.metrics names 'city'; use row_count",
        ),
        (
            "checks:\n",
            "checks:\n  reconciliation: {metrics: [row_count, row_count]}\n",
            "two checks are called 'reconcile_row_count'",
        ),
        ("checks:\n", "checks:\n  rules: {a: {sql: ''}}\n", "checks.rules.a.sql = '':"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_remedy(tmp_path: Path, old: str, new: str, expected: str) -> None:
    messages = spoiled(tmp_path, old, new)
    assert any(expected in message for message in messages), "\n".join(messages)
    for message in messages:
        helpful(message, "", line=False)
    # One mistake gives one message, unless another key refers to the removed one.
    assert len(messages) == (2 if "raw:" in new else 1), "\n".join(messages)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("since: date, until: timestamp", "valid names 'until', which is no column of type date that each file has"),
        ("since: date", "valid names 'until', which is no column of type date that each file has"),
        (
            "since: date, until: date, trip_date: date",
            "references.cities.columns.trip_date: models see the day in a column of that name; rename this one",
        ),
        ("since: date, until: date}\n    optional: [until]", "valid names 'until', which is no column of type date"),
    ],
)
def test_the_days_of_a_version_are_two_columns_of_dates(tmp_path: Path, columns: str, expected: str) -> None:
    ends = "" if "optional" in columns else "}"
    versions = f"columns: {{city: string, {columns}{ends}\n    valid: [since, until]"
    (message,) = spoiled(tmp_path, "columns: {city: string}", versions)
    assert expected in message
    helpful(message, "", line=False)


def test_versions_are_checked_by_other_columns_than_their_days(tmp_path: Path) -> None:
    columns = "columns: {city: string, since: date, until: date}"
    (twice,) = spoiled(tmp_path / "a", "columns: {city: string}", f"{columns}\n    valid: [since, since]")
    assert "references.cities.valid names 'since' twice; name the first day, then the day after the last one" in twice
    versions = YAML.replace("columns: {city: string}", f"{columns}\n    valid: [since, until]")
    unchecked = versions.replace("    cities: {reference: cities, columns: [city], to: [city]}\n", "    {}\n")
    assert unchecked != versions
    (missing,) = map(str, problems(write_dataset(tmp_path / "b", yaml=unchecked)))
    refused = "nothing refuses rows without a version or with two; keep its key in the fact, and add a check of it that blocks"
    assert refused in missing
    warns = versions.replace("to: [city]}", "to: [city], severity: warn}")
    (only,) = map(str, problems(write_dataset(tmp_path / "d", yaml=warns)))
    assert refused in only
    cast = versions.replace("{city: string, since", "{city: long, since")
    (kinds,) = map(str, problems(write_dataset(tmp_path / "e", yaml=cast)))
    assert "checks.references.cities: city is string, and city of cities is long; declare the same type" in kinds
    (days,) = map(str, problems(write_dataset(tmp_path / "c", yaml=versions.replace("to: [city]", "to: [since]"))))
    assert "checks.references.cities: cities has no column 'since'; it has city, trip_date" in days


@pytest.mark.parametrize(
    ("said", "beside", "expected"),
    [
        ("as_of: yesterday", "", "references.cities.as_of = 'yesterday':"),
        ("renew: 2024-03-01..2024-03-02", "", "references.cities.renew: each day sees the current version anyway"),
        ("as_of: published, renew: soon", "", "references.cities.renew = 'soon':"),
        ("as_of: published, renew: ''", "", "references.cities.renew = '':"),
        (
            "as_of: published, csv: {header: false}",
            "",
            "references.cities.as_of: a file without a header is read by the",
        ),
        ("as_of: published", "lookback_days: 1\n", "references.cities.as_of: a day is built from other days as well"),
        ("as_of: published", "lookahead_days: 1\n", "references.cities.as_of: a day is built from other days as well"),
    ],
)
def test_what_a_published_day_sees_of_a_reference_is_refused_with_its_place(
    tmp_path: Path, said: str, beside: str, expected: str
) -> None:
    columns = "columns: {city: string}"
    more = "\n    ".join(said.split(", "))
    assert columns in YAML
    yaml = beside + YAML.replace(columns, f"{columns}\n    {more}")
    (message,) = map(str, problems(write_dataset(tmp_path, yaml=yaml)))
    assert expected in message
    helpful(message, "", line=False)


def test_all_problems_of_a_file_are_reported_together_in_the_order_of_its_lines(tmp_path: Path) -> None:
    yaml = (
        YAML.replace("type: long", "type: int").replace("2%", "2").replace("format: csv\n  path", "format: xml\n  path")
    )
    messages = [str(problem) for problem in problems(write_dataset(tmp_path, yaml=yaml))]
    assert [m.split(": ")[1].split(" =")[0] for m in messages] == [
        "columns.trip.type",
        "source.format",
        "measures.fare.tolerance",
    ]


def test_all_contradictions_are_reported_together(tmp_path: Path) -> None:
    yaml = YAML.replace("key: [trip_date, trip]", "key: [ride]").replace("to: [city]", "to: [town]")
    assert len(problems(write_dataset(tmp_path, yaml=yaml))) == 2


def test_problems_in_the_models_are_reported_together_with_those_of_the_file(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, yaml=YAML.replace("type: long", "type: int"))
    (folder / "fact.sql").write_text("")
    assert {problem.file.name for problem in problems(folder)} == {"dataset.yaml", "fact.sql"}


def test_a_metric_that_two_measures_have_is_refused(tmp_path: Path) -> None:
    yaml = YAML.replace("  city: {type: string}\n", "  city: {type: string}\n  p50_fare: {type: long}\n")
    yaml = yaml.replace("fare: {tolerance: 2%}", "fare: {percentiles: true}\n  p50_fare: {}")
    (problem,) = problems(write_dataset(tmp_path, yaml=yaml))
    assert "two metrics are called 'p50_fare'" in str(problem)


def test_a_measure_whose_check_takes_the_name_of_another_is_refused(tmp_path: Path) -> None:
    yaml = YAML.replace("  city: {type: string}\n", "  city: {type: string}\n  keys: {type: long}\n")
    yaml = yaml.replace("fare: {tolerance: 2%}", "keys: {}")
    (problem,) = problems(write_dataset(tmp_path, yaml=yaml))
    assert "two checks are called 'change_keys'" in str(problem)


def test_a_folder_with_an_unsafe_name_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(write_dataset(tmp_path, "Trips-2", YAML))
    assert "the folder's name 'Trips-2' is not a safe name" in str(problem)


def test_a_folder_without_a_dataset_file_is_refused(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "dataset.yaml").unlink()
    (problem,) = problems(folder)
    assert problem.file == folder
    assert "has no dataset.yaml" in str(problem)


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "dataset.yaml").write_bytes(b"name: trips\nowner: M\xfcller\n")
    (problem,) = problems(folder)
    assert "dataset.yaml:2: byte 20 is not valid UTF-8" in str(problem)


def test_a_model_that_is_a_broken_link_counts_as_missing(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "fact.sql").unlink()
    (folder / "fact.sql").symlink_to(tmp_path / "nowhere")
    (problem,) = problems(folder)
    assert "there is no fact model" in str(problem)


def test_a_file_below_the_working_folder_is_named_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "datasets", yaml=YAML.replace("type: long", "type: int"))
    monkeypatch.chdir(tmp_path)
    (problem,) = load_folder(tmp_path / "datasets").problems
    assert str(problem).startswith("datasets/trips/dataset.yaml:7: columns.trip.type")
    assert (problem.line, problem.key) == (7, "columns.trip.type")


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    (message,) = spoiled(tmp_path, "type: long", f"type: {'x' * 500}")
    assert len(message) < 300
    assert "…" in message
