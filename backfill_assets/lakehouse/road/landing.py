"""Read source files of any format into the rows of raw, each with the file that it came from."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.domain.dataset import Source
from backfill_assets.domain.files import Format
from backfill_assets.lakehouse.road.files import csv_options, positional, spark_path
from backfill_assets.lakehouse.road.spark_sql import struct_of

_CORRUPT: Final = "_corrupt_record"
_FILE: Final = "_file"
_LINEAGE: Final = "_source_file string, _fingerprint string, _delivered_at timestamp, _delivery_day date"


@dataclass(frozen=True)
class Found:
    """A file to be read: its delivery day, its path below the sources folder and its real one, and its columns."""

    day: dt.date
    path: str
    file: Path
    fingerprint: str
    delivered_at: dt.datetime
    columns: tuple[str, ...]


def delivered_rows(spark: SparkSession, source: Source, files: Sequence[Found], now: dt.datetime) -> DataFrame:
    """The rows of the files as raw holds them: declared columns, where each row came from, and what was unreadable.

    One pass over all files; a row that does not fit keeps its line in `_corrupt_record`.
    """
    if not files:
        return spark.createDataFrame([], _raw_schema(source))
    rows = reduce(DataFrame.unionByName, [_read(spark, source, group) for group in _by_columns(files)])
    known = [(str(f.file), f.path, f.fingerprint, f.delivered_at, f.day) for f in files]
    lineage = spark.createDataFrame(known, f"{_FILE} string, {_LINEAGE}")
    # Left, and loud: a row whose file is not recognised must not go missing.
    joined = rows.join(F.broadcast(lineage), _FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("a row of no known file: "), F.col(_FILE)))
    own = {"_source_file": F.coalesce("_source_file", unknown), "_ingested_at": F.lit(now)}
    return joined.withColumns(own).select(*_raw_schema(source).names)


def _raw_schema(source: Source) -> T.StructType:
    kept = struct_of({"_source_file": "string", "_fingerprint": "string", "_delivered_at": "timestamp"})
    tail = struct_of({"_ingested_at": "timestamp", _CORRUPT: "string", "_delivery_day": "date"})
    return T.StructType([*struct_of(source.columns).fields, *kept.fields, *tail.fields])


def _by_columns(files: Sequence[Found]) -> list[list[Found]]:
    groups: dict[tuple[str, ...], list[Found]] = {}
    for file in files:
        groups.setdefault(file.columns, []).append(file)
    return [group for columns, group in groups.items() if columns]


def _read(spark: SparkSession, source: Source, files: Sequence[Found]) -> DataFrame:
    paths = [spark_path(f.file) for f in files]
    reader = spark.read.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _CORRUPT)
    match source.format:
        case Format.csv:
            schema = _with_corrupt(positional(source, files[0].columns))
            frame = reader.options(**csv_options(source.csv)).schema(schema).csv(paths)
        case Format.jsonl:
            frame = reader.schema(_with_corrupt(struct_of(source.columns))).json(paths)
        case Format.parquet:
            frame = reader.schema(struct_of(source.columns)).parquet(*paths)
            frame = frame.withColumn(_CORRUPT, F.lit(None).cast("string"))
    # Spark gives a URI; plus signs are not spaces in one, as url_decode thinks.
    name = F.regexp_replace(
        F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B"))), "^file:/+", "/"
    )
    return frame.select(*source.columns, _CORRUPT, name.alias(_FILE))


def _with_corrupt(schema: T.StructType) -> T.StructType:
    return T.StructType([*schema.fields, T.StructField(_CORRUPT, T.StringType())])
