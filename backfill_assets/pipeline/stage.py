"""Staging: turns deliveries into typed, deduplicated rows by business day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.canonical import digest
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import ModelError, SourceError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.reading import Deduplicate
from backfill_assets.dataset.references import seen_alike
from backfill_assets.delta.opening import is_table, table_at, tables_in
from backfill_assets.delta.reading import digests_by_day, rows_by_day
from backfill_assets.delta.shadows import kept
from backfill_assets.evidence.raw_contents import DELIVERY_DAY
from backfill_assets.ledger.open import Ledger
from backfill_assets.pipeline.parse import CORRUPT
from backfill_assets.pipeline.raw_table import ORDER, read_in_force
from backfill_assets.pipeline.reads import aggregates
from backfill_assets.pipeline.run_models import empty_tables, plain_references, run_model
from backfill_assets.pipeline.tables import in_days, is_true, read_table, renamed, write_days, writing
from backfill_assets.pipeline.types import declared_type, struct_of
from backfill_assets.spark.driver import room_for
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location

LINEAGE: Final = "_lineage"
"""The column that says which delivery a row came from; a staging model passes it through."""

_LINEAGE_TYPE: Final = T.StructType(
    [
        *struct_of(
            {
                "order": "long",
                "delivery_day": "date",
                "delivered_at": "timestamp",
                "source_file": "string",
                "fingerprint": "string",
            }
        )
    ]
)
Arrange = Callable[[DataFrame], DataFrame]
"""Changes only the order of the rows of a table."""
_WEEK: Final = 7 * 24
"""Hours for which Delta keeps replaced files by default."""
_KEPT: Final = {
    DELIVERY_DAY: "delivery_day", "_delivered_at": "delivered_at", "_source_file": "source_file", ORDER: "order",
}  # fmt: skip


@dataclass(frozen=True)
class StagedCounts:
    """Rows of one business day, and rows delivered on that day for business days that it may not bring.

    `files` is the digest of the files that hold the day in the table `place` below staging.
    """

    rows: int
    outside_rows: int
    place: str = field(default="", compare=False)
    files: str = field(default="", compare=False)


def stage(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], force: Collection[Delivery]
) -> Mapping[dt.date, StagedCounts]:
    """Build exactly these days of staging from the deliveries in `force`, in one commit; days without any become empty.

    Raises:
        ModelError: the staging model fails or returns other columns than it must.
        SourceError: raw or a reference does not fit what `dataset.yaml` declares.
        StorageError: the disk is full, or does not confirm what was staged; staging is unchanged, or is staged again next time.
    """
    if not days:
        return {}
    dataset = loaded.dataset
    rows = _model_rows(spark, loaded, layout, dataset.delivery_days(tuple(days)), force)
    path = _folder(layout, loaded, rows.schema)
    # Counting needs temporary files: if they fill the disk, the model is not at fault.
    with renamed(ModelError, str(loaded.staging_model.path), also=("FAILED_READ_FILE",)), room_for(str(path)):
        counted = Observation()
        seen = rows.observe(counted, F.count_if(_is_outside(dataset)).alias("outside"))
        # Durable first: the ledger will say that these days are staged.
        with kept(path):
            files = write_days(_own(seen, dataset, days), path, dataset.partition_column, days)
        # Counted by day only if there are any, or if Spark gave no count: reading all rows again costs as much as writing them.
        outside = {} if counted.get.get("outside") == 0 else _outside_by_day(rows, loaded)
    counts = rows_by_day(path, dataset.partition_column, days)
    return {day: StagedCounts(counts[day], outside.get(dataset.due(day), 0), path.name, files[day]) for day in days}


def held_in_staging(loaded: LoadedDataset, layout: Layout, staged: Iterable[StagedDay]) -> Mapping[dt.date, str]:
    """Digest by day of the files that hold it now, in the table where it was staged; days without a table are left out."""
    found: dict[dt.date, str] = {}
    for path, days in _tables_of(loaded, layout, staged).items():
        found |= digests_by_day(path, loaded.dataset.partition_column, days)
    return found


def rows_in_staging(loaded: LoadedDataset, layout: Layout, staged: Iterable[StagedDay]) -> Mapping[dt.date, int]:
    """Rows by day that it has now, in the table where it was staged; days without a table are left out."""
    found: dict[dt.date, int] = {}
    for path, days in _tables_of(loaded, layout, staged).items():
        found |= rows_by_day(path, loaded.dataset.partition_column, days)
    return found


def _tables_of(
    loaded: LoadedDataset, layout: Layout, staged: Iterable[StagedDay]
) -> Mapping[Location, Collection[dt.date]]:
    """The staging tables that are there, with the days that were staged in each."""
    places: dict[str, list[dt.date]] = {}
    for one in staged:
        places.setdefault(one.place, []).append(one.day)
    tables = {layout.staging_path(loaded.name, place): days for place, days in places.items() if place}
    return {path: days for path, days in tables.items() if is_table(path)}


def as_they_are(table: DataFrame) -> DataFrame:
    """Keep the order of the rows."""
    return table


def staged_rows(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: Collection[dt.date],
    force: Collection[Delivery],
    arrange: Arrange = as_they_are,
) -> DataFrame:
    """The rows that `stage` would write for these days now; nothing is written.

    `arrange` is applied to the tables that the staging model reads.

    Raises:
        ModelError: the staging model fails or returns other columns than it must.
        SourceError: raw or a reference does not fit what `dataset.yaml` declares.
    """
    rows = _model_rows(spark, loaded, layout, loaded.dataset.delivery_days(tuple(days)), force, arrange)
    return _own(rows, loaded.dataset, days)


def outside_rows(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], force: Collection[Delivery]
) -> DataFrame:
    """Rows that the staging model returns from these delivery days for business days that they may not bring."""
    return _model_rows(spark, loaded, layout, days, force).where(_is_outside(loaded.dataset))


def staged_table(spark: SparkSession, loaded: LoadedDataset, layout: Layout) -> DataFrame:
    """The staging table with the columns that the staging model returns now; runs no Spark job.

    Each set of columns and types has its own folder, so that a changed model never meets rows of another shape.

    Raises:
        SourceError: nothing was ever staged with these columns.
    """
    path = _folder(layout, loaded, run_model(spark, loaded.staging_model, _empty_tables(spark, loaded)).schema)
    if not is_table(path):
        raise SourceError(f"{loaded.name}: nothing is staged in {path}; materialize staging for these days first")
    return read_table(spark, path)


def aggregates_deliveries(spark: SparkSession, loaded: LoadedDataset) -> bool:
    """Whether the staging model makes one row of several, possibly from several files; runs no Spark job."""
    tables = _empty_tables(spark, loaded)
    return aggregates(run_model(spark, loaded.staging_model, tables), tables)


def vacuum_staging(
    opened: Callable[[], AbstractContextManager[SparkSession]], loaded: LoadedDataset, layout: Layout, ledger: Ledger
) -> int:
    """Remove the staging files that no version of the last week has; returns their number. Opens a session only if there are some.

    Staging can be built again from raw. Of raw, only files of purged deliveries go (`Purge.sweep`): after a backup was restored, a
    file that its log does not know may be the only copy of a delivery.
    """
    old = {path: _unneeded(path) for path in tables_in(layout.staging_path(loaded.name))}
    if not any(old.values()):
        return 0
    # Through Spark, the table's only writer; delta-rs only listed the files.
    with opened() as spark, writing(spark, ledger, Layer.staging, loaded.name):
        for path in (path for path, files in old.items() if files):
            quoted = path.for_spark.replace("`", "``")
            spark.sql(f"VACUUM delta.`{quoted}` RETAIN {_WEEK} HOURS")
    return sum(map(len, old.values()))


def _empty_tables(spark: SparkSession, loaded: LoadedDataset) -> Mapping[str, DataFrame]:
    raw = T.StructType([*struct_of(loaded.dataset.feed.types).fields, T.StructField(LINEAGE, _LINEAGE_TYPE)])
    plain = seen_alike(loaded.dataset.references)
    references = {name: struct_of(loaded.dataset.references[name].types) for name in plain}
    return empty_tables(spark, {"raw": raw, **references})


def _unneeded(path: Location) -> list[str]:
    found = table_at(path).vacuum(retention_hours=_WEEK, dry_run=True, full=True)
    # Not checksums beside the files: Spark leaves them alone as well.
    return [file for file in found if not file.rsplit("/", 1)[-1].startswith((".", "_"))]


def _folder(layout: Layout, loaded: LoadedDataset, schema: T.StructType) -> Location:
    shape = sorted((field.name, field.dataType.json()) for field in schema.fields)
    return layout.staging_path(loaded.name, digest(shape)[:12])


def _own(rows: DataFrame, dataset: Dataset, days: Collection[dt.date]) -> DataFrame:
    """The staged rows of these days among those that a staging model returns."""
    own = rows.where(~_is_outside(dataset) & in_days(dataset.partition_column, days))
    return _flattened(_newest(own, dataset))


def _model_rows(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: Collection[dt.date],
    force: Collection[Delivery],
    arrange: Arrange = as_they_are,
) -> DataFrame:
    raw = read_in_force(spark, loaded, layout, days, force)
    lineage = F.struct(
        F.col(ORDER).alias("order"),
        F.col(DELIVERY_DAY).alias("delivery_day"),
        F.col("_delivered_at").alias("delivered_at"),
        F.col("_source_file").alias("source_file"),
        F.col("_fingerprint").alias("fingerprint"),
    ).alias(LINEAGE)
    good = raw.where(F.col(CORRUPT).isNull()).select(*loaded.dataset.feed.columns, lineage)
    tables = {"raw": good, **plain_references(spark, loaded, layout)}
    rows = run_model(spark, loaded.staging_model, {name: arrange(table) for name, table in tables.items()})
    _check_columns(loaded, rows.schema)
    return rows


def _check_columns(loaded: LoadedDataset, schema: T.StructType) -> None:
    dataset, file = loaded.dataset, loaded.staging_model.path
    found = {field.name: field.dataType for field in schema.fields}
    wanted = (dataset.partition_column, *dataset.key, LINEAGE)
    if missing := [name for name in dict.fromkeys(wanted) if name not in found]:
        raise ModelError(f"{file}: does not return the column {', '.join(missing)}; found {', '.join(found)}")
    if not isinstance(found[dataset.partition_column], T.DateType):
        kind = declared_type(found[dataset.partition_column])
        raise ModelError(f"{file}: column {dataset.partition_column}: expected date, found {kind}; cast it")
    if found[LINEAGE].simpleString() != _LINEAGE_TYPE.simpleString():
        raise ModelError(f"{file}: column {LINEAGE} was changed; pass it through from raw unchanged")
    if kept := [name for name in found if name.startswith("_") and name != LINEAGE]:
        raise ModelError(f"{file}: column {kept[0]}: names that begin with _ are the framework's; rename it")


def _is_outside(dataset: Dataset) -> Column:
    day, delivered = F.col(dataset.partition_column), F.col(LINEAGE).getField("delivery_day")
    first = F.trunc(delivered, "month") if dataset.is_monthly else delivered
    inside = (day <= delivered) & (day >= F.date_sub(first, dataset.feed.late_days))
    lost = F.raise_error(
        F.lit(f"rows have no {LINEAGE}; pass it through for every row, after an aggregation as max({LINEAGE})")
    )
    return F.when(delivered.isNull(), lost.cast("boolean")).otherwise(~is_true(inside))


def _outside_by_day(rows: DataFrame, loaded: LoadedDataset) -> dict[dt.date, int]:
    delivered = F.col(LINEAGE).getField("delivery_day")
    counted = rows.where(_is_outside(loaded.dataset)).groupBy(delivered.alias("day")).count().collect()
    return {row["day"]: int(row["count"]) for row in counted}


def _newest(rows: DataFrame, dataset: Dataset) -> DataFrame:
    """For each key, keep all rows of its newest delivery: the checks find duplicates inside one delivery."""
    alone = dataset.staging.deduplicate is Deduplicate.latest_file and not dataset.feed.late_days
    if alone or dataset.staging.deduplicate is Deduplicate.none:
        return rows
    order = F.col(LINEAGE).getField("order")
    key = Window.partitionBy(*dict.fromkeys((dataset.partition_column, *dataset.key)))
    marked = rows.withColumn("_newest", F.max(order).over(key))
    return marked.where(order == F.col("_newest")).drop("_newest")


def _flattened(rows: DataFrame) -> DataFrame:
    kept = [F.col(LINEAGE).getField(field).alias(name) for name, field in _KEPT.items()]
    return rows.select(*(F.col(name) for name in rows.columns if name != LINEAGE), *kept)
