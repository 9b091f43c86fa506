"""Row examples: the largest changes of every measure, and some of the rows behind a failed verdict."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.measured import RowChange
from backfill_assets.lakehouse.road.compare import new_column, old_column
from backfill_assets.lakehouse.road.row_values import Bands, Pair, differs_in
from backfill_assets.lakehouse.road.samples import Samples, plain_value
from backfill_assets.lakehouse.road.spark_sql import first_of_each, in_days, is_numeric

Broken = Mapping[tuple[str, str], tuple[dt.date, ...]]
"""Days by check and column: which changed rows are wanted as samples."""

_LARGEST: Final = 100
_SAMPLED: Final = 5
_CHECK: Final = "_check"
_SUBJECT: Final = "_subject"
_OLD: Final = "_old"
_NEW: Final = "_new"
_SIZE: Final = "_size"


def largest_of(rows: DataFrame, pair: Pair) -> Mapping[dt.date, tuple[RowChange, ...]]:
    """Of each measure the hundred rows of all days that move it most, by day; the largest first."""
    if not pair.measures:
        return {}
    match, day = pair.shape.match, pair.shape.partition
    order = [F.desc(_SIZE), *(F.col(name) for name in match)]

    def moved(name: str) -> DataFrame:
        # As text, for the measures have different types and none may lose a digit.
        sides = (pair.number(name, old=side).cast("string") for side in (True, False))
        size = F.abs(pair.delta(name)).cast("double").alias(_SIZE)
        named = [F.lit(name).alias(_SUBJECT), *(s.alias(n) for s, n in zip(sides, (_OLD, _NEW), strict=True)), size]
        # Sorted and cut in one: no measure's rows are ever sorted whole.
        return rows.select(*match, *named).where(F.col(_SIZE) > 0).orderBy(*order).limit(_LARGEST)

    found: dict[dt.date, list[RowChange]] = {}
    for row in reduce(DataFrame.unionAll, map(moved, pair.measures)).orderBy(*order).collect():
        key = {name: plain_value(row[name]) for name in match if name != day}
        change = RowChange(row[_SUBJECT], row[day], key, _number(row[_OLD]), _number(row[_NEW]))
        found.setdefault(change.day, []).append(change)
    return {day: tuple(changes) for day, changes in found.items()}


def sampled(rows: DataFrame, pair: Pair, bands: Bands, wanted: Broken) -> Samples:
    """Up to five changed rows per check and day, those first that moved most: day, key, column, old and new value.

    Of a column that is promised something only rows that break the promise.
    """
    match, day = pair.shape.match, pair.shape.partition
    tagged = rows.select(*match, F.inline(F.array_compact(F.array(*_tags(pair, bands, wanted)))))
    order = [F.desc_nulls_last(_SIZE), *(F.col(name) for name in match), F.col(_SUBJECT)]
    first = first_of_each(tagged, [_CHECK, day], order, _SAMPLED).orderBy(_CHECK, day, *order)
    found: dict[tuple[str, dt.date], list[dict[str, object]]] = {}
    for row in first.collect():
        found.setdefault((row[_CHECK], row[day]), []).append(_sample(row, match))
    return {key: tuple(own) for key, own in found.items()}


def _tags(pair: Pair, bands: Bands, wanted: Broken) -> list[Column]:
    tags = []
    for (check, name), days in wanted.items():
        size = F.abs(pair.delta(name)).cast("double") if is_numeric(pair.types[name]) else F.lit(None).cast("double")
        tag = F.struct(
            F.lit(check).alias(_CHECK),
            F.lit(name).alias(_SUBJECT),
            F.col(old_column(name)).cast("string").alias(_OLD),
            F.col(new_column(name)).cast("string").alias(_NEW),
            size.alias(_SIZE),
        )
        broken = F.coalesce(pair.outside(name, bands), F.lit(True))
        tags.append(F.when(in_days(pair.shape.partition, days) & differs_in(name) & broken, tag))
    return tags


def _sample(row: Row, match: tuple[str, ...]) -> dict[str, object]:
    shown = {"column": row[_SUBJECT], "old": plain_value(row[_OLD]), "new": plain_value(row[_NEW])}
    return {name: plain_value(row[name]) for name in match} | shown


def _number(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
