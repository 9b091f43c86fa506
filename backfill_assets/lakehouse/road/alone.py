"""Days of a shadow beside the same days built alone, as a batch of one day each would build them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from backfill_assets.core.measured import Alone
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.contents import UpstreamDays
from backfill_assets.lakehouse.road.compare import differing
from backfill_assets.lakehouse.road.fingerprint import fingerprint_columns, fingerprint_of
from backfill_assets.lakehouse.road.measure import Sides
from backfill_assets.lakehouse.road.row_values import Pair, counts_of, tallies_of
from backfill_assets.lakehouse.road.shadow import day_alone, shadow_path
from backfill_assets.lakehouse.road.tables import read_days
from backfill_assets.lakehouse.road.upstream import upstream_tables
from backfill_assets.storage.layout import Layout


def built_alone(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    folder: str,
    days: Mapping[dt.date, Collection[UpstreamDays]],
    sides: Mapping[dt.date, Sides],
) -> tuple[Alone, ...]:
    """How these days of a shadow come out alone; `days` says which upstream days a batch of one day would read.

    One pass; where a fingerprint differs, a join that knows what floats and the columns' tolerances allow. Nothing is written.

    Raises:
        ModelError: the fact model fails.
    """
    if not days:
        return ()
    dataset = loaded.dataset
    frames = [
        day_alone(spark, loaded, layout, day, upstream_tables(spark, layout, upstreams))
        for day, upstreams in days.items()
    ]
    alone = reduce(DataFrame.unionByName, frames)
    grouped = alone.groupBy(dataset.partition_column).agg(*fingerprint_columns(dataset)).collect()
    prints = {row[dataset.partition_column]: fingerprint_of(row) for row in grouped}
    moved = [day for day in days if prints.get(day, "") != sides[day].shadow.fingerprint]
    counts = _differing(spark, loaded, layout, folder, (alone, moved)) if moved else {}
    return tuple(Alone(day, sides[day].shadow.rows, counts.get(day, 0)) for day in days)


def _differing(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, folder: str, alone: tuple[DataFrame, list[dt.date]]
) -> Mapping[dt.date, int]:
    (frame, days), dataset = alone, loaded.dataset
    there = read_days(spark, shadow_path(loaded, layout, folder), dataset.partition_column, days)
    pair = Pair(dataset, there.select(*dataset.columns), frame)
    # Numbered: of a key that occurs twice each row is compared with one.
    rows = differing(pair.old, pair.new, pair.shape, numbered=True)
    counted = rows.groupBy(dataset.partition_column).agg(*tallies_of(pair, {})).collect()
    return {row[dataset.partition_column]: counts_of(row, 0).differing for row in counted}
