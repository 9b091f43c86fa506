"""Shadow: the new version of some days, built aside where no reader looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.days import format_days
from backfill_assets.domain.errors import ModelError
from backfill_assets.lakehouse.layout import Layout, below
from backfill_assets.lakehouse.road.models import run_model
from backfill_assets.lakehouse.road.references import reference_tables
from backfill_assets.lakehouse.road.spark_sql import condition_of, declared_type, in_days, is_true, renamed
from backfill_assets.lakehouse.road.staging import read_staged
from backfill_assets.lakehouse.road.tables import write_days


@dataclass(frozen=True)
class Audit:
    """What every row of a shadow says of its making; the time is aware."""

    recalculated_at: dt.datetime
    unit: str
    code_version: str


def build_shadow(  # noqa: PLR0913, PLR0917 - what, where from, which days, where to, and on whose behalf
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: Collection[dt.date],
    attempt_folder: str,
    audit: Audit,
) -> None:
    """Compute these days of the fact into `attempt_folder` below the published table, in one commit.

    The folder becomes a Delta table with one file per day; building days again replaces them.

    Raises:
        ModelError: the fact model fails, returns other columns than declared, or rows of days that it was not asked for.
        SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
    """
    if not days:
        return
    dataset, file = loaded.dataset, str(loaded.fact.path)
    read = dataset.with_lookback(tuple(days))
    staged = read_staged(spark, loaded, layout, read)
    fact = run_model(spark, loaded.fact, {"staging": staged, **reference_tables(spark, loaded, layout)})
    _check_columns(loaded, fact.schema)
    looked_back = in_days(dataset.partition_column, set(read) - set(days))
    # A row without a day must reach the write, which refuses it: the condition alone would drop it.
    rows = fact.where(~is_true(looked_back))
    path = shadow_path(loaded, layout, attempt_folder)
    with renamed(ModelError, file, also=("FAILED_READ_FILE",)):
        try:
            write_days(_audited(rows, loaded, audit), path, dataset.partition_column, days)
        except PySparkException as error:
            if condition_of(error) != "DELTA_REPLACE_WHERE_MISMATCH":
                raise
            raise ModelError(_strangers(rows, loaded, days)) from None


def shadow_path(loaded: LoadedDataset, layout: Layout, attempt_folder: str) -> Path:
    """Folder of an attempt's shadow.

    Raises:
        LayoutError: it would lie outside the published table's folder.
    """
    return below(layout.published_path(loaded.name), attempt_folder)


def _audited(rows: DataFrame, loaded: LoadedDataset, audit: Audit) -> DataFrame:
    added = {
        "recalculated_at": F.lit(audit.recalculated_at).cast("timestamp"),
        "unit": F.lit(audit.unit),
        "code_version": F.lit(audit.code_version),
    }
    return rows.select(*loaded.dataset.columns, *(column.alias(name) for name, column in added.items()))


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


def _strangers(rows: DataFrame, loaded: LoadedDataset, days: Collection[dt.date]) -> str:
    partition = loaded.dataset.partition_column
    others = rows.where(~is_true(in_days(partition, days))).select(partition).distinct()
    found = [row[0] for row in others.limit(1000).collect()]
    nulls = " and of no day at all (null)" if None in found else ""
    return (
        f"{loaded.fact.path}: returned rows of {format_days(d for d in found if d is not None)}{nulls}, "
        f"but was asked for {format_days(days)}; a fact row must keep the day of its staged rows"
    )
