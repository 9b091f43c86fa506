"""Shares: which values of each dimension the differing rows of a day have, and how much they move each measure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.measured import DELIVERY_FILE, Share
from backfill_assets.pipeline.tables import equal_keys, figure, in_days

MOVED: Final = "moved:"
"""Prefix of the columns that say how far a row moves a measure."""
LEFT: Final = "_left"
"""The column that holds 1 for a row that is removed, and otherwise 0."""
CAME: Final = "_came"
"""The column that holds 1 for a row that is added, and otherwise 0."""

_LEAST: Final = 0.01
"""The least part of a day's move that a kept value has; attribution charges as much for each value. So at most 100 are kept."""
_LONGEST: Final = 200
_NULL: Final = "(null)"
_NOT_DELIVERED: Final = "(not delivered)"
_DIMENSION: Final = "_dimension"
_VALUE: Final = "_value"
_FILE: Final = "_file"
_ROWS: Final = "_rows"
_DAY: Final = "_day"

_Key = tuple[dt.date, str, str]
"""Day, dimension and value."""


@dataclass(frozen=True)
class Slices:
    """What rows are grouped by: columns, and the delivery file of their key, if staging has one.

    `match` are the day and the key, the day first. `files` has the number of staged rows of each file by day. `staged` has one
    row per match with the column `_source_file`, for days on which a row's file must be looked up; other days may be left out.
    """

    match: tuple[str, ...]
    columns: tuple[str, ...]
    files: Mapping[dt.date, Mapping[str, int]]
    staged: DataFrame | None


def lone_files(files: Mapping[dt.date, Mapping[str, int]]) -> Mapping[dt.date, str]:
    """The file of each day that has exactly one: all shadow rows of that day came in it."""
    return {day: next(iter(own)) for day, own in files.items() if len(own) == 1}


def shares_of(
    rows: DataFrame, shadow: DataFrame, partly: Collection[dt.date], measures: tuple[str, ...], slices: Slices
) -> Mapping[dt.date, tuple[Share, ...]]:
    """The values of each dimension that make up at least one percent of the move of a measure, by day.

    `rows` are the differing rows, with match, dimensions, `LEFT`, `CAME`, and the column `MOVED` of each measure. `shadow` has
    all rows of the days `partly`, on which some of its rows do not differ.
    """
    if not measures or not (slices.columns or slices.files):
        return {}
    found = _significant(_sliced(rows, slices), slices, measures).collect()
    of = _all_rows(shadow, partly, slices, found)
    shares: dict[dt.date, list[Share]] = {}
    for row in found:
        shares.setdefault(row[0], []).append(_share(row, measures, of[row[0], row[_DIMENSION], row[_VALUE]]))
    order = [*slices.columns, DELIVERY_FILE]
    return {
        day: tuple(sorted(own, key=lambda s: (order.index(s.dimension), -s.rows, s.value)))
        for day, own in shares.items()
    }


def _sliced(frame: DataFrame, slices: Slices) -> DataFrame:
    """Each row once per dimension, with its value there."""
    pairs = _pairs(slices)
    if slices.files:
        frame = _with_file(frame, slices)
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


def _with_file(frame: DataFrame, slices: Slices) -> DataFrame:
    lone = lone_files(slices.files)
    there = frame.sparkSession.createDataFrame(list(lone.items()), f"{_DAY} date, {_FILE} string")
    known = frame.join(F.broadcast(there), F.col(slices.match[0]) == F.col(_DAY), "left").drop(_DAY)
    if slices.staged is None:
        return known
    # A removed row may never have been delivered: look it up, like rows of days with several files.
    sought = (F.col(LEFT) == 1) | ~in_days(slices.match[0], lone)
    return known.where(~sought).unionByName(_looked_up(frame.where(sought), slices.match, slices.staged))


def _looked_up(frame: DataFrame, match: tuple[str, ...], staged: DataFrame) -> DataFrame:
    kinds, own = ({f.name: f.dataType for f in one.schema.fields} for one in (staged, frame))
    files = staged.select(*(F.col(n).alias(f"_staged:{n}") for n in match), F.col("_source_file").alias(_FILE))

    same = (equal_keys(F.col(n), F.col(f"_staged:{n}"), of_one_type=kinds[n] == own[n]) for n in match)
    joined = frame.join(files, reduce(Column.__and__, same), "left")
    return joined.drop(*(f"_staged:{name}" for name in match))


def _significant(sliced: DataFrame, slices: Slices, measures: tuple[str, ...]) -> DataFrame:
    day = slices.match[0]
    moves = [MOVED + measure for measure in measures]
    sums = [F.sum(name).alias(name) for name in (LEFT, CAME, *moves)]
    grouped = sliced.groupBy(day, _DIMENSION, _VALUE).agg(F.count("*").alias(_ROWS), *sums)
    # A row is in each dimension once: the sum over a dimension's values is that of the day.
    within = Window.partitionBy(day, _DIMENSION)
    whole = {name: f"_of:{name}" for name in moves}
    summed = grouped.withColumns({of: F.sum(name).over(within) for name, of in whole.items()})
    parts = [(F.col(name) > 0) & (F.col(name) >= F.col(of) * F.lit(_LEAST)) for name, of in whole.items()]
    return summed.where(reduce(Column.__or__, parts)).drop(*whole.values())


def _all_rows(shadow: DataFrame, partly: Collection[dt.date], slices: Slices, found: list[Row]) -> Mapping[_Key, int]:
    """All rows of each found value, on the side that has more of them; for a file, its staged rows."""
    keys = {(row[0], row[_DIMENSION], row[_VALUE]): row for row in found}
    there = {key: row[_ROWS] - row[LEFT] for key, row in keys.items()}
    asked = [key for key in keys if key[0] in partly and key[1] != DELIVERY_FILE]
    there |= {**dict.fromkeys(asked, 0), **_counted(shadow, slices, asked)}
    # If the published side has more rows, the difference gives its count without reading all its rows.
    larger = {key: count + max(0, keys[key][LEFT] - keys[key][CAME]) for key, count in there.items()}
    # A key stays delivered, whatever happens to its row.
    staged = {key: slices.files[key[0]][key[2]] for key in keys if key[2] in slices.files.get(key[0], {})}
    return {key: staged.get(key, count) if key[1] == DELIVERY_FILE else count for key, count in larger.items()}


def _counted(shadow: DataFrame, slices: Slices, asked: list[_Key]) -> Mapping[_Key, int]:
    if not asked:
        return {}
    names = [_DAY, _DIMENSION, _VALUE]
    values = shadow.sparkSession.createDataFrame(asked, f"{_DAY} date, {_DIMENSION} string, {_VALUE} string")
    rows = shadow.select(F.col(slices.match[0]).alias(_DAY), F.inline(F.array(*_pairs(slices))))
    counted = rows.join(F.broadcast(values), names).groupBy(*names).agg(F.count("*").alias(_ROWS)).collect()
    return {(row[_DAY], row[_DIMENSION], row[_VALUE]): row[_ROWS] for row in counted}


def _share(row: Row, measures: tuple[str, ...], of: int) -> Share:
    moved = {measure: figure(row[MOVED + measure]) or Decimal(0) for measure in measures}
    return Share(row[_DIMENSION], row[_VALUE], row[_ROWS], of, moved)
