"""Shares: which values of which dimensions the differing rows of each day have, and how much of each measure they move."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.domain.comparison import DELIVERY_FILE, Share
from backfill_assets.lakehouse.road.spark_sql import figure

MOVED: Final = "moved:"
"""Prefix of the columns that hold how far a row moves a measure."""
GONE: Final = "_gone"
"""The column that holds 1 for a row that is removed, -1 for one that is added, and otherwise 0."""

_LEAST: Final = 0.01
"""The least part of a day's move that is worth a value: attribution puts that price on each. So at most a hundred are kept."""
_LONGEST: Final = 200
_NULL: Final = "(null)"
_NOT_DELIVERED: Final = "(not delivered)"
_DIMENSION: Final = "_dimension"
_VALUE: Final = "_value"
_FILE: Final = "_file"
_ROWS: Final = "_rows"


@dataclass(frozen=True)
class Slices:
    """What rows are told apart by: columns, and the delivery file of their key, where staging gives one.

    `match` are the day and the key, the day first; `staged` has a row per match with the column `_source_file`.
    """

    match: tuple[str, ...]
    columns: tuple[str, ...]
    staged: DataFrame | None

    @property
    def none(self) -> bool:
        """Whether there is nothing to tell rows apart by."""
        return not self.columns and self.staged is None


def shares_of(
    rows: DataFrame, new: DataFrame, measures: tuple[str, ...], slices: Slices
) -> Mapping[dt.date, tuple[Share, ...]]:
    """By day the values of each dimension that make up at least one percent of the move of a measure.

    `rows` are the differing ones, with match, dimensions, `GONE`, and the column `MOVED` of each measure; `new` are all
    rows of these days in the shadow.
    """
    if slices.none or not measures:
        return {}
    found = _telling(_sliced(rows, slices), slices, measures).collect()
    if not found:
        return {}
    of = _all_rows(new, slices, found)
    shares: dict[dt.date, list[Share]] = {}
    for row in found:
        shares.setdefault(row[0], []).append(_share(row, measures, of))
    order = [*slices.columns, DELIVERY_FILE]
    return {
        day: tuple(sorted(own, key=lambda s: (order.index(s.dimension), -s.rows, s.value)))
        for day, own in shares.items()
    }


def _sliced(frame: DataFrame, slices: Slices) -> DataFrame:
    """The rows once per dimension, with its value."""
    pairs = _pairs(slices)
    if slices.staged is not None:
        frame = _with_file(frame, slices, slices.staged)
        file = F.coalesce(F.col(_FILE), F.lit(_NOT_DELIVERED))
        pairs.append(F.struct(F.lit(DELIVERY_FILE).alias(_DIMENSION), file.alias(_VALUE)))
    kept = [F.col(name) for name in frame.columns if name not in {*slices.columns, _FILE} - {*slices.match}]
    return frame.select(*kept, F.inline(F.array(*pairs)))


def _pairs(slices: Slices) -> list[Column]:
    return [
        F.struct(
            F.lit(name).alias(_DIMENSION),
            F.coalesce(F.substring(F.col(name).cast("string"), 1, _LONGEST), F.lit(_NULL)).alias(_VALUE),
        )
        for name in slices.columns
    ]


def _with_file(frame: DataFrame, slices: Slices, staged: DataFrame) -> DataFrame:
    kinds, own = ({f.name: f.dataType for f in one.schema.fields} for one in (staged, frame))
    files = staged.select(*(F.col(n).alias(f"_staged:{n}") for n in slices.match), F.col("_source_file").alias(_FILE))

    def equal(name: str) -> Column:
        mine, theirs = F.col(name), F.col(f"_staged:{name}")
        # A model may give a key another type: its text stays comparable, and text that is no number breaks nothing.
        return (
            mine.eqNullSafe(theirs)
            if kinds[name] == own[name]
            else mine.cast("string").eqNullSafe(theirs.cast("string"))
        )

    joined = frame.join(files, reduce(Column.__and__, map(equal, slices.match)), "left")
    return joined.drop(*(f"_staged:{name}" for name in slices.match))


def _telling(sliced: DataFrame, slices: Slices, measures: tuple[str, ...]) -> DataFrame:
    day = slices.match[0]
    moves = [MOVED + measure for measure in measures]
    sums = [F.sum(name).alias(name) for name in (GONE, *moves)]
    grouped = sliced.groupBy(day, _DIMENSION, _VALUE).agg(F.count("*").alias(_ROWS), *sums)
    # A row is in each dimension once: the sum over a dimension's values is that of the day.
    within = Window.partitionBy(day, _DIMENSION)
    whole = {name: f"_of:{name}" for name in moves}
    summed = grouped.withColumns({of: F.sum(name).over(within) for name, of in whole.items()})
    parts = [(F.col(name) > 0) & (F.col(name) >= F.col(of) * F.lit(_LEAST)) for name, of in whole.items()]
    return summed.where(reduce(Column.__or__, parts)).drop(*whole.values())


def _all_rows(new: DataFrame, slices: Slices, kept: list[Row]) -> Mapping[tuple[dt.date, str, str], int]:
    """Of each value that was kept how many rows it has in the shadow; of a file how many keys."""
    day = slices.match[0]
    sides = [new.select(day, F.inline(F.array(*_pairs(slices))))] if slices.columns else []
    if slices.staged is not None:
        # Counted where files are known: to find the file of every row would be the dearest join of all.
        named = F.struct(F.lit(DELIVERY_FILE).alias(_DIMENSION), F.col("_source_file").alias(_VALUE))
        sides.append(slices.staged.select(day, F.inline(F.array(named))))
    values = new.sparkSession.createDataFrame(
        [(row[0], row[_DIMENSION], row[_VALUE]) for row in kept], f"_day date, {_DIMENSION} string, {_VALUE} string"
    )
    asked = reduce(DataFrame.unionByName, sides).withColumnRenamed(day, "_day")
    names = ["_day", _DIMENSION, _VALUE]
    counted = asked.join(F.broadcast(values), names).groupBy(*names).agg(F.count("*").alias(_ROWS)).collect()
    return {(row["_day"], row[_DIMENSION], row[_VALUE]): row[_ROWS] for row in counted}


def _share(row: Row, measures: tuple[str, ...], of: Mapping[tuple[dt.date, str, str], int]) -> Share:
    moved = {measure: figure(row[MOVED + measure]) or Decimal(0) for measure in measures}
    day, dimension, value, rows = row[0], row[_DIMENSION], row[_VALUE], row[_ROWS]
    if dimension == DELIVERY_FILE:
        # A key stays delivered, whatever becomes of its row.
        return Share(dimension, value, rows, of.get((day, dimension, value), rows), moved)
    # What the published side has more of tells its count without a look at all its rows.
    return Share(dimension, value, rows, of.get((day, dimension, value), 0) + max(0, row[GONE]), moved)
