"""Samples: example rows for each failed verdict."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.canonical import plain
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.evidence import DayEvidence, Row
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import Value
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.raw_contents import DELIVERY_DAY
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.judge_rows import promises_of
from backfill_assets.pipeline.matches import is_ambiguous, is_unmatched, with_matches
from backfill_assets.pipeline.measure import is_failing
from backfill_assets.pipeline.parse import CORRUPT
from backfill_assets.pipeline.raw_table import read_in_force
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.stage import LINEAGE, outside_rows
from backfill_assets.pipeline.tables import first_rows, in_days
from backfill_assets.pipeline.types import ordered, parts_of

CHECK: Final = "_check"
"""The column that names the check that a row is a sample of."""

_MOST: Final = 5
_LONGEST_TEXT: Final = 200
_BEFORE: Final = 40
"""Characters that are shown before the first difference."""

Samples = dict[tuple[str, dt.date], tuple[Row, ...]]
"""Rows by check and day."""
Failed = Mapping[str, Collection[dt.date]]
"""The days on which checks fail, by check."""
Broken = Mapping[tuple[str, str], Collection[dt.date]]
"""Days by check and column: the changed rows that are wanted as samples."""


def failed_days(evidence: Iterable[DayEvidence]) -> Failed:
    """The days of each failed check."""
    found: dict[str, list[dt.date]] = {}
    for verdict in (v for one in evidence for v in one.verdicts if not v.passed):
        found.setdefault(verdict.check, []).append(verdict.day)
    return found


def columns_behind(dataset: Dataset, contract: Contract, evidence: Iterable[DayEvidence]) -> Broken:
    """The columns whose changed rows are behind the failed verdicts about rows, with their days."""
    found: dict[tuple[str, str], list[dt.date]] = {}
    for one in evidence:
        rows = one.compared.rows if one.compared else None
        if rows is None:
            continue
        promises = promises_of(dataset, one.day, contract, one.compared)
        bad = {"change_rows": promises.broken(rows), "change_columns": promises.unnamed(rows)}
        for check in (v.check for v in one.verdicts if not v.passed and v.check in bad):
            for column in bad[check]:
                found.setdefault((check, column), []).append(one.day)
    return found


def plain_value(value: object) -> Value:
    """A value of a row as a plain JSON value; long texts are truncated."""
    found = json_value(value)
    return found[:_LONGEST_TEXT] + "…" if isinstance(found, str) and len(found) > _LONGEST_TEXT else found


def around_the_difference(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """Two texts that differ, cut to where they do so first if they are long."""
    if old is None or new is None:
        return _cut(old, 0), _cut(new, 0)
    same = next(
        (i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )
    first = max(0, same - _BEFORE) if max(len(old), len(new)) > _LONGEST_TEXT else 0
    return _cut(old, first), _cut(new, first)


def _cut(text: str | None, first: int) -> str | None:
    if text is None:
        return None
    end = first + _LONGEST_TEXT
    return f"{'…' if first else ''}{text[first:end]}{'…' if len(text) > end else ''}"


def json_value(value: object) -> Value:
    """A value of a row as a plain JSON value, never truncated; NaN and infinities become text, bytes hex, parts JSON."""
    found = _jsonable(parts_of(value))
    return json.dumps(found, ensure_ascii=False) if isinstance(found, (list, dict)) else cast("Value", found)


def shown_value(value: object) -> object:
    """A value of a row for people: one with parts as JSON, and bytes in hex."""
    return json_value(value) if isinstance(value, (tuple, list, dict, bytes, bytearray)) else value


def _jsonable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, list):
        return [_jsonable(one) for one in value]
    if isinstance(value, dict):
        return {str(plain(key)): _jsonable(one) for key, one in value.items()}
    return plain(value)


def _plain_row(row: Mapping[str, object]) -> Row:
    return {name: plain_value(value) for name, value in row.items() if name != CHECK}


def samples_of(
    frame: DataFrame, day: str, order: Sequence[Column], shown: Callable[[Mapping[str, Any]], Row] = _plain_row
) -> Samples:
    """Up to five rows per check and day of a frame that has the column `CHECK`, as plain JSON values.

    By default, a row is shown with all its columns.
    """
    first = first_rows(frame, [CHECK, day], order, _MOST)
    return {(check, own): tuple(map(shown, rows)) for (check, own), rows in first.items()}


def sample(frames: Frames, failed: Failed, force: Collection[Delivery]) -> Samples:
    """Up to five bad rows of the shadow and of deliveries per failed check and day; at most three Spark queries.

    `force` are the deliveries in force of the days. Changes and reconciliations have no samples: no single row is wrong.

    Raises:
        SourceError: raw no longer has the rows of these deliveries.
    """
    found: Samples = {}
    if days := failed.get("unique_key"):
        found |= _duplicates(frames, days)
    bad = _bad_rows(frames.dataset)
    if wanted := {name: failed[name] for name in bad if name in failed}:
        found |= _bad_samples(frames, bad, wanted)
    if days := failed.get("corrupt_rows"):
        found |= _corrupt(frames, days, force)
    return found


def _duplicates(frames: Frames, days: Collection[dt.date]) -> Samples:
    dataset = frames.dataset
    key = list(dict.fromkeys((dataset.partition_column, *dataset.key)))
    counted = frames.shadow(days).groupBy(*key).agg(F.count("*").alias("rows")).where(F.col("rows") > 1)
    order = [F.desc("rows"), *(F.col(column) for column in key)]
    return samples_of(counted.withColumn(CHECK, F.lit("unique_key")), dataset.partition_column, order)


def _bad_rows(dataset: Dataset) -> Mapping[str, Column]:
    """The condition by check that a row of `with_matches` is bad."""
    nulls = [F.col(column).isNull() for column in dataset.required_columns]
    return {
        "not_null": reduce(Column.__or__, nulls),
        **{f"rule_{name}": is_failing(rule.sql) for name, rule in dataset.checks.rules.items()},
        **{
            f"reference_{name}": is_unmatched(name, check) | is_ambiguous(name, check)
            for name, check in dataset.checks.references.items()
        },
    }


def _bad_samples(frames: Frames, bad: Mapping[str, Column], wanted: Failed) -> Samples:
    dataset, partition = frames.dataset, frames.dataset.partition_column
    shadow = frames.shadow({day for days in wanted.values() for day in days})
    tags = [F.when(bad[name] & in_days(partition, days), F.lit(name)) for name, days in wanted.items()]
    matched = with_matches(shadow, frames)
    tagged = matched.withColumn(CHECK, F.explode(F.array_compact(F.array(*tags)))).select(CHECK, *dataset.columns)
    types = {field.name: field.dataType for field in tagged.schema.fields}
    order = [
        F.expr(ordered(quoted(column), types[column])) for column in dict.fromkeys((*dataset.key, *dataset.columns))
    ]
    return samples_of(tagged, partition, order)


def _corrupt(frames: Frames, days: Collection[dt.date], force: Collection[Delivery]) -> Samples:
    """Unreadable rows of each delivery day that may bring the days, and rows that these days delivered for other days."""
    spark, loaded, layout, dataset = frames.spark, frames.loaded, frames.layout, frames.dataset
    raw = read_in_force(spark, loaded, layout, dataset.delivery_days(tuple(days)), force)
    unreadable = raw.where(F.col(CORRUPT).isNotNull()).select(
        F.lit("unreadable").alias("problem"), DELIVERY_DAY, "_source_file", CORRUPT
    )
    columns = dict.fromkeys((dataset.partition_column, *dataset.key))
    strangers = outside_rows(spark, loaded, layout, {dataset.due(day) for day in days}, force).select(
        F.lit("of another day").alias("problem"),
        F.col(LINEAGE).getField("delivery_day").alias(DELIVERY_DAY),
        F.col(LINEAGE).getField("source_file").alias("_source_file"),
        F.to_json(F.struct(*columns)).alias(CORRUPT),
    )
    order = [F.col("_source_file"), F.col(CORRUPT)]
    first = first_rows(unreadable.unionByName(strangers), ["problem", DELIVERY_DAY], order, _MOST)
    found: Samples = {}
    for day in days:
        own = []
        for delivered in dataset.delivery_days((day,)):
            own += first.get(("unreadable", delivered), [])
            own += first.get(("of another day", delivered), []) if delivered == dataset.due(day) else []
        found["corrupt_rows", day] = tuple(map(_plain_row, own[:_MOST]))
    return found
