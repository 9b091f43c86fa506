"""Golden sources: the rows on which a shadow and an independent table do not agree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.errors import DatasetError, SourceError
from backfill_assets.core.evidence import Row
from backfill_assets.core.measured import GoldenCounts
from backfill_assets.dataset.checks import golden_check
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import Golden
from backfill_assets.evidence.inputs import golden_key, golden_place
from backfill_assets.pipeline.compare import (
    ADDED,
    CHANGED,
    COLUMNS,
    REMOVED,
    STATUS,
    Shape,
    differing,
    matched,
    new_column,
    old_column,
)
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.reads import undeclared
from backfill_assets.pipeline.run_models import read_file, run_query
from backfill_assets.pipeline.samples import CHECK, Failed, Samples, plain_value, samples_of
from backfill_assets.pipeline.tables import in_days, read_table, renamed
from backfill_assets.pipeline.types import declared_type, is_nested

_KINDS: Final[Mapping[str, str]] = {ADDED: "missing there", REMOVED: "missing here", CHANGED: "different"}
_WHOLE: Final = T.DecimalType(20, 0)
_WIDEST: Final = 38


def golden_counts(frames: Frames) -> Mapping[dt.date, Mapping[str, GoldenCounts]]:
    """How many rows agree and how many do not, by day and golden source; one join per golden source.

    Raises:
        SourceError: a file or table is missing or does not fit what `dataset.yaml` declares.
        DatasetError: a query of `dataset.yaml` cannot be evaluated, or returns other columns than it must.
    """
    loaded, partition = frames.loaded, frames.dataset.partition_column
    found: dict[dt.date, dict[str, GoldenCounts]] = {day: {} for day in frames.days}
    tables = _tables(frames) if loaded.dataset.golden else {}
    for name in loaded.dataset.golden:
        with renamed(SourceError, golden_key(loaded, name), also=("FAILED_READ_FILE", "CANNOT_READ_FILE")):
            theirs, ours = _sides(frames, name, tables, frames.days)
            # Numbered: if a key occurs twice here and once there, one row is missing there.
            rows = matched(theirs, ours, _shape(loaded, name), numbered=True)
            grouped = rows.groupBy(partition).agg(*_kinds_of_rows()).collect()
        counted = {row.pop(partition): GoldenCounts(**row) for row in (found_row.asDict() for found_row in grouped)}
        for day in frames.days:
            found[day][name] = counted.get(day, GoldenCounts())
    return found


def golden_samples(frames: Frames, failed: Failed) -> Samples:
    """Up to five disagreeing rows per failed check and day: kind, key, our values and theirs."""
    wanted = {name: failed[golden_check(name)] for name in frames.dataset.golden if golden_check(name) in failed}
    tables = _tables(frames) if wanted else {}
    found: Samples = {}
    for name, days in wanted.items():
        theirs, ours = _sides(frames, name, tables, days)
        shape = _shape(frames.loaded, name)
        apart = differing(theirs, ours, shape, numbered=True).withColumn(CHECK, F.lit(golden_check(name)))
        order = [F.col(STATUS), *(F.col(column) for column in shape.match)]
        found |= samples_of(apart, shape.partition, order, partial(_sample, shape))
    return found


def _tables(frames: Frames) -> Mapping[str, DataFrame]:
    own = frames.shadow(frames.days).select(*frames.dataset.columns)
    return {frames.loaded.name: own, **frames.upstream, **frames.references}


def _sides(
    frames: Frames, name: str, tables: Mapping[str, DataFrame], days: Collection[dt.date]
) -> tuple[DataFrame, DataFrame]:
    """Their rows and ours of some days: the compared columns, in comparable types."""
    spark, loaded, golden = frames.spark, frames.loaded, frames.dataset.golden[name]
    others = {table: frame for table, frame in tables.items() if table != loaded.name}
    own: dict[str, DataFrame] = {}
    if golden.file is not None:
        place, shown = golden_place(loaded, frames.layout, name), f"golden.{name}.file: {golden.file.path}"
        own[name] = read_file(spark, golden.file, place, shown)
    elif golden.table is not None:
        own[name] = read_table(spark, golden_place(loaded, frames.layout, name))
    known = {**others, **own}
    theirs = own[name] if golden.sql is None else _queried(spark, golden.sql, known, golden_key(loaded, name, "sql"))
    ours = tables[loaded.name]
    if golden.ours is not None:
        ours = _queried(spark, golden.ours, tables, golden_key(loaded, name, "ours"))
    _require_columns(theirs, loaded, golden, golden_key(loaded, name, *(["sql"] if golden.sql else [])))
    _require_columns(ours, loaded, golden, golden_key(loaded, name, "ours"))
    theirs, ours = _alike(theirs, ours, golden, golden_key(loaded, name, "columns"))
    chosen = in_days(loaded.dataset.partition_column, days)
    return theirs.where(chosen), ours.where(chosen)


def _kinds_of_rows() -> tuple[Column, ...]:
    """Counts of the rows of `matched` by kind, named as in `GoldenCounts`."""
    status = F.col(STATUS)
    return (
        F.count_if(status == REMOVED).alias("missing_here"),
        F.count_if(status == ADDED).alias("missing_there"),
        F.count_if(status == CHANGED).alias("different"),
        F.count_if(status.isNull()).alias("equal"),
    )


def _queried(spark: SparkSession, text: str, tables: Mapping[str, DataFrame], where: str) -> DataFrame:
    with renamed(DatasetError, where):
        frame = run_query(spark, text, tables)
        _ = frame.schema
        if problem := undeclared(frame, tables):
            raise DatasetError(f"{where}: {problem}")
    return frame


def _shape(loaded: LoadedDataset, name: str) -> Shape:
    golden = loaded.dataset.golden[name]
    columns = {column: agreed.tolerance for column, agreed in golden.columns.items()}
    return Shape(loaded.dataset.partition_column, golden.key, columns)


def _require_columns(frame: DataFrame, loaded: LoadedDataset, golden: Golden, where: str) -> None:
    types = {field.name: field.dataType for field in frame.schema.fields}
    missing = [column for column in (*golden.key, *golden.columns) if column not in types]
    if missing:
        raise DatasetError(f"{where} has no column {missing[0]!r}; it has {', '.join(types)}")
    day = loaded.dataset.partition_column
    if not isinstance(types[day], T.DateType):
        raise DatasetError(f"{where}: {day} is a {declared_type(types[day])}; make it a date")


def _alike(theirs: DataFrame, ours: DataFrame, golden: Golden, where: str) -> tuple[DataFrame, DataFrame]:
    """Both sides with only the compared columns, numbers in types that hold the values of either side."""
    there, here = ({field.name: field.dataType for field in frame.schema.fields} for frame in (theirs, ours))
    columns = []
    for name in (*golden.key, *golden.columns):
        common = _common(there[name], here[name])
        if common is None:
            raise DatasetError(
                f"{where}: {name} is a {declared_type(there[name])} there and a {declared_type(here[name])} here; "
                "cast one of them in sql or ours"
            )
        if is_nested(common) and (name in golden.key or golden.columns[name].tolerance):
            what = "part of the key" if name in golden.key else "compared with a tolerance"
            raise DatasetError(
                f"{where}: {name} is a {declared_type(common)}, and cannot be {what}; compare one of its parts in sql"
            )
        # Of two types with parts, one may say that they are never null: neither is cast to the other then.
        columns.append(F.col(name) if is_nested(common) else F.col(name).cast(common).alias(name))
    return theirs.select(*columns), ours.select(*columns)


def _common(one: T.DataType, other: T.DataType) -> T.DataType | None:
    """A type that holds the values of both; None if they cannot be compared."""
    if declared_type(one) == declared_type(other):
        return one
    if not isinstance(one, T.NumericType) or not isinstance(other, T.NumericType):
        return None
    exact = [_decimal(kind) for kind in (one, other)]
    if any(kind is None for kind in exact):
        return T.DoubleType()
    known = [kind for kind in exact if kind is not None]
    scale = max(kind.scale for kind in known)
    return T.DecimalType(min(max(kind.precision - kind.scale for kind in known) + scale, _WIDEST), scale)


def _decimal(kind: T.NumericType) -> T.DecimalType | None:
    if isinstance(kind, T.DecimalType):
        return kind
    return None if isinstance(kind, T.FractionalType) else _WHOLE


def _sample(shape: Shape, row: Mapping[str, Any]) -> Row:
    status, shown = row[STATUS], row[COLUMNS] or tuple(shape.columns)
    sides = {"ours": (new_column, REMOVED), "theirs": (old_column, ADDED)}
    return {
        "kind": _KINDS[status],
        "key": _listed({column: row[column] for column in shape.match}),
        **{
            side: "nothing" if status == absent else _listed({name: row[of(name)] for name in shown})
            for side, (of, absent) in sides.items()
        },
    }


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={plain_value(value)}" for name, value in values.items())
