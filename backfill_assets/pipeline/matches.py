"""Matches the rows of a shadow with what its checks refer to: references, their versions, and upstreams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.dataset.checks import ReferenceCheck
from backfill_assets.dataset.references import seen_by_day
from backfill_assets.pipeline.frames import Frames

_READ_BY: Final = "_read_by"
_COUNT: Final = "_count"


def with_matches(frame: DataFrame, frames: Frames) -> DataFrame:
    """The rows with one hidden column per reference check: the number of versions that match, 1 without versions, or null."""
    for name, check in frames.dataset.checks.references.items():
        known, pairs = _referred(check, frames)
        names = {to: f"_{name}_{i}" for i, (_, to) in enumerate(pairs)}
        found = known.select(*(F.col(to).alias(own) for to, own in names.items())).dropna()
        if check.reference in frames.dataset.versioned:
            day = names[frames.dataset.partition_column]
            key = [own for own in names.values() if own != day]
            ahead, back = frames.dataset.lookahead_days, frames.dataset.most_lookback_days
            keys = _versions(found, key, day, ahead, back).withColumnRenamed(_COUNT, _mark(name))
        else:
            keys = found.groupBy(*names.values()).agg(F.max(F.lit(1)).alias(_mark(name)))
        same = [frame[own] == keys[names[to]] for own, to in pairs]
        small = check.reference in frames.references.keys() - seen_by_day(frames.dataset.references)
        frame = frame.join(F.broadcast(keys) if small else keys, reduce(Column.__and__, same), "left")
    return frame


def _referred(check: ReferenceCheck, frames: Frames) -> tuple[DataFrame, list[tuple[str, str]]]:
    """The rows that a check refers to, and the pairs of columns that must be equal: our own, and the one there."""
    pairs, own_day = list(zip(check.columns, check.to, strict=True)), frames.dataset.partition_column
    if check.reference in frames.references:
        by_day = [(own_day, own_day)] if check.reference in seen_by_day(frames.dataset.references) else []
        return frames.references[check.reference], [*pairs, *by_day]
    # A day finds only the upstream days that it reads: it must not depend on the batch in which it is built.
    (day,) = (one.loaded.dataset.partition_column for one in frames.upstreams if one.loaded.name == check.reference)
    back = frames.dataset.upstream[check.reference].lookback_days
    rows = frames.upstream[check.reference].select(*dict.fromkeys((*check.to, day))).distinct()
    read_by = F.explode(F.sequence(F.col(day), F.date_add(day, back)))
    return rows.withColumn(_READ_BY, read_by), [*pairs, (own_day, _READ_BY)]


def _versions(found: DataFrame, key: Sequence[str], day: str, ahead: int, back: int) -> DataFrame:
    """The number of versions by key and day: the most on this day or on any other day that it reads as well."""
    counted = found.groupBy(*key, day).agg(F.count("*").alias(_COUNT))
    if not back and not ahead:
        return counted
    read_by = F.explode(F.sequence(F.date_sub(F.col(day), ahead), F.date_add(F.col(day), back)))
    several = counted.where(F.col(_COUNT) > 1).withColumn(day, read_by)
    return counted.unionByName(several).groupBy(*key, day).agg(F.max(_COUNT).alias(_COUNT))


def is_checked(check: ReferenceCheck) -> Column:
    """Whether a row refers to anything: all columns of the check are set."""
    return reduce(Column.__and__, [F.col(name).isNotNull() for name in check.columns])


def is_unmatched(name: str, check: ReferenceCheck) -> Column:
    """Whether a row of `with_matches` refers to something that is not there."""
    return is_checked(check) & F.col(_mark(name)).isNull()


def is_ambiguous(name: str, check: ReferenceCheck) -> Column:
    """Whether a row of `with_matches` refers to something that is there more than once."""
    return is_checked(check) & (F.col(_mark(name)) > 1)


def _mark(name: str) -> str:
    return f"_match_{name}"
