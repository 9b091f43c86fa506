"""Measure: every figure of every day of a batch, from one grouped aggregation per side."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.measured import NOTHING, ROW_COUNT, Figures, Side
from backfill_assets.dataset.check_list import metric_names
from backfill_assets.dataset.checks import PERCENTILES, Measure
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import is_table
from backfill_assets.lakehouse.road.fingerprint import (
    fingerprint_columns,
    fingerprint_of,
    with_declared_columns,
)
from backfill_assets.lakehouse.road.matching import is_checked, is_unmatched, with_matches
from backfill_assets.lakehouse.road.references import reference_tables
from backfill_assets.lakehouse.road.shadow import shadow_path
from backfill_assets.lakehouse.road.spark_sql import figures_of, is_numeric, is_true, renamed
from backfill_assets.lakehouse.road.staging import read_staged
from backfill_assets.lakehouse.road.tables import read_days
from backfill_assets.storage.layout import Layout

_METRIC: Final = "metric:"
_COUNT: Final = "count:"
_PERCENTILES: Final = "percentiles:"


@dataclass(frozen=True)
class Sides:
    """What was measured for one day on each side."""

    shadow: Side
    published: Side
    staging: Side


def measure(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], attempt_folder: str
) -> Mapping[dt.date, Sides]:
    """Measure the shadow of an attempt, what is published and what is staged; a side without rows is `NOTHING`.

    A column that the published table lacks has no metrics there, and counts as all null in its fingerprint.

    Raises:
        DatasetError: a rule or a reference check of `dataset.yaml` cannot be evaluated.
        SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
    """
    if not days:
        return {}
    shadow = _shadow(spark, loaded, layout, days, attempt_folder)
    published = _published(spark, loaded, layout, days)
    staging = _staging(spark, loaded, layout, days)
    sides = (shadow, published, staging)
    return {day: Sides(*(side.get(day, NOTHING) for side in sides)) for day in days}


def published_figures(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date]
) -> Mapping[dt.date, Figures]:
    """Row counts and sums of what is published, by day, in one grouped pass; days without a row lack.

    Percentiles and distinct counts, which cost more than all else, are left out.
    """
    dataset, path = loaded.dataset, layout.published_path(loaded.name)
    if not days or not is_table(path):
        return {}
    frame = read_days(spark, path, dataset.partition_column, days)
    return {day: side.metrics for day, side in _sides(dataset, (frame, _sums(frame, dataset))).items()}


def _shadow(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], attempt_folder: str
) -> dict[dt.date, Side]:
    dataset = loaded.dataset
    frame = read_days(spark, shadow_path(loaded, layout, attempt_folder), dataset.partition_column, days)
    check_rules(frame, loaded)
    where = f"{loaded.folder / 'dataset.yaml'}: checks"
    with renamed(DatasetError, where):
        matched = with_matches(frame, dataset, reference_tables(spark, loaded, layout))
        columns = [*_metrics(frame, dataset), *_counts(dataset), *fingerprint_columns(dataset)]
        distinct = [*_distinct(frame, dataset), _duplicate_keys(dataset)]
        return _sides(dataset, (matched, columns), (frame, distinct))


def _published(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date]
) -> dict[dt.date, Side]:
    dataset, path = loaded.dataset, layout.published_path(loaded.name)
    if not is_table(path):
        return {}
    frame = read_days(spark, path, dataset.partition_column, days)
    columns = [*_metrics(frame, dataset), *fingerprint_columns(dataset)]
    whole = with_declared_columns(frame, dataset)
    return _sides(dataset, (whole, columns), (frame, list(_distinct(frame, dataset))))


def _staging(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date]
) -> dict[dt.date, Side]:
    dataset = loaded.dataset
    if dataset.source is None:
        return {}
    frame = read_staged(spark, loaded, layout, days)
    return _sides(dataset, (frame, _sums(frame, dataset)))


def figures_by_day(frame: DataFrame, dataset: Dataset) -> Mapping[dt.date, Figures]:
    """The metrics of every day of a frame; those of a declared column that it lacks are null."""
    whole = with_declared_columns(frame, dataset)
    sides = _sides(dataset, (whole, list(_metrics(frame, dataset))), (frame, list(_distinct(frame, dataset))))
    return {day: side.metrics for day, side in sides.items()}


def check_rules(frame: DataFrame, loaded: LoadedDataset) -> None:
    """Refuse a rule that Spark cannot evaluate on the frame; runs no Spark job.

    Raises:
        DatasetError: names the first such rule.
    """
    rules = loaded.dataset.checks.rules
    try:
        _ = frame.select(*(F.expr(rule.sql).cast("boolean") for rule in rules.values())).schema if rules else None
    except PySparkException:
        for name, rule in rules.items():
            key = f"{loaded.folder / 'dataset.yaml'}: checks.rules.{name}.sql"
            with renamed(DatasetError, key):
                _ = frame.select(F.expr(rule.sql).cast("boolean")).schema
        raise


def is_failing(sql: str) -> Column:
    """Whether a row fails a rule; null is a failure."""
    return ~is_true(F.expr(sql).cast("boolean"))


def _sums(frame: DataFrame, dataset: Dataset) -> list[Column]:
    """Of the metrics those that cost next to nothing: row count and sums."""
    summed = {name: Measure() for name, measure in dataset.measures.items() if measure.sum}
    return list(_metrics(frame, dataset.model_copy(update={"measures": summed})))


def _metrics(frame: DataFrame, dataset: Dataset) -> Iterator[Column]:
    yield F.count("*").alias(_METRIC + ROW_COUNT)
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name, measure in dataset.measures.items():
        if name not in types:
            continue
        column = F.col(name)
        if measure.sum and is_numeric(types[name]):
            yield F.sum(summable(column, types[name])).alias(_METRIC + name)
        if measure.percentiles and is_numeric(types[name]):
            yield F.percentile(column, list(PERCENTILES.values())).alias(_PERCENTILES + name)


def _distinct(frame: DataFrame, dataset: Dataset) -> Iterator[Column]:
    for name, measure in dataset.measures.items():
        if measure.distinct and name in frame.columns:
            yield F.count_distinct(F.col(name)).alias(f"{_METRIC}distinct_{name}")


def summable(column: Column, kind: T.DataType) -> Column:
    """A number in a type whose sum is exact, or at least that of a double."""
    if isinstance(kind, T.DecimalType):
        return column
    # Whole numbers are summed exactly and cannot overflow; floats not in their own short precision.
    return column.cast("double" if isinstance(kind, T.FractionalType) else T.DecimalType(38, 0))


def _duplicate_keys(dataset: Dataset) -> Column:
    # Of a struct, nulls are values like any other.
    return (F.count("*") - F.count_distinct(F.struct(*dataset.key))).alias(_COUNT + "duplicate_keys")


def _counts(dataset: Dataset) -> Iterator[Column]:
    for name in dataset.required_columns:
        yield F.count_if(F.col(name).isNull()).alias(f"{_COUNT}nulls:{name}")
    for name, rule in dataset.checks.rules.items():
        yield F.count_if(is_failing(rule.sql)).alias(f"{_COUNT}rule:{name}")
    for name, check in dataset.checks.references.items():
        yield F.count_if(is_checked(check)).alias(f"{_COUNT}checked:{name}")
        yield F.count_if(is_unmatched(name, check)).alias(f"{_COUNT}unmatched:{name}")


def _sides(dataset: Dataset, *passes: tuple[DataFrame, list[Column]]) -> dict[dt.date, Side]:
    """What the passes find of each day.

    Distinct values are counted in one of their own: with them, the state of all other aggregates would be shuffled once for
    each distinct value.
    """
    day, found = dataset.partition_column, dict[dt.date, dict[str, Any]]()
    for frame, columns in passes:
        for row in frame.groupBy(day).agg(*columns).collect() if columns else ():
            found.setdefault(row[day], {}).update(row.asDict())
    return {own: _side(values, dataset) for own, values in found.items()}


def _side(values: Mapping[str, Any], dataset: Dataset) -> Side:
    metrics = {k.removeprefix(_METRIC): v for k, v in values.items() if k.startswith(_METRIC)}
    for key in [k for k in values if k.startswith(_PERCENTILES)]:
        found = values[key] or [None] * len(PERCENTILES)
        for prefix, value in zip(PERCENTILES, found, strict=True):
            metrics[f"{prefix}_{key.removeprefix(_PERCENTILES)}"] = value
    figures, floating = figures_of(metrics)
    return Side(
        metrics={name: figures.get(name) for name in metric_names(dataset)},
        floating=floating,
        counts={k.removeprefix(_COUNT): v for k, v in values.items() if k.startswith(_COUNT)},
        fingerprint=fingerprint_of(values) if "fingerprint:rows" in values else "",
    )
