"""History differences: days as they are published beside the same days as other models make them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from pyspark.sql import Row, SparkSession

from backfill_assets.core.measured import NOTHING, ROW_COUNT, RowChange, RowCounts
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.domain.history_diff import DayDifference
from backfill_assets.pipeline.build import shadow_path
from backfill_assets.pipeline.compare import Pair, counts_of, differing, tallies_of
from backfill_assets.pipeline.differences import largest_of
from backfill_assets.pipeline.measure import figures_by_day
from backfill_assets.pipeline.tables import read_days
from backfill_assets.storage.layout import Layout


def history_differences(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], folder: str
) -> tuple[tuple[DayDifference, ...], tuple[RowChange, ...]]:
    """What a shadow makes of published days: figures and rows by day, and of each measure the rows that move it most.

    Rows cannot be matched where the key has another type now.
    """
    dataset = loaded.dataset
    old = read_days(spark, layout.published_path(loaded.name), dataset.partition_column, days)
    new = read_days(spark, shadow_path(loaded, layout, folder), dataset.partition_column, days)
    before, after = figures_by_day(old, dataset), figures_by_day(new, dataset)
    pair = Pair(dataset, old, new)
    rows, largest = _rows(pair) if pair.comparable else ({}, ())
    counts = {day: RowCounts(unchanged=int(before.get(day, NOTHING.metrics)[ROW_COUNT] or 0)) for day in days}
    counts |= {day: counts_of(tally, counts[day].unchanged) for day, tally in rows.items()}
    found = tuple(
        DayDifference(
            day,
            before.get(day, NOTHING.metrics),
            after.get(day, NOTHING.metrics),
            counts[day] if pair.comparable else None,
        )
        for day in sorted(days)
    )
    return found, largest


def _rows(pair: Pair) -> tuple[Mapping[dt.date, Row], tuple[RowChange, ...]]:
    # Numbered: of a key that occurs twice each row is compared with one.
    rows = differing(pair.old, pair.new, pair.shape, numbered=True).persist()
    try:
        partition = pair.shape.partition
        counted = {row[partition]: row for row in rows.groupBy(partition).agg(*tallies_of(pair, {})).collect()}
        largest = largest_of(rows, pair) if counted else {}
    finally:
        rows.unpersist()
    return counted, tuple(change for changes in largest.values() for change in changes)
