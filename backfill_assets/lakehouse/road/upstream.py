"""Upstreams: facts of other datasets, read from where each day of them stands, and the figures to compare with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import DatasetError, SourceError
from backfill_assets.core.measured import UpstreamState
from backfill_assets.core.text import in_one_line
from backfill_assets.dataset.checks import Total
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import files_of_days, is_table
from backfill_assets.evidence.contents import PUBLISHED, UpstreamDays
from backfill_assets.lakehouse.road.fingerprint import with_declared_columns
from backfill_assets.lakehouse.road.shadow import shadow_path
from backfill_assets.lakehouse.road.spark_sql import figures_of, renamed, struct_of
from backfill_assets.lakehouse.road.tables import read_days
from backfill_assets.storage.layout import Layout

_ROWS: Final = "rows"
_TOTAL: Final = "total:"


def read_upstream(spark: SparkSession, layout: Layout, upstream: UpstreamDays) -> DataFrame:
    """The business columns of these days; without a row where nothing stands."""
    dataset = upstream.loaded.dataset
    frames = [
        with_declared_columns(read_days(spark, path, dataset.partition_column, days), dataset)
        for path, days in _tables(layout, upstream)
    ]
    if not frames:
        return spark.createDataFrame([], struct_of({name: column.type for name, column in dataset.columns.items()}))
    return reduce(DataFrame.unionByName, (frame.select(*dataset.columns) for frame in frames))


def require_declared_columns(layout: Layout, upstreams: Collection[UpstreamDays]) -> None:
    """Refuse upstream days that were built without a column that is declared now: Delta would fill it with null.

    A shadow writes every declared column, also one that is null in each row. Of each file of these days the footer is read.

    Raises:
        SourceError: files of some days lack a column, or cannot be read.
    """
    for upstream in upstreams:
        lacking: dict[str, set[dt.date]] = {}
        for path, days in _tables(layout, upstream):
            for column, day in _lacking(path, days, upstream.loaded.dataset):
                lacking.setdefault(column, set()).add(day)
        if lacking:
            name = upstream.loaded.name
            found = ", ".join(f"{column} of {format_days(days)}" for column, days in sorted(lacking.items()))
            raise SourceError(
                f"{name} was built without columns that its dataset.yaml declares now, and that would be read as null: {found}; "
                f"launch {name} for these days as well"
            )


def _tables(layout: Layout, upstream: UpstreamDays) -> Iterator[tuple[Path, tuple[dt.date, ...]]]:
    """The tables that days of an upstream are read from, each with its days."""
    loaded = upstream.loaded
    for place, days in sorted(upstream.places.items()):
        path = layout.published_path(loaded.name) if place == PUBLISHED else shadow_path(loaded, layout, place)
        if days and is_table(path):
            yield path, days


def _lacking(path: Path, days: Collection[dt.date], dataset: Dataset) -> Iterator[tuple[str, dt.date]]:
    """The declared columns that files of a table lack, each with the day of the file."""
    # The day stands in the path of a file, and not in it.
    declared = dataset.columns.keys() - {dataset.partition_column}
    for file, day in files_of_days(DeltaTable(path), dataset.partition_column, days).items():
        try:
            schema = pq.read_schema(path / file)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{path / file}: cannot be read: {in_one_line(error)}; see: backfill doctor") from error
        yield from ((column, day) for column in declared - set(schema.names))


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
