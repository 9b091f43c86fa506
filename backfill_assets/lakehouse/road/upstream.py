"""Upstreams: facts of other datasets, read from where each day of them stands, and the figures to compare with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.checks_config import Total
from backfill_assets.domain.errors import DatasetError
from backfill_assets.domain.measurement import UpstreamState
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road.fingerprint import with_declared_columns
from backfill_assets.lakehouse.road.shadow import shadow_path
from backfill_assets.lakehouse.road.spark_sql import figures_of, renamed, struct_of
from backfill_assets.lakehouse.road.tables import is_table, read_days

PUBLISHED: Final = ""
"""The place of days that are read from the published table; all other places are shadow folders."""

_ROWS: Final = "rows"
_TOTAL: Final = "total:"


@dataclass(frozen=True)
class UpstreamDays:
    """Days of an upstream by the place where they stand: a shadow's folder below its published table, or `PUBLISHED`."""

    loaded: LoadedDataset
    places: Mapping[str, tuple[dt.date, ...]]


def read_upstream(spark: SparkSession, layout: Layout, upstream: UpstreamDays) -> DataFrame:
    """The business columns of these days; without a row where nothing stands."""
    loaded, dataset = upstream.loaded, upstream.loaded.dataset
    frames = []
    for place, days in sorted(upstream.places.items()):
        path = layout.published_path(loaded.name) if place == PUBLISHED else shadow_path(loaded, layout, place)
        if days and is_table(path):
            frames.append(with_declared_columns(read_days(spark, path, dataset.partition_column, days), dataset))
    if not frames:
        return spark.createDataFrame([], struct_of({name: column.type for name, column in dataset.columns.items()}))
    return reduce(DataFrame.unionByName, (frame.select(*dataset.columns) for frame in frames))


def upstream_tables(
    spark: SparkSession, layout: Layout, upstreams: Collection[UpstreamDays]
) -> Mapping[str, DataFrame]:
    """The upstreams by the names under which models know them."""
    return {upstream.loaded.name: read_upstream(spark, layout, upstream) for upstream in upstreams}


def measure_upstreams(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: Sequence[dt.date],
    upstreams: Sequence[UpstreamDays],
) -> Mapping[dt.date, UpstreamState]:
    """Rows of each upstream on each day, and the totals that the day must equal; one pass per upstream.

    Raises:
        DatasetError: a total of `dataset.yaml` cannot be evaluated.
    """
    rows: dict[str, dict[dt.date, int]] = {}
    totals: dict[dt.date, dict[str, Decimal | None]] = {day: {} for day in days}
    floating: dict[dt.date, list[str]] = {day: [] for day in days}
    for upstream in upstreams:
        name = upstream.loaded.name
        wanted = {m: t for m, t in loaded.dataset.checks.reconciliation.totals.items() if t.upstream == name}
        measured = _measured(spark, loaded, layout, (upstream, wanted))
        rows[name] = {day: count for day, (count, _) in measured.items()}
        for day in days:
            figures, rounded = figures_of(measured[day][1]) if day in measured else (dict.fromkeys(wanted), ())
            totals[day] |= figures
            floating[day] += rounded
    return {day: UpstreamState(rows_on(day, rows), totals[day], tuple(sorted(floating[day]))) for day in days}


def rows_on(day: dt.date, rows: Mapping[str, Mapping[dt.date, int]]) -> Mapping[str, int]:
    """The rows of each upstream on the day itself: those that it looks back at are there even if its own has not come."""
    return {name: found.get(day, 0) for name, found in rows.items()}


def _measured(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    what: tuple[UpstreamDays, Mapping[str, Total]],
) -> Mapping[dt.date, tuple[int, Mapping[str, object]]]:
    upstream, totals = what
    partition = upstream.loaded.dataset.partition_column
    grouped = read_upstream(spark, layout, upstream).groupBy(partition)
    with renamed(DatasetError, f"{loaded.folder / 'dataset.yaml'}: checks.reconciliation.totals"):
        columns = [F.expr(total.sql).alias(_TOTAL + metric) for metric, total in totals.items()]
        rows = grouped.agg(F.count("*").alias(_ROWS), *columns).collect()
    return {row[partition]: (int(row[_ROWS]), {metric: row[_TOTAL + metric] for metric in totals}) for row in rows}
