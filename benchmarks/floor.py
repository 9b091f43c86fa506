"""The floor: one bare PySpark job that writes the same three layers of the whole range and checks them once.

No shadow, no release, no ledger, no fingerprints, no results by day in a scheduler: the least that the same tables cost.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.layout import Layout
from benchmarks.installation import BenchmarkError
from benchmarks.stages import Span


def run_floor(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Sequence[dt.date], target: Path
) -> tuple[Span, ...]:
    """Build raw, staging and fact below `target` and check them; the time of each, named as the pipeline's stages.

    Raises:
        BenchmarkError: a check does not pass.
    """
    times = [time.time(), *(time.time() for _ in _layers(spark, loaded, layout, days, target))]
    names = ("raw", "staging", "shadow", "checks")
    return tuple(Span(name, times[i], times[i + 1]) for i, name in enumerate(names))


def _layers(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Sequence[dt.date], target: Path
) -> Iterator[None]:
    dataset = loaded.dataset
    if loaded.staging is None:
        raise BenchmarkError(f"{loaded.name} has no staging model; only datasets with a source have a floor")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    files = [str(file) for day in days for file in path_of(layout.sources).glob(dataset.landing.template.filled(day))]
    name = F.col("_metadata.file_path")
    landed = spark.read.parquet(*files).select(
        "*",
        name.alias("_source_file"),
        F.col("_metadata.file_modification_time").alias("_delivered_at"),
        F.current_timestamp().alias("_ingested_at"),
        F.to_date(F.regexp_extract(name, r"(\d{4}-\d\d-\d\d)/[^/]*$", 1)).alias("_delivery_day"),
    )
    _write(landed, target / "raw", "_delivery_day")
    yield
    raw = _read(spark, target / "raw").withColumn(
        "_lineage", F.struct("_delivery_day", "_delivered_at", "_source_file")
    )
    raw.createOrReplaceTempView("raw")
    staged = spark.sql(loaded.staging.text).dropDuplicates(list(dataset.key))
    _write(staged, target / "staging", dataset.partition_column)
    yield
    _read(spark, target / "staging").createOrReplaceTempView("staging")
    for reference, declared in dataset.references.items():
        spark.read.parquet(str(layout.source(declared.path))).createOrReplaceTempView(reference)
    _write(spark.sql(loaded.fact.text), target / "fact", dataset.partition_column)
    yield
    _check(spark, loaded, target)
    yield


def _check(spark: SparkSession, loaded: LoadedDataset, target: Path) -> None:
    """Keys, nulls, rules and totals by day in one pass over the fact, and the totals of staging in another."""
    dataset = loaded.dataset
    compared = [name for name in dataset.reconciled if name != "row_count"]
    totals = [F.count("*").alias("row_count"), *(F.sum(name).alias(name) for name in dataset.measures)]
    bad = [
        (F.count("*") - F.count_distinct(F.struct(*dataset.key))).alias("bad_keys"),
        *(F.count_if(F.col(name).isNull()).alias(f"bad_{name}") for name in dataset.required_columns),
        *(
            F.count_if(~F.coalesce(F.expr(rule.sql), F.expr("false"))).alias(f"bad_{name}")
            for name, rule in dataset.checks.rules.items()
        ),
    ]
    fact = _by_day(_read(spark, target / "fact").groupBy(dataset.partition_column).agg(*totals, *bad))
    wanted = [F.count("*").alias("row_count"), *(F.sum(name).alias(name) for name in compared)]
    staging = _by_day(_read(spark, target / "staging").groupBy(dataset.partition_column).agg(*wanted))
    for day, found in fact.items():
        failed = [name for name, count in found.items() if name.startswith("bad_") and count]
        failed += [name for name in ("row_count", *compared) if found[name] != staging[day][name]]
        if failed:
            raise BenchmarkError(f"the floor's own checks fail on {day}: {', '.join(failed)}")


def _by_day(frame: DataFrame) -> Mapping[object, Mapping[str, object]]:
    return {row[0]: row.asDict() for row in frame.collect()}


def _read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("delta").load(str(path))


def _write(frame: DataFrame, path: Path, partition: str) -> None:
    """One file per day, as the pipeline writes them."""
    frame.repartition(partition).write.format("delta").mode("overwrite").partitionBy(partition).save(str(path))
