"""Staging and upstreams → shadow: the new version of some days, built where no reader looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import DatasetError, ModelError, SourceError
from backfill_assets.core.measured import UpstreamState
from backfill_assets.core.text import in_one_line
from backfill_assets.dataset.checks import Total
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import files_of_days, is_table
from backfill_assets.evidence.basis import PUBLISHED, UpstreamDays
from backfill_assets.pipeline.run_models import reference_tables, run_model
from backfill_assets.pipeline.stage import read_staged
from backfill_assets.pipeline.tables import (
    declared_type,
    figures_of,
    in_days,
    is_true,
    read_days,
    renamed,
    struct_of,
    with_declared_columns,
    write_days,
)
from backfill_assets.storage.layout import Layout, below


@dataclass(frozen=True)
class Audit:
    """What every row of a shadow says of its making; the time is aware."""

    recalculated_at: dt.datetime
    unit: str
    code_version: str


@dataclass(frozen=True)
class ShadowTarget:
    """Where a shadow goes, relative to the published table's folder, its days, and what its rows say of their making."""

    folder: str
    days: tuple[dt.date, ...]
    audit: Audit


def build_shadow(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, target: ShadowTarget, upstreams: Mapping[str, DataFrame]
) -> None:
    """Compute the target's days of the fact into its folder below the published table, in one commit.

    `upstreams` are the facts of other datasets by name, all the days that these days are built from.

    The folder becomes a Delta table with one file per day; building days again replaces them.

    Raises:
        ModelError: the fact model fails, returns other columns than declared, or rows of days that it was not asked for.
        SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
        StorageError: the disk is full; the folder is what it was.
    """
    if target.days:
        compute_shadow(spark, loaded, layout, target, _tables(spark, loaded, layout, target.days, upstreams))


def day_alone(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, day: dt.date, upstreams: Mapping[str, DataFrame]
) -> DataFrame:
    """The rows that `build_shadow` would write of a day if it were asked for that day alone; nothing is written.

    Raises:
        ModelError: the fact model fails, or returns other columns than declared.
        SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
    """
    rows = _rows(spark, loaded, (day,), _tables(spark, loaded, layout, (day,), upstreams))
    return rows.select(*loaded.dataset.columns)


def _tables(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: tuple[dt.date, ...],
    upstreams: Mapping[str, DataFrame],
) -> Mapping[str, DataFrame]:
    dataset = loaded.dataset
    staged = {"staging": read_staged(spark, loaded, layout, dataset.with_lookback(days))} if dataset.source else {}
    return {**staged, **upstreams, **reference_tables(spark, loaded, layout)}


def compute_shadow(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, target: ShadowTarget, tables: Mapping[str, DataFrame]
) -> None:
    """The same as `build_shadow` from given tables: staged rows (`staging`), upstream facts and references, by name.

    Raises:
        ModelError: the fact model fails, returns other columns than declared, or rows of days that it was not asked for.
    """
    days = target.days
    rows = _rows(spark, loaded, days, tables)
    path = shadow_path(loaded, layout, target.folder)
    with renamed(ModelError, str(loaded.fact.path), also=("FAILED_READ_FILE",)):
        write_days(_audited(rows, loaded, days, target.audit), path, loaded.dataset.partition_column, days)


def _rows(
    spark: SparkSession, loaded: LoadedDataset, days: tuple[dt.date, ...], tables: Mapping[str, DataFrame]
) -> DataFrame:
    """What the fact model returns, without the days that were only looked back at."""
    dataset = loaded.dataset
    fact = run_model(spark, loaded.fact, tables)
    _check_columns(loaded, fact.schema)
    read = {day for name in dataset.upstream for day in dataset.upstream_days(name, days)}
    before = read | set(dataset.with_lookback(days))
    return fact.where(~is_true(in_days(dataset.partition_column, before - set(days))))


def shadow_path(loaded: LoadedDataset, layout: Layout, attempt_folder: str) -> Path:
    """Folder of an attempt's shadow.

    Raises:
        LayoutError: it would lie outside the published table's folder.
    """
    return below(layout.published_path(loaded.name), attempt_folder)


def _audited(rows: DataFrame, loaded: LoadedDataset, days: Collection[dt.date], audit: Audit) -> DataFrame:
    partition = loaded.dataset.partition_column
    stranger = F.concat(
        F.lit("returned a row of the day "),
        F.coalesce(F.col(partition).cast("string"), F.lit("null")),
        F.lit(f", but was asked for {format_days(days)}; a fact row must keep the day of its staged rows"),
    )
    # As a value, not as a condition: Spark evaluates it for each row that is written, wherever it moves conditions to.
    own_day = F.when(in_days(partition, days), F.col(partition)).otherwise(F.raise_error(stranger).cast("date"))
    added = {
        "recalculated_at": F.lit(audit.recalculated_at).cast("timestamp"),
        "unit": F.lit(audit.unit),
        "code_version": F.lit(audit.code_version),
    }
    columns = {**{name: F.col(name) for name in loaded.dataset.columns}, partition: own_day, **added}
    return rows.select(*(column.alias(name) for name, column in columns.items()))


def _check_columns(loaded: LoadedDataset, schema: T.StructType) -> None:
    found = {field.name: declared_type(field.dataType) for field in schema.fields}
    declared = {name: column.type for name, column in loaded.dataset.columns.items()}
    faults = [f"lacks {name} ({kind})" for name, kind in declared.items() if name not in found]
    faults += [
        f"returns {name} ({kind}), which is not declared" for name, kind in found.items() if name not in declared
    ]
    faults += [
        f"column {name}: expected {kind}, found {found[name]}"
        for name, kind in declared.items()
        if found.get(name, kind) != kind
    ]
    if faults:
        raise ModelError(f"{loaded.fact.path}: {'; '.join(faults)}. Correct it, or columns in dataset.yaml")


_ROWS: Final = "rows"
_TOTAL: Final = "total:"


def read_upstream(spark: SparkSession, layout: Layout, upstream: UpstreamDays) -> DataFrame:
    """The business columns of these days; without a row where nothing stands."""
    dataset = upstream.loaded.dataset
    frames = [
        with_declared_columns(read_days(spark, path, dataset.partition_column, days), dataset)
        for path, days in _upstream_tables(layout, upstream)
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
        for path, days in _upstream_tables(layout, upstream):
            for column, day in _lacking(path, days, upstream.loaded.dataset):
                lacking.setdefault(column, set()).add(day)
        if lacking:
            name = upstream.loaded.name
            found = ", ".join(f"{column} of {format_days(days)}" for column, days in sorted(lacking.items()))
            raise SourceError(
                f"{name} was built without columns that its dataset.yaml declares now, and that would be read as null: {found}; "
                f"launch {name} for these days as well"
            )


def _upstream_tables(layout: Layout, upstream: UpstreamDays) -> Iterator[tuple[Path, tuple[dt.date, ...]]]:
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
