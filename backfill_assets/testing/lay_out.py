"""Laying a golden case out as source files, so that the road itself can land and build it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from backfill_assets.core.errors import DatasetError
from backfill_assets.dataset.sources import CsvOptions, Format, Reference
from backfill_assets.storage.layout import Layout
from backfill_assets.testing.cases import CaseDelivery, GoldenCase, Table, read_table

_ARROW = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def lay_out(case: GoldenCase, sources: Path) -> None:
    """Write a case's deliveries and references below an empty sources folder, each where dataset.yaml expects it.

    Raises:
        DatasetError: two deliveries of the case have the same place.
    """
    for delivery in case.deliveries:
        source = case.loaded.dataset.landing
        target = sources / _place(source.path, delivery)
        if target.exists():
            raise DatasetError(f"{delivery.file}: {source.path} has room for one file a day; keep one of them")
        _write(delivery.file, target, source.format, source.columns)
        seconds = delivery.delivered_at.timestamp()
        os.utime(target, (seconds, seconds))
    for name, reference in case.loaded.dataset.references.items():
        target = sources / reference.path
        if name in case.references:
            _write(case.references[name], target, reference.format, reference.columns)
        else:
            _write_empty(target, reference)


def lay_out_upstreams(case: GoldenCase, layout: Layout) -> None:
    """Write the facts of a case's upstreams as their published tables."""
    for upstream in case.upstreams:
        dataset = upstream.loaded.dataset
        columns = {name: column.type for name, column in dataset.columns.items()}
        rows = _arrow(read_table(upstream.file, columns), columns)
        write_deltalake(layout.published_path(dataset.name), rows, partition_by=[dataset.partition_column])


def _place(pattern: str, delivery: CaseDelivery) -> PurePosixPath:
    path = PurePosixPath(pattern.replace("{day}", delivery.day.isoformat()))
    folder = PurePosixPath(
        *(part.replace("**", "case").replace("*", "case").replace("?", "x") for part in path.parts[:-1])
    )
    name = delivery.file.name
    stem = delivery.file.stem
    suited = name if fnmatch(name, path.name) else path.name.replace("*", stem).replace("?", "x")
    return folder / suited


def _write(file: Path, target: Path, kind: Format, columns: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind is Format.parquet:
        pq.write_table(_arrow(read_table(file, columns), columns), target)
    else:
        shutil.copyfile(file, target)


def _write_empty(target: Path, reference: Reference) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    match reference.format:
        case Format.parquet:
            pq.write_table(_arrow(Table((), ()), reference.columns), target)
        case Format.csv:
            target.write_text(_header(reference.csv, reference.columns), encoding="utf-8")
        case Format.jsonl:
            target.touch()


def _header(options: CsvOptions, columns: Mapping[str, str]) -> str:
    return options.delimiter.replace("\\t", "\t").join(columns) + "\n" if options.header else ""


def _arrow(table: Table, columns: Mapping[str, str]) -> pa.Table:
    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in columns.items()])
    return pa.Table.from_pylist([dict(row) for row in table.rows], schema=schema)


def _arrow_type(kind: str) -> pa.DataType:
    if not kind.startswith("decimal"):
        return _ARROW[kind]
    precision, scale = (int(part) for part in kind.removeprefix("decimal(").removesuffix(")").split(","))
    return pa.decimal128(precision, scale)
