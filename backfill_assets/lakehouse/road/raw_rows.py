"""Rows of raw, read as `dataset.yaml` declares their source now, whenever they landed."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.dataset import Dataset, Source, Undeclared
from backfill_assets.domain.errors import SourceError
from backfill_assets.domain.files import Encoding, Format
from backfill_assets.domain.reading import form_of, reading_of
from backfill_assets.domain.work import Delivery, FileContent
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road.landing import FORM, headers_of, raw_schema
from backfill_assets.lakehouse.road.records import CORRUPT, HEADER, LINE, NAMES, typed_rows
from backfill_assets.lakehouse.road.spark_sql import declared_type, spark_type, struct_of
from backfill_assets.lakehouse.road.tables import files_of_days, is_table, read_days
from backfill_assets.lakehouse.spark_errors import room_for

DELIVERY_DAY: Final = "_delivery_day"
"""The partition column of raw."""
ORDER: Final = "_order"
"""The number of a row's delivery: of two, the one with the higher number is the newer one."""

_CONTENT: Final = {DELIVERY_DAY: "date", "_source_file": "string", "_fingerprint": "string"}
"""The columns by which raw knows of each row what was delivered, as `Delivery.content` names it."""


@dataclass(frozen=True)
class Counts:
    """Rows and corrupt rows of a delivery, and the declared columns that none of its records has."""

    rows: int = 0
    corrupt: int = 0
    missing: tuple[str, ...] = ()


NOTHING_READ: Final = Counts()
"""Of a file without rows."""


def read_raw(spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date]) -> DataFrame:
    """All rows of some delivery days as `dataset.yaml` declares them now, quarantined ones included.

    No row where nothing was ever landed.

    Raises:
        SourceError: raw does not have what `dataset.yaml` declares now.
    """
    return _rows_of(spark, loaded, layout, days, None)


def read_in_force(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], force: Iterable[Delivery]
) -> DataFrame:
    """Of `read_raw` the rows of the deliveries in force, each with the `_order` of its delivery.

    What was superseded or withdrawn stays in raw and does not come out; nor do rows that the ledger does not know.

    Raises:
        SourceError: raw does not have of these deliveries what `dataset.yaml` declares now.
    """
    asked = frozenset(days)
    known = [d for d in force if d.day in asked]
    rows = _rows_of(spark, loaded, layout, days, [d.content for d in known])
    # When it was delivered is the ledger's to say: it may have come again since.
    columns = {**_CONTENT, ORDER: "bigint", "_delivered_at": "timestamp"}
    told = [(*d.content, d.order, d.delivered_at) for d in known]
    frame = spark.createDataFrame(told, ", ".join(f"{column} {kind}" for column, kind in columns.items()))
    return rows.drop("_delivered_at").join(F.broadcast(frame), list(_CONTENT))


def _rows_of(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: Collection[dt.date],
    only: Collection[FileContent] | None,
) -> DataFrame:
    path, source = layout.raw_path(loaded.name), loaded.dataset.landing
    if not is_table(path) or (only is not None and not only):
        return _no_rows(spark, source)
    frame = read_days(spark, path, DELIVERY_DAY, days)
    require_layout(loaded.dataset, frame, path)
    headlines = _headlines(path, days, form_of(reading_of(source)), only)
    if only is not None:
        # Before anything is read: what does not count may be of another form, or lack a column.
        those = spark.createDataFrame(list(only), ", ".join(f"{c} {kind}" for c, kind in _CONTENT.items()))
        frame = frame.join(F.broadcast(those), list(_CONTENT), "left_semi")
    if source.format is Format.parquet:
        # Nothing of these days has landed since they were declared; by its name, for Spark would write its collation with it.
        lacking = {
            name: F.lit(None).cast(spark_type(kind).simpleString())
            for name, kind in source.columns.items()
            if name not in frame.columns
        }
        return frame.withColumns(lacking) if lacking else frame
    if source.undeclared is Undeclared.drop:
        source = source.model_copy(update={"format": Format.jsonl, "encoding": Encoding.utf_8})
    headers = headers_of(source, headlines)
    return typed_rows(frame, source, headers) if headers != {} else _no_rows(spark, loaded.dataset.landing)


def read_again(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, deliveries: Iterable[Delivery]
) -> tuple[Delivery, ...]:
    """Deliveries with the counts that they have as `dataset.yaml` declares their source now; reads raw alone.

    Those of which raw has lost rows are left out.

    Raises:
        SourceError: raw does not have what this reading needs or has more rows than were landed, or a file lacks a column that is
            declared now.
    """
    known, source = tuple(deliveries), loaded.dataset.landing
    found = measured_rows(spark, loaded, layout, [d.content for d in known])
    again, now = [], reading_of(source)
    for delivery in known:
        counts = found.get(delivery.content, NOTHING_READ)
        if counts.rows < delivery.rows:
            continue
        if counts.rows > delivery.rows:
            raise _not_as_landed(loaded, layout, delivery, counts.rows)
        if counts.missing and counts.rows > counts.corrupt:
            raise SourceError(
                f"{delivery.path}: none of its records has {', '.join(counts.missing)}; correct source.columns in dataset.yaml, or "
                "list columns that some files lack in source.optional"
            )
        again.append(replace(delivery, rows=counts.rows, corrupt_rows=counts.corrupt, reading=now))
    return tuple(again)


