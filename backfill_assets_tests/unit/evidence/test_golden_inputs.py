"""A day depends on the golden sources that it was compared with, but only with its fact."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.references import Reference
from backfill_assets.dataset.sources import Format, Golden
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.evidence.inputs import fact_inputs
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.tables import day, layout, loaded
from backfill_assets_tests.harness.world import World

BOOKED = Golden(file=Reference(format=Format.csv, path="golden/booked.csv", columns={"day": "date"}), key=("day",))


def basis(world: World, dataset: Dataset) -> CurrentBasis:
    return CurrentBasis(replace(world.warehouse(), catalog=Catalog({"sales": loaded(dataset, world.folder)})))


def with_golden(world: World) -> CurrentBasis:
    return basis(world, world.datasets["sales"].model_copy(update={"golden": {"booked": BOOKED}}))


def book(folder: Path, text: str) -> None:
    file = path_of(layout(folder).sources) / "golden" / "booked.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_golden_file_that_changes_makes_days_stale_but_stages_none_again(world: World) -> None:
    book(world.folder, "day\n")
    found = with_golden(world)
    before, staged = found.inputs("sales", [day(0)]), found.staged_inputs("sales", [day(0)])
    assert found.inputs("sales", [day(0)]) == before
    book(world.folder, "day\n2024-01-01\n")
    assert found.inputs("sales", [day(0)]) != before
    assert found.staged_inputs("sales", [day(0)]) == staged


def test_digests_of_datasets_without_golden_sources_are_what_they_were(world: World) -> None:
    plain = world.datasets["sales"]
    found = basis(world, plain).inputs("sales", [day(0)])
    assert found == {day(0): fact_inputs(plain, day(0), {}, {}, day(0))}


def test_a_golden_file_that_is_gone_is_refused_by_key(world: World) -> None:
    with pytest.raises(
        SourceError, match=r"golden\.booked: the file golden/booked\.csv is not in .*; put it there, or"
    ):
        with_golden(world).inputs("sales", [day(0)])


def booked_rows(*days: dt.date) -> pa.Table:
    return pa.table({"day": pa.array(days, pa.date32()), "fee": pa.array([1] * len(days), pa.int64())})


def table_inputs(world: World, home: Path, sql: str | None = None) -> list[str]:
    """The inputs of two days that are compared with a Delta table."""
    golden = Golden(table=home.relative_to(path_of(layout(world.folder).sources)).as_posix(), sql=sql, key=("day",))
    found = basis(world, world.datasets["sales"].model_copy(update={"golden": {"booked": golden}}))
    return list(found.inputs("sales", [day(0), day(1)]).values())


def test_only_the_own_files_of_a_day_in_a_golden_table_by_day_make_it_stale(world: World) -> None:
    home = path_of(layout(world.folder).sources) / "golden" / "bookings"
    write_deltalake(home, booked_rows(day(0), day(1)), partition_by=["day"])
    before = table_inputs(world, home)
    write_deltalake(home, booked_rows(day(1), day(2)), mode="append")
    after = table_inputs(world, home)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False]


def test_commits_to_a_golden_table_that_leave_its_files_alone_make_nothing_stale(world: World) -> None:
    home = path_of(layout(world.folder).sources) / "golden" / "bookings"
    write_deltalake(home, booked_rows(day(0)))
    write_deltalake(home, booked_rows(day(0), day(1)), mode="overwrite")
    before = table_inputs(world, home)
    assert DeltaTable(home).vacuum(0, dry_run=False, enforce_retention_duration=False)
    DeltaTable(home).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    assert DeltaTable(home).version() > 1
    assert table_inputs(world, home) == before


def test_every_file_counts_in_a_golden_table_that_is_queried_or_not_kept_by_day(world: World) -> None:
    whole, queried = (path_of(layout(world.folder).sources) / "golden" / name for name in ("whole", "queried"))
    write_deltalake(whole, booked_rows(day(0)))
    write_deltalake(queried, booked_rows(day(0)), partition_by=["day"])
    before = table_inputs(world, whole), table_inputs(world, queried, "SELECT max(day) AS day FROM booked")
    for home in (whole, queried):
        write_deltalake(home, booked_rows(day(5)), mode="append")
    after = table_inputs(world, whole), table_inputs(world, queried, "SELECT max(day) AS day FROM booked")
    assert all(old != new for was, now in zip(before, after, strict=True) for old, new in zip(was, now, strict=True))


def test_every_commit_to_a_golden_table_with_deletion_vectors_counts(world: World) -> None:
    home = path_of(layout(world.folder).sources) / "golden" / "bookings"
    configuration = {"delta.enableDeletionVectors": "true"}
    write_deltalake(home, booked_rows(day(0)), partition_by=["day"], configuration=configuration)
    before = table_inputs(world, home)
    write_deltalake(home, booked_rows(day(2)), mode="append")
    assert table_inputs(world, home)[0] != before[0]


def test_a_golden_table_with_column_mapping_is_the_same_each_time_it_is_read(world: World) -> None:
    """delta-rs gives the metadata of a column in any order."""
    home = path_of(layout(world.folder).sources) / "golden" / "bookings"
    write_deltalake(home, booked_rows(day(0), day(1)))
    commit = home / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    found = next(line["metaData"] for line in lines if "metaData" in line)
    schema = json.loads(found["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        physical = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["metadata"] = {"comment": "of the bank", **physical}
    found |= {"schemaString": json.dumps(schema), "configuration": {"delta.columnMapping.mode": "name"}}
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len({tuple(table_inputs(world, home)) for _ in range(20)}) == 1
