"""Compares shadow with published rows: counts, changes and examples of every changed day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial, reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.delivery import Delivery
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import DayComparison, RowChange, RowCounts
from backfill_assets.core.types import fields_of, kind_of
from backfill_assets.dataset.reading import form_of, reading_of
from backfill_assets.dataset.sources import Source
from backfill_assets.evidence.raw_contents import rows_in_raw
from backfill_assets.pipeline.compare import (
    ADDED,
    CHANGED,
    REMOVED,
    STATUS,
    Bands,
    Pair,
    bands_of,
    counts_of,
    differing,
    differs_in,
    differs_in_part,
    new_column,
    old_column,
    tallies_of,
)
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.measure import Sides
from backfill_assets.pipeline.raw_table import ORDER
from backfill_assets.pipeline.samples import CHECK, Broken, Samples, around_the_difference, plain_value, samples_of
from backfill_assets.pipeline.shares import CAME, LEFT, MOVED, Slices, lone_files, shares_of
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.stage import staged_rows
from backfill_assets.pipeline.tables import equal_keys, figure, in_days
from backfill_assets.pipeline.types import is_numeric, leaves_of, ordered

_LARGEST: Final = 100
_SUBJECT: Final = "_subject"
_OLD: Final = "_old"
_NEW: Final = "_new"
_SIZE: Final = "_size"


def largest_of(rows: DataFrame, pair: Pair) -> Mapping[dt.date, tuple[RowChange, ...]]:
    """The hundred rows of all days that move each measure most, by day; the largest first."""
    if not pair.measures:
        return {}
    match, day = pair.shape.match, pair.shape.partition
    order = [F.desc(_SIZE), *(F.col(name) for name in match)]

    def moved(name: str) -> DataFrame:
        # As text: the measures have different types, and none may lose a digit.
        sides = (pair.number(name, old=side).cast("string") for side in (True, False))
        size = F.abs(pair.delta(name)).cast("double").alias(_SIZE)
        named = [F.lit(name).alias(_SUBJECT), *(s.alias(n) for s, n in zip(sides, (_OLD, _NEW), strict=True)), size]
        # Sort and limit in one step: Spark never sorts all rows of a measure.
        return rows.select(*match, *named).where(F.col(_SIZE) > 0).orderBy(*order).limit(_LARGEST)

    found: dict[dt.date, list[RowChange]] = {}
    for row in reduce(DataFrame.unionAll, map(moved, pair.measures)).orderBy(*order).collect():
        key = {name: plain_value(row[name]) for name in match if name != day}
        change = RowChange(row[_SUBJECT], row[day], key, figure(row[_OLD]), figure(row[_NEW]))
        found.setdefault(change.day, []).append(change)
    return {day: tuple(changes) for day, changes in found.items()}


def _tags(pair: Pair, bands: Bands, wanted: Broken) -> list[Column]:
    tags = []
    for (check, name), days in wanted.items():
        kind = pair.types[name]
        size = F.abs(pair.delta(name)).cast("double") if is_numeric(kind) else F.lit(None).cast("double")
        broken = in_days(pair.shape.partition, days) & F.coalesce(pair.outside(name, bands), F.lit(True))
        for leaf in leaves_of(name, kind):
            tag = F.struct(
                F.lit(check).alias(CHECK),
                F.lit(leaf.path).alias(_SUBJECT),
                F.expr(leaf.shown_in(ordered(quoted(old_column(name)), kind))).alias(_OLD),
                F.expr(leaf.shown_in(ordered(quoted(new_column(name)), kind))).alias(_NEW),
                size.alias(_SIZE),
            )
            differs = differs_in_part(leaf.path) if name in pair.leaves else differs_in(name)
            tags.append(F.when(broken & differs, tag))
    return tags


def _sample(match: tuple[str, ...], row: Mapping[str, Any]) -> Mapping[str, object]:
    old, new = around_the_difference(row[_OLD], row[_NEW])
    shown = {"column": row[_SUBJECT], "old": old, "new": new}
    return {name: plain_value(row[name]) for name in match} | shown


_FILE: Final = "_source_file"

_Days = tuple[dt.date, ...]


@dataclass(frozen=True)
class Question:
    """A comparison of an attempt's shadow with what is published, given what was measured and promised.

    `newer` are deliveries that the published days were not built from; `older` those they were built from that no longer count.
    """

    frames: Frames
    attempt: int
    measured: Mapping[dt.date, Sides]
    contract: Contract
    newer: Mapping[dt.date, Collection[Delivery]] = field(default_factory=dict)
    older: Mapping[dt.date, Collection[Delivery]] = field(default_factory=dict)

    @property
    def replaced(self) -> _Days:
        """The days with published rows."""
        return tuple(sorted(day for day, sides in self.measured.items() if sides.published.rows))

    @property
    def moved(self) -> _Days:
        """The replaced days whose content differs in the shadow; rows of other days are not read."""
        sides = self.measured
        return tuple(d for d in self.replaced if sides[d].published.fingerprint != sides[d].shadow.fingerprint)


@dataclass(frozen=True)
class _Joined:
    rows: DataFrame
    pair: Pair
    bands: Bands


@dataclass(frozen=True)
class RowDifferences:
    """What differs, by day; `counts` leaves out days with nothing published, and days whose key has another type now.

    `comparisons` has the days with differing rows.
    """

    counts: Mapping[dt.date, RowCounts]
    comparisons: tuple[DayComparison, ...] = ()
    joined: _Joined | None = None

    def sample(self, wanted: Broken) -> Samples:
        """Up to five changed rows per check and day, largest move first: day, key, column, old and new value.

        For a column with a promise, only rows that break it. Call it only while the context is open.
        """
        if self.joined is None or not wanted:
            return {}
        pair, match = self.joined.pair, self.joined.pair.shape.match
        tags = F.array_compact(F.array(*_tags(pair, self.joined.bands, wanted)))
        order = [F.desc_nulls_last(_SIZE), *(F.col(name) for name in match), F.col(_SUBJECT)]
        tagged = self.joined.rows.select(*match, F.inline(tags))
        return samples_of(tagged, pair.shape.partition, order, partial(_sample, match))


@contextmanager
def row_differences(question: Question) -> Iterator[RowDifferences]:
    """Compare the days that moved by one join, which is kept until the context ends.

    Days with equal fingerprints count as unchanged without reading their rows. Days with nothing published are not compared.
    """
    frames, days, measured = question.frames, question.moved, question.measured
    counts = {day: RowCounts(unchanged=measured[day].published.rows) for day in question.replaced}
    if not days:
        yield RowDifferences(counts)
        return
    pair = Pair(frames.dataset, frames.published(days), frames.shadow(days))
    if not pair.comparable:
        yield RowDifferences({day: found for day, found in counts.items() if day not in days})
        return
    bands = bands_of(question.contract, days, tuple(pair.shape.columns))
    with ExitStack() as kept:
        rows, tallies = _matched(pair, question, bands, kept)
        joined = _Joined(rows, pair, bands)
        explained = _explained(joined, question)
        counts |= {
            day: replace(
                counts_of(tally, measured[day].published.rows),
                explained_added=explained.get((day, ADDED), 0),
                explained_removed=explained.get((day, REMOVED), 0),
            )
            for day, tally in tallies.items()
        }
        comparisons = _comparisons(joined, question, tallies) if tallies else ()
        yield RowDifferences(counts, comparisons, joined)


def _explained(joined: _Joined, question: Question) -> Mapping[tuple[dt.date, str], int]:
    """The number of added and removed rows whose key came with a newer delivery or went with an older one, by day and status."""
    match, day = joined.pair.shape.match, joined.pair.shape.partition
    found = [*_keys_that_came(question), *_keys_that_went(question)]
    if not found:
        return {}
    keys = reduce(DataFrame.unionByName, [frame.select(*match) for frame in found]).distinct()
    rows = joined.rows.where(F.col(STATUS).isin(ADDED, REMOVED))
    mine, theirs = ({f.name: f.dataType for f in frame.schema.fields} for frame in (rows, keys))
    same = (equal_keys(rows[name], keys[name], of_one_type=mine[name] == theirs[name]) for name in match)
    counted = rows.join(keys, reduce(and_, same), "left_semi").groupBy(day, STATUS).count().collect()
    return {(own, status): count for own, status, count in counted}


def _keys_that_came(question: Question) -> Iterator[DataFrame]:
    frames = question.frames
    came = [(own, d.path) for own in question.moved for d in question.newer.get(own, ())]
    if came:
        files = frames.spark.createDataFrame(came, f"{frames.dataset.partition_column} date, {_FILE} string")
        staged = frames.staging({own for own, _ in came})
        yield staged.join(F.broadcast(files), files.columns, "left_semi")


def _keys_that_went(question: Question) -> Iterator[DataFrame]:
    """The staging model's rows of deliveries that no longer count: they are not staged, but still in raw.

    They only explain changes: deliveries that raw does not keep in full or in the current form are left out, and
    columns that are missing in the others are null.
    """
    loaded, layout, source = question.frames.loaded, question.frames.layout, question.frames.dataset.source
    if not isinstance(source, Source):
        # A table is read as it is now; nothing keeps the rows that it had.
        return
    form = form_of(reading_of(source))
    older = {
        own: [d for d in question.older.get(own, ()) if d.landings and form_of(d.reading) == form]
        for own in question.moved
    }
    rows = rows_in_raw(layout.raw_path(loaded.name), {d.day for found in older.values() for d in found})
    went = {own: tuple(d for d in found if rows.get(d.content, 0) == d.rows) for own, found in older.items()}
    days = [own for own, older in went.items() if older]
    if days:
        force = tuple(dict.fromkeys(d for older in went.values() for d in older))
        # Unless raw keeps lines, `optional` is part of the form.
        fields = (path for name, kind in source.types.items() for path in fields_of(name, kind_of(kind)))
        optional = (*source.columns, *fields) if form.startswith("lines") else source.optional
        lenient = loaded.dataset.model_copy(update={"source": source.model_copy(update={"optional": optional})})
        yield staged_rows(question.frames.spark, replace(loaded, dataset=lenient), layout, days, force)


def _matched(pair: Pair, question: Question, bands: Bands, kept: ExitStack) -> tuple[DataFrame, Mapping[dt.date, Row]]:
    """The differing rows, and their figures by day; days with duplicate keys are matched row by row."""
    days, measured, partition = question.moved, question.measured, pair.shape.partition
    numbered = {day for day in days if measured[day].shadow.counts.get("duplicate_keys")}
    rows = _kept(_joined_rows(pair, days, numbered), kept)
    tallies = _tallies(rows, pair, bands)
    # With duplicates only on the published side, the sides disagree on how many rows both have.
    uneven = {day for day in set(days) - numbered if not _is_even(tallies.get(day), measured[day])}
    if not uneven:
        return rows, tallies
    even = rows.where(~in_days(partition, uneven))
    rows = _kept(even.unionByName(_joined_rows(pair, tuple(uneven), uneven)), kept)
    return rows, _tallies(rows, pair, bands)


def _is_even(tally: Row | None, measured: Sides) -> bool:
    removed, added = (0, 0) if tally is None else (tally[REMOVED], tally[ADDED])
    return bool(measured.published.rows - removed == measured.shadow.rows - added)


def _joined_rows(pair: Pair, days: _Days, numbered: set[dt.date]) -> DataFrame:
    partition = pair.shape.partition
    parts = [
        differing(
            pair.old.where(in_days(partition, own)), pair.new.where(in_days(partition, own)), pair.shape, numbered=again
        )
        for own, again in ((set(days) - numbered, False), (numbered, True))
        if own
    ]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _kept(rows: DataFrame, kept: ExitStack) -> DataFrame:
    persisted = rows.persist()
    kept.callback(persisted.unpersist)
    return persisted


def _tallies(rows: DataFrame, pair: Pair, bands: Bands) -> Mapping[dt.date, Row]:
    moves = [F.sum(F.abs(pair.delta(name))).alias(MOVED + name) for name in pair.measures]
    return tallies_of(rows, pair, bands, moves)


def _comparisons(joined: _Joined, question: Question, tallies: Mapping[dt.date, Row]) -> tuple[DayComparison, ...]:
    pair, slices = joined.pair, _slices(question.frames, joined.pair, tallies)
    largest = largest_of(joined.rows, pair)
    partly = [
        day for day, tally in tallies.items() if tally[ADDED] + tally[CHANGED] < question.measured[day].shadow.rows
    ]
    shadow = pair.new.where(in_days(pair.shape.partition, partly))
    shares = shares_of(_sliceable(joined, slices), shadow, partly, pair.measures, slices)
    return tuple(
        DayComparison(
            pair.dataset.name,
            day,
            question.attempt,
            rows=sum(int(tally[status]) for status in (ADDED, REMOVED, CHANGED)),
            of=max(question.measured[day].published.rows, question.measured[day].shadow.rows),
            moved={name: figure(tally[MOVED + name]) or Decimal(0) for name in pair.measures},
            largest=largest.get(day, ()),
            shares=shares.get(day, ()),
        )
        for day, tally in sorted(tallies.items())
    )


def _slices(frames: Frames, pair: Pair, tallies: Mapping[dt.date, Row]) -> Slices:
    dataset, match = frames.dataset, pair.shape.match
    there = {*match, *pair.shape.columns}
    columns = tuple(name for name in dataset.dimension_columns if name in there)
    if dataset.source is None:
        return Slices(match, columns, {}, None)
    staged = frames.staging(tallies)
    files: dict[dt.date, dict[str, int]] = {day: {} for day in tallies}
    for day, file, rows in staged.groupBy(match[0], _FILE).count().collect():
        files[day][file] = rows
    lone = lone_files(files)
    sought = [day for day, tally in tallies.items() if day not in lone or tally[REMOVED]]
    newest = F.max(F.struct(ORDER, _FILE)).getField(_FILE).alias(_FILE)
    by_key = staged.where(in_days(match[0], sought)).groupBy(*match).agg(newest) if sought else None
    return Slices(match, columns, files, by_key)


def _sliceable(joined: _Joined, slices: Slices) -> DataFrame:
    """The differing rows with the values of their dimensions (the new one if a row has both) and their moves."""
    pair = joined.pair
    compared = [name for name in slices.columns if name in pair.shape.columns]
    values = {
        name: F.when(F.col(STATUS) == REMOVED, F.col(old_column(name))).otherwise(F.col(new_column(name)))
        for name in compared
    }
    moves = {MOVED + name: F.abs(pair.delta(name)) for name in pair.measures}
    moves |= {name: (F.col(STATUS) == status).cast("int") for name, status in ((LEFT, REMOVED), (CAME, ADDED))}
    return joined.rows.select(*pair.shape.match, *(column.alias(name) for name, column in (values | moves).items()))
