"""A filter on any column finds the same rows with and without the statistics in the log."""

from __future__ import annotations

import operator
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.release import DaySwap
from backfill_assets.core.types import PLAIN
from backfill_assets.delta.statistics import published_stats
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.tables import (
    ARROW,
    content,
    dataset,
    day,
    layout,
    manifest,
    publish,
    rows_of,
    write_shadow,
)
from backfill_assets_tests.unit.delta.every_type import PARTS, TYPES, VALUES, every_type, probes

pytestmark = pytest.mark.slow

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COLUMNS = [*VALUES, "recalculated_at"]
ALL_TYPES = {**TYPES, "recalculated_at": "timestamp"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every_type")
    table = PublishedTable(layout(folder), dataset(columns=TYPES), FixedClock())
    home = folder_of(layout(folder).published_path("sales"))
    write_shadow(home, "_shadow/u/1", every_type())
    publish(table, "_shadow/u/1", [day(i) for i in range(12)], "r")
    return home


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


@pytest.mark.parametrize("column", COLUMNS)
def test_pyarrow_finds_the_same_rows(published: Path, column: str) -> None:
    dataset_ = DeltaTable(published).to_pyarrow_dataset()
    unfiltered = dataset_.to_table()
    for name, sign, value in probes():
        if name == column:
            wanted = OPERATORS[sign](ds.field(column), pa.scalar(value, ARROW[ALL_TYPES[column]]))
            assert ids(dataset_.to_table(filter=wanted)) == ids(unfiltered.filter(wanted)), (sign, value)


@pytest.mark.parametrize("column", COLUMNS)
def test_polars_finds_the_same_rows(published: Path, column: str) -> None:
    unfiltered = pl.read_delta(str(published))
    for name, sign, value in probes():
        if name == column:
            wanted = OPERATORS[sign](pl.col(column), pl.lit(value, dtype=unfiltered.schema[column]))
            found = pl.scan_delta(str(published)).filter(wanted).collect()
            assert sorted(found["id"]) == sorted(unfiltered.filter(wanted)["id"]), (sign, value)


@pytest.mark.parametrize("column", COLUMNS)
def test_nulls_are_found(published: Path, column: str) -> None:
    dataset_ = DeltaTable(published).to_pyarrow_dataset()
    unfiltered = dataset_.to_table()
    for wanted in (ds.field(column).is_null(), ds.field(column).is_valid()):
        assert ids(dataset_.to_table(filter=wanted)) == ids(unfiltered.filter(wanted))
    for nulls in (pl.col(column).is_null(), pl.col(column).is_not_null()):
        found = pl.scan_delta(str(published)).filter(nulls).collect()
        assert sorted(found["id"]) == sorted(pl.read_delta(str(published)).filter(nulls)["id"])


def test_every_type_of_the_contract_is_tried() -> None:
    assert {kind.partition("(")[0].partition("<")[0] for kind in TYPES.values()} == {
        *PLAIN, "decimal", "array", "map", "struct",
    }  # fmt: skip


@pytest.mark.parametrize("column", PARTS)
def test_values_with_parts_are_read_as_they_were_written(published: Path, column: str) -> None:
    written = every_type().sort_by("id")[column]
    assert DeltaTable(published).to_pyarrow_table().sort_by("id")[column].to_pylist() == written.to_pylist()
    read, meant = pl.read_delta(str(published)).sort("id")[column], pl.from_arrow(written)
    assert isinstance(meant, pl.Series)
    assert read.to_list() == meant.to_list()


@pytest.fixture(scope="module")
def mixed(published: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[int]]:
    """The same with a file of another writer, which has bounds; and the ids of our own rows."""
    home = tmp_path_factory.mktemp("mixed") / "copy"
    shutil.copytree(published, home)
    ours = DeltaTable(home).to_pyarrow_table()["id"].to_pylist()
    plain = every_type().filter(ds.field("id") == 1)
    plain = plain.set_column(0, "id", pa.array([1_000_000], pa.int64()))
    write_deltalake(home, plain.set_column(1, "day", pa.array([day(50)], pa.date32())), mode="append")
    DeltaTable(home).create_checkpoint()
    return home, set(ours)


@pytest.mark.parametrize("column", COLUMNS)
def test_files_of_another_writer_with_bounds_hide_no_row_of_ours(mixed: tuple[Path, set[int]], column: str) -> None:
    home, ours = mixed
    dataset_ = DeltaTable(home).to_pyarrow_dataset()
    unfiltered, scanned = dataset_.to_table(), pl.read_delta(str(home))
    for name, sign, value in probes():
        if name == column and sign in {"==", ">="}:
            wanted = OPERATORS[sign](ds.field(column), pa.scalar(value, ARROW[ALL_TYPES[column]]))
            found, expected = ids(dataset_.to_table(filter=wanted)), ids(unfiltered.filter(wanted))
            assert set(found) & ours == set(expected) & ours, (column, sign, value)
            lit = OPERATORS[sign](pl.col(column), pl.lit(value, dtype=scanned.schema[column]))
            lazily = pl.scan_delta(str(home)).filter(lit).collect()
            assert set(lazily["id"]) & ours == set(scanned.filter(lit)["id"]) & ours, (column, sign, value)


def test_only_counts_are_carried_over() -> None:
    text = '{"numRecords":2,"minValues":{"a":1},"maxValues":{"a":9007199254740993},"nullCount":{"a":0,"t":1}}'
    assert published_stats(text) == '{"numRecords":2,"nullCount":{"a":0,"t":1}}'


def test_no_statistics_stay_no_statistics() -> None:
    assert published_stats("") == published_stats("{}") == ""


def test_a_file_without_statistics_costs_the_others_nothing(table: PublishedTable, home: Path) -> None:
    write_shadow(home, "_shadow/u/1", rows_of({day(0): [1], day(1): [2, 3]}))
    table.prepare("_shadow/u/1")
    new = table.shadow_files("_shadow/u/1", [day(0), day(1)])
    bare = replace(new[day(0)][0], stats="")
    swaps = [DaySwap(day(0), (), (bare,)), DaySwap(day(1), (), new[day(1)])]
    table.commit(manifest("r", swaps), table.version())
    assert [f[0].stats for f in table.active().values()] == ["", new[day(1)][0].stats]
    counts = pa.table(DeltaTable(home).get_add_actions())["num_records"].to_pylist()
    assert sorted(counts, key=str) == [2, None]
    assert content(home) == {day(0): [1], day(1): [2, 3]}
