"""Shadow: the new version of some days, built aside where no reader looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ModelError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.lakehouse.road.models import run_model
from backfill_assets.lakehouse.road.references import reference_tables
from backfill_assets.lakehouse.road.spark_sql import declared_type, in_days, is_true, renamed
from backfill_assets.lakehouse.road.staging import read_staged
from backfill_assets.lakehouse.road.tables import write_days
from backfill_assets.storage.layout import Layout, below


@dataclass(frozen=True)
class Audit:
    """What every row of a shadow says of its making; the time is aware."""

    recalculated_at: dt.datetime
    unit: str
    code_version: str


@dataclass(frozen=True)
class Target:
    """Where a shadow goes, relative to the published table's folder, its days, and what its rows say of their making."""

    folder: str
    days: tuple[dt.date, ...]
    audit: Audit


def build_shadow(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, target: Target, upstreams: Mapping[str, DataFrame]
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
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, target: Target, tables: Mapping[str, DataFrame]
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
