"""Small real Delta tables for tests: datasets, shadows written by delta-rs, readers."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.delivery import FileContent
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind
from backfill_assets.dataset.consistency import AUDIT_COLUMNS
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import Language, LoadedDataset, Model, ModelLayer
from backfill_assets.dataset.sources import Upstream
from backfill_assets.delta.table import PublishedTable
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location, Sync
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.objects import folder_of, place_at

DAY = dt.date(2026, 1, 1)

ARROW = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "smallint": pa.int16(),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
    "array<double>": pa.list_(pa.float64()),
    "map<string,array<long>>": pa.map_(pa.string(), pa.list_(pa.int64())),
    "struct<a:long,b:struct<c:string,at:timestamp>>": pa.struct(
        {"a": pa.int64(), "b": pa.struct({"c": pa.string(), "at": pa.timestamp("us", "UTC")})}
    ),
    "array<struct<sku:string,price:decimal(9,2),tags:map<date,binary>>>": pa.list_(
        pa.struct({"sku": pa.string(), "price": pa.decimal128(9, 2), "tags": pa.map_(pa.date32(), pa.binary())})
    ),
}


def day(number: int) -> dt.date:
    return DAY + dt.timedelta(days=number)


def dataset(name: str = "sales", columns: Mapping[str, str] | None = None, keep_for: str = "30d") -> Dataset:
    types = {"id": "long", "day": "date", "amount": "long"} if columns is None else columns
    return Dataset.model_validate(
        {
            "name": name,
            "partition_column": "day",
            "start": "2026-01-01",
            "key": ["id"],
            "columns": {column: {"type": kind} for column, kind in types.items()},
            "source": {"format": "csv", "path": "x/{day}.csv", "columns": {"id": "long"}},
            "retention": {"keep_for": keep_for},
        }
    )


def derived(name: str, *upstream: str, lookback: int = 0) -> Dataset:
    """A dataset, built from others instead of deliveries if some are named."""
    above = {other: Upstream(lookback_days=lookback) for other in upstream}
    return dataset(name).model_copy(update={"source": None, "upstream": above} if above else {})


def loaded(dataset: Dataset, folder: Path, code: str = "c0de") -> LoadedDataset:
    """A dataset as if its folder had been loaded; there are no models in it."""
    fact = Model(ModelLayer.fact, folder / "fact.sql", Language.sql, "")
    return LoadedDataset(dataset, folder, None if dataset.source is None else fact, fact, code)


def on_paths(act: Callable[[Path], object]) -> Sync:
    """What is done to a path, as it is done to a place."""

    def bring(place: Location) -> None:
        act(folder_of(place))

    return bring


def layout(folder: Path) -> Layout:
    """The places of a test; in a bucket if the run has a store, whose files lie in the same folders."""
    place = place_at(folder / "warehouse")
    return Layout(place, OnDisk(folder / "sources"))


def rows_of(data: Mapping[dt.date, Sequence[int]], unit: str = "u") -> pa.Table:
    """One row for each amount, with the audit columns of a fact."""
    flat = [(i, date, amount) for date, amounts in data.items() for i, amount in enumerate(amounts)]
    columns: dict[str, list[object]] = {
        "id": [r[0] for r in flat],
        "day": [r[1] for r in flat],
        "amount": [r[2] for r in flat],
        "recalculated_at": [START] * len(flat),
        "unit": [unit] * len(flat),
        "code_version": ["c0de"] * len(flat),
    }
    types = {"id": "long", "day": "date", "amount": "long", **AUDIT_COLUMNS}
    return typed(columns, types)


def typed(columns: Mapping[str, Sequence[object]], types: Mapping[str, str]) -> pa.Table:
    return pa.table({name: pa.array(columns[name], ARROW[kind]) for name, kind in types.items()})


def write_shadow(home: Path, folder: str, table: pa.Table) -> None:
    write_deltalake(home / folder, table, partition_by=["day"], mode="append")


def write_raw(home: Path, rows: Mapping[FileContent, int], at: dt.datetime = START) -> None:
    """Append so many rows of these deliveries to raw, with the columns by which they are known."""
    flat = [content for content, number in rows.items() for _ in range(number)]
    columns = {
        "_delivery_day": pa.array([one[0] for one in flat], pa.date32()), "_source_file": [one[1] for one in flat],
        "_fingerprint": [one[2] for one in flat], "_ingested_at": pa.array([at] * len(flat), pa.timestamp("us", "UTC")),
    }  # fmt: skip
    write_deltalake(home, pa.table(columns), partition_by=["_delivery_day"], mode="append")


def content(home: Path, version: int | None = None) -> dict[dt.date, list[int]]:
    """What a reader sees: the amounts of each day, at the newest version unless another is given."""
    if not DeltaTable.is_deltatable(str(home)):
        return {}
    return amounts_of(DeltaTable(home, version=version).to_pyarrow_table(columns=["day", "amount"]))


def amounts_of(rows: pa.Table) -> dict[dt.date, list[int]]:
    """The amounts of each day."""
    found: dict[dt.date, list[int]] = {}
    for row in rows.to_pylist():
        found.setdefault(row["day"], []).append(row["amount"])
    return {date: sorted(amounts) for date, amounts in sorted(found.items())}


def fingerprint(amounts: Sequence[int]) -> str:
    return hashlib.sha256(repr(sorted(amounts)).encode()).hexdigest()[:16] if amounts else ""


def manifest(release: str, swaps: Sequence[DaySwap], **changes: object) -> Manifest:
    fields: dict[str, object] = {
        "release": release,
        "kind": ReleaseKind.publish,
        "dataset": "sales",
        "unit": "u",
        "by": "ada",
        "created_at": START,
        "evidence": "e",
        "code_version": "c0de",
        "days": tuple(swaps),
    }
    return Manifest(**{**fields, **changes})  # type: ignore[arg-type]


def publish(table: PublishedTable, folder: str, days: Sequence[dt.date], release: str, unit: str = "u") -> Manifest:
    """Prepare and commit a shadow's days, as the use case does."""
    table.prepare(folder)
    active, new = table.active(days), table.shadow_files(folder, days)
    swaps = [DaySwap(d, active.get(d, ()), new.get(d, ())) for d in days]
    done = manifest(release, swaps, unit=unit)
    table.commit(done, table.version())
    return done


def actions(home: Path, version: int, kind: str) -> list[dict[str, object]]:
    lines = (home / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return [json.loads(line)[kind] for line in lines if f'{{"{kind}"' in line[: len(kind) + 3]]


def only(files: Sequence[DataFile]) -> DataFile:
    (file,) = files
    return file