def measured_rows(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, only: Collection[FileContent]
) -> Mapping[FileContent, Counts]:
    """What raw holds of some deliveries, read as `dataset.yaml` declares them now."""
    source, path = loaded.dataset.landing, layout.raw_path(loaded.name)
    rows = _rows_of(spark, loaded, layout, {day for day, _, _ in only}, only)
    by_key = source.format is Format.jsonl and source.undeclared is Undeclared.keep
    has = {f"_has_{i}": name for i, name in enumerate(source.required if by_key else ())}
    seen = [F.coalesce(F.bool_or(F.array_contains(NAMES, name)), F.lit(False)).alias(c) for c, name in has.items()]
    counts = [F.count("*").alias("rows"), F.count(CORRUPT).alias("corrupt")]
    with room_for(path):
        found = rows.groupBy(*_CONTENT).agg(*counts, *seen).collect()
    return {
        (r[DELIVERY_DAY], r["_source_file"], r["_fingerprint"]): Counts(
            r["rows"], r["corrupt"], tuple(name for c, name in has.items() if not r[c])
        )
        for r in found
    }


def require_rows(loaded: LoadedDataset, layout: Layout, force: Collection[Delivery]) -> None:
    """Refuse to stage from raw where it has not as many rows of a delivery in force as were landed; read without Spark.

    Raises:
        SourceError: names the file.
    """
    path = layout.raw_path(loaded.name)
    if is_table(path) and "deletionVectors" in (DeltaTable(path).protocol().reader_features or ()):
        raise SourceError(
            f"{path}: raw has deletion vectors switched on, by which rows go while their files stay as they are; rewrite its "
            "files (REORG TABLE … APPLY (PURGE)), then ALTER TABLE … DROP FEATURE deletionVectors"
        )
    found = rows_in_raw(path, {d.day for d in force})
    for one in force:
        if (rows := found.get(one.content, 0)) != one.rows:
            raise _not_as_landed(loaded, layout, one, rows)


def rows_in_raw(path: Path, days: Collection[dt.date], form: str | None = None) -> Mapping[FileContent, int]:
    """How many rows raw has of each delivery of these days, in one form or in any; read without Spark."""
    found = Counter[FileContent]()
    for content, kind, rows in _kinds_of_rows(path, days) if is_table(path) else ():
        if form is None or kind.get(FORM) == form:
            found[content] += rows
    return found


def _not_as_landed(loaded: LoadedDataset, layout: Layout, one: Delivery, rows: int) -> SourceError:
    return SourceError(
        f"{layout.raw_path(loaded.name)}: raw has {rows} rows of {one.path}, and {one.rows} were landed. Put this file among the "
        f"sources again if it is not there, and: backfill reland {loaded.name} --prefix {one.path} --reason …; or withdraw it, or "
        "restore raw from a backup"
    )


def require_layout(dataset: Dataset, stored: DataFrame, path: Path) -> None:
    """Refuse a table of raw that keeps other things than those that are declared now.

    Raises:
        SourceError: says what it keeps, and what to do.
    """
    found = {field.name: declared_type(field.dataType) for field in stored.schema.fields}
    lines = dataset.landing.format is not Format.parquet
    if FORM not in found or (LINE in found) is not lines:
        wanted = "lines, as of text files" if lines else "columns, as of Parquet"
        raise SourceError(
            f"{path}: raw does not keep {wanted}. Move this folder away and launch raw of all days, which lands them again from "
            "the sources; or set source.format in dataset.yaml back to what it was"
        )
    for name, declared in () if lines else dataset.landing.columns.items():
        if found.get(name, declared) != declared:
            raise SourceError(
                f"{path}: column {name}: expected {declared}, found {found[name]}. Raw keeps what was landed: set "
                f"source.columns.{name} back to {found[name]} and cast in the staging model"
            )


def _no_rows(spark: SparkSession, source: Source) -> DataFrame:
    lineage = [
        field for field in raw_schema(source).fields if field.name not in {LINE, HEADER, CORRUPT, *source.columns}
    ]
    names = T.StructField(NAMES, T.ArrayType(T.StringType()))
    columns = struct_of({**source.columns, CORRUPT: "string"}).fields
    return spark.createDataFrame([], T.StructType([*columns, names, *lineage]))


def _headlines(
    path: Path, days: Collection[dt.date], form: str, only: Collection[FileContent] | None
) -> Mapping[bytes, str]:
    """The headlines of the files that raw has of some days, each with one of these files; read without Spark.

    Raises:
        SourceError: raw keeps files in another form than the one that is needed.
    """
    found: dict[bytes, str] = {}
    wanted = None if only is None else frozenset(only)
    for content, kind, _ in _kinds_of_rows(path, days):
        if wanted is not None and content not in wanted:
            continue
        if kind.get(FORM) != form:
            raise SourceError(
                f"{kind['_source_file']}: it was landed when dataset.yaml declared its source otherwise, and raw does not keep "
                "what is needed to read it as declared now. Put this very file among the sources again if it is not there, and "
                "launch raw of its day, or: backfill reland; or set source in dataset.yaml back to what it was"
            )
        if kind.get(HEADER) is not None:
            found[kind[HEADER]] = kind["_source_file"]
    return found


def _kinds_of_rows(path: Path, days: Collection[dt.date]) -> Iterator[tuple[FileContent, dict[str, Any], int]]:
    """Of the rows that raw has of some days: what was delivered, with form and headline, and how many; some more than once."""
    for file, day in files_of_days(path, DELIVERY_DAY, days).items():
        with pq.ParquetFile(path / file) as read:
            names = [name for name in (FORM, HEADER, "_source_file", "_fingerprint") if name in read.schema_arrow.names]
            # A batch at a time: a headline stands beside each of its rows.
            for batch in read.iter_batches(columns=names):
                kinds = pa.Table.from_batches([batch]).group_by(names).aggregate([([], "count_all")])
                for kind in kinds.to_pylist():
                    yield (day, kind["_source_file"], kind["_fingerprint"]), kind, kind["count_all"]
