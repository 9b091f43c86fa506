"""A table as the source in `dataset.yaml`: what it says, and what is refused by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.control.planner import layers_from
from backfill_assets.core.errors import DatasetError
from backfill_assets.core.layers import Layer
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.table_source import TableSource
from backfill_assets_tests.harness.dataset_folders import YAML, loaded, spoiled, write_dataset

FILES = YAML[YAML.index("source:") : YAML.index("references:")]
TABLE = """\
source:
  table: bronze/trips
  day: ingest_date
  columns:
    trip: long
    fare: {from: FareEur, type: "decimal(10,2)"}
    city: string
"""


def of_table(tmp_path: Path, text: str = TABLE, more: str = "") -> Dataset:
    return loaded(write_dataset(tmp_path, yaml=YAML.replace(FILES, text) + more)).dataset


def refused(tmp_path: Path, text: str) -> list[str]:
    """Messages about a dataset with this source, without their place."""
    return [message.partition(": ")[2] for message in spoiled(tmp_path, FILES, text)]


def source(dataset: Dataset) -> TableSource:
    assert isinstance(dataset.source, TableSource)
    return dataset.source


def test_a_table_has_a_day_columns_and_by_default_its_newest_version(tmp_path: Path) -> None:
    found = source(of_table(tmp_path))
    assert (found.table, found.day, found.pinned, found.late_days) == ("bronze/trips", "ingest_date", None, 0)
    assert found.headers == {"trip": "trip", "fare": "fareeur", "city": "city"}


def test_a_version_can_be_pinned(tmp_path: Path) -> None:
    assert source(of_table(tmp_path, f"{TABLE}  version: 7\n")).pinned == 7


@pytest.mark.parametrize("version", ["oldest", "-1", "1.5", "true", "null"])
def test_a_version_that_is_no_number_is_refused(tmp_path: Path, version: str) -> None:
    (message,) = refused(tmp_path, f"{TABLE}  version: {version}\n")
    assert message.startswith("source.version = ")
    assert message.endswith("write newest, or the number of a version of the table")


@pytest.mark.parametrize(
    "line", ["path: x/{day}.csv", "format: csv", "csv: {}", "encoding: utf-8", "undeclared: drop", "order_by: path",
             "removed_after_landing: true", "optional: [city]", "tabel: x"],
)  # fmt: skip
def test_keys_of_files_are_refused_by_name(tmp_path: Path, line: str) -> None:
    (message,) = refused(tmp_path, f"{TABLE}  {line}\n")
    key = line.partition(":")[0]
    assert message == (
        f"source.{key}: a table has no such key, only columns, table, day, version, late_days, on_missing; drop it"
    )


@pytest.mark.parametrize("name", ["bronze.trips", "main.bronze.trips"])
def test_a_table_of_a_catalog_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    (message,) = refused(tmp_path, TABLE.replace("bronze/trips", name))
    assert "a source is named by its folder, not by its name in a catalog; write the folder of a Delta table" in message
    assert source(of_table(tmp_path / "way_out", TABLE.replace("bronze/trips", f"./{name}"))).table == f"./{name}"


def test_a_problem_in_the_columns_of_a_table_has_its_line_and_key(tmp_path: Path) -> None:
    (message,) = spoiled(tmp_path, FILES, TABLE.replace("city: string", "city: text"))
    assert message.startswith("dataset.yaml:16: source.columns.city = 'text': use string, boolean,")


def test_two_columns_from_one_column_of_the_table_are_refused(tmp_path: Path) -> None:
    (message,) = refused(tmp_path, TABLE.replace("city: string", "city: {from: fareeur, type: string}"))
    assert message.startswith("columns.city.from 'fareeur': fare is read from there, too")


def test_a_table_without_a_day_is_refused(tmp_path: Path) -> None:
    (message,) = refused(tmp_path, TABLE.replace("  day: ingest_date\n", ""))
    assert message.startswith("source.day is missing; add it")


def test_a_source_that_is_neither_files_nor_a_table_is_refused_once(tmp_path: Path) -> None:
    (message,) = refused(tmp_path, "source: bronze\n")
    assert message == "source = 'bronze': write a mapping of key: value lines"


def test_later_delivery_days_need_a_word_on_which_rows_count(tmp_path: Path) -> None:
    (message,) = refused(tmp_path, f"{TABLE}  late_days: 2\n")
    assert "set staging.deduplicate to say which rows count" in message


def test_how_late_rows_arrived_cannot_be_checked_on_a_table(tmp_path: Path) -> None:
    said = YAML.replace(FILES, TABLE).replace("checks:\n", "checks:\n  source_freshness: {max_delay: 6h}\n")
    folder = write_dataset(tmp_path, yaml=said)
    with pytest.raises(AssertionError, match=r"checks\.source_freshness: a table does not show when its rows arrived"):
        loaded(folder)


def test_nothing_of_a_table_lands_so_there_is_no_raw(tmp_path: Path) -> None:
    dataset = of_table(tmp_path)
    assert dataset.built_layers == (Layer.staging, Layer.shadow)
    assert not dataset.lands_files
    with pytest.raises(DatasetError, match=r"trips reads its days from the table bronze/trips, so nothing lands"):
        _ = dataset.landing


@pytest.mark.parametrize(
    ("first", "layers"),
    [("raw", (Layer.staging, Layer.shadow)), ("staging", (Layer.staging, Layer.shadow)), ("shadow", (Layer.shadow,))],
)
def test_a_campaign_from_raw_begins_at_the_staging_of_a_table(
    tmp_path: Path, first: str, layers: tuple[Layer, ...]
) -> None:
    assert layers_from(first, of_table(tmp_path)) == layers


def test_another_column_type_or_day_is_another_reading_and_the_version_is_not(tmp_path: Path) -> None:
    texts = [
        TABLE, TABLE.replace("trip: long", "trip: integer"), TABLE.replace("FareEur", "FareUsd"),
        TABLE.replace("ingest_date", "day"), TABLE.replace("    city: string\n", ""),
    ]  # fmt: skip
    readings = [source(of_table(tmp_path / str(i), text)).reading for i, text in enumerate(texts)]
    assert len(set(readings)) == len(texts)
    assert source(of_table(tmp_path / "pinned", f"{TABLE}  version: 3\n")).reading == readings[0]


def test_the_day_tells_no_rows_of_a_day_apart(tmp_path: Path) -> None:
    with_day = TABLE.replace("    city: string\n", "    city: string\n    ingested: {from: Ingest_Date, type: date}\n")
    assert "ingested" not in source(of_table(tmp_path, with_day)).compared
