"""Samples: some of the rows behind each failed verdict."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Final, cast

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.canonical import plain
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.evidence import CheckKind, Verdict
from backfill_assets.core.evidence import Row as SampleRow
from backfill_assets.core.measured import Value
from backfill_assets.dataset.check_list import checks_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.build import shadow_path
from backfill_assets.pipeline.measure import is_failing, is_unmatched, with_matches
from backfill_assets.pipeline.parse import CORRUPT
from backfill_assets.pipeline.raw_table import DELIVERY_DAY, read_in_force
from backfill_assets.pipeline.run_models import reference_tables
from backfill_assets.pipeline.stage import LINEAGE, outside_rows
from backfill_assets.pipeline.tables import first_of_each, in_days, read_days
from backfill_assets.storage.layout import Layout

_MOST: Final = 5
_LONGEST_TEXT: Final = 200
_CHECK: Final = "_check"

Samples = dict[tuple[str, dt.date], tuple[SampleRow, ...]]
"""Rows by check and day."""


def sample(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    attempt_folder: str,
    failed: Collection[Verdict],
    force: Collection[Delivery],
) -> Mapping[tuple[str, dt.date], tuple[SampleRow, ...]]:
    """Up to five offending rows per failed (check, day), as plain JSON values; at most three Spark queries.

    `force` are the deliveries in force behind the days. Changes and reconciliations have none: no single row is wrong in them.

    Raises:
        SourceError: raw does not have the rows of these deliveries any more.
    """
    kinds = {check.name: check.kind for check in checks_of(loaded.dataset)}
    days: dict[str, set[dt.date]] = {}
    for verdict in failed:
        days.setdefault(verdict.check, set()).add(verdict.day)
    of = {kind: {name: days[name] for name in days if kinds.get(name) is kind} for kind in CheckKind}
    by_row = {**of[CheckKind.not_null], **of[CheckKind.rule], **of[CheckKind.reference]}
    keys, corrupt = of[CheckKind.unique_key], of[CheckKind.corrupt_rows]
    partition = loaded.dataset.partition_column
    shadow_days = {day for wanted in (*by_row.values(), *keys.values()) for day in wanted}
    found: Samples = {}
    if shadow_days:
        shadow = read_days(spark, shadow_path(loaded, layout, attempt_folder), partition, shadow_days)
        if keys:
            found |= _grouped(_duplicates(shadow, loaded, *keys), partition)
        if by_row:
            references = reference_tables(spark, loaded, layout)
            found |= _grouped(_rows(with_matches(shadow, loaded.dataset, references), loaded, by_row), partition)
    for name, wanted in corrupt.items():
        found |= _corrupt(spark, loaded, layout, (name, wanted), force)
    return {key: rows for key, rows in found.items() if key[1] in days.get(key[0], ())}


def _duplicates(shadow: DataFrame, loaded: LoadedDataset, name: str) -> DataFrame:
    dataset = loaded.dataset
    key = list(dict.fromkeys((dataset.partition_column, *dataset.key)))
    counted = shadow.groupBy(*key).agg(F.count("*").alias("rows")).where(F.col("rows") > 1)
    order = [F.desc("rows"), *(F.col(column) for column in key)]
    return first_of_each(counted, [dataset.partition_column], order, _MOST).withColumn(_CHECK, F.lit(name))


def _rows(matched: DataFrame, loaded: LoadedDataset, wanted: Mapping[str, Collection[dt.date]]) -> DataFrame:
    dataset = loaded.dataset
    nulls = [F.col(column).isNull() for column in dataset.required_columns]
    bad: dict[str, Column] = {"not_null": reduce(Column.__or__, nulls)}
    bad |= {f"rule_{name}": is_failing(rule.sql) for name, rule in dataset.checks.rules.items()}
    bad |= {f"reference_{name}": is_unmatched(name, check) for name, check in dataset.checks.references.items()}
    tags = [F.when(bad[name] & in_days(dataset.partition_column, days), F.lit(name)) for name, days in wanted.items()]
    tagged = matched.withColumn(_CHECK, F.explode(F.array_compact(F.array(*tags))))
    order = [F.col(column) for column in dict.fromkeys((*dataset.key, *dataset.columns))]
    first = first_of_each(tagged, [_CHECK, dataset.partition_column], order, _MOST)
    return first.select(_CHECK, *dataset.columns)


def _grouped(frame: DataFrame, partition: str) -> Samples:
    found: dict[tuple[str, dt.date], list[SampleRow]] = {}
    for row in frame.collect():
        found.setdefault((row[_CHECK], row[partition]), []).append(_plain_row(row))
    return {key: tuple(rows) for key, rows in found.items()}


def _corrupt(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    wanted: tuple[str, Collection[dt.date]],
    force: Collection[Delivery],
) -> Samples:
    """Unreadable rows of every delivery day that may bring the days, and rows that the days brought for others."""
    name, days = wanted
    dataset = loaded.dataset
    raw = read_in_force(spark, loaded, layout, dataset.delivery_days(tuple(days)), force)
    unreadable = raw.where(F.col(CORRUPT).isNotNull()).select(
        F.lit("unreadable").alias("problem"), DELIVERY_DAY, "_source_file", CORRUPT
    )
    others = outside_rows(spark, loaded, layout, days, force)
    columns = dict.fromkeys((dataset.partition_column, *dataset.key))
    strangers = others.select(
        F.lit("of another day").alias("problem"),
        F.col(LINEAGE).getField("delivery_day").alias(DELIVERY_DAY),
        F.col(LINEAGE).getField("source_file").alias("_source_file"),
        F.to_json(F.struct(*columns)).alias(CORRUPT),
    )
    order = [F.col("_source_file"), F.col(CORRUPT)]
    first = first_of_each(unreadable.unionByName(strangers), ["problem", DELIVERY_DAY], order, _MOST)
    rows = first.orderBy(DELIVERY_DAY, F.desc("problem"), *order).collect()
    found: Samples = {}
    for day in days:
        window = set(dataset.delivery_days((day,)))
        own = [
            r for r in rows if r[DELIVERY_DAY] == day or (r["problem"] == "unreadable" and r[DELIVERY_DAY] in window)
        ]
        found[name, day] = tuple(_plain_row(row) for row in own[:_MOST])
    return found


def _plain_row(row: Row) -> SampleRow:
    return {name: plain_value(value) for name, value in _items(row) if name != _CHECK}


def _items(row: Row) -> Iterable[tuple[str, object]]:
    return row.asDict().items()


def plain_value(value: object) -> Value:
    """A value of a row as a plain JSON one; long texts are cut."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return value[:_LONGEST_TEXT] + "…"
    return json_value(value)


def json_value(value: object) -> Value:
    """A value of a row as a plain JSON one, whole; what is no finite number is text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return cast("Value", plain(value))
