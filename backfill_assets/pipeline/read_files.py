"""Read source files of any format into the rows of raw, each with the file that it came from.

Of text files raw keeps the lines as they came, so that another reading of them needs no source; of Parquet the declared columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.dataset.sources import Format, Source, Undeclared, form_of, reading_of
from backfill_assets.pipeline.formats import DeclaredFiles, columns_of, headline, spark_path
from backfill_assets.pipeline.parse import CORRUPT, HEADER, LINE, Headers, cells_of, dropped
from backfill_assets.pipeline.tables import struct_of

FORM: Final = "_form"
"""What raw keeps of a row's file, as `domain.reading.form_of` gives it."""
INGESTED: Final = "_ingested_at"
"""When a row was read into raw."""

_FILE: Final = "_file"
_LINEAGE: Final = "_source_file string, _fingerprint string, _delivered_at timestamp, _delivery_day date"
# No byte is any of these characters in this encoding: whatever a line holds, it is one cell.
_LINES: Final = {
    "encoding": "ISO-8859-1",
    "sep": "\u0100",
    "quote": "\u0101",
    "escape": "\u0102",
    "nullValue": "\u0103",
}


@dataclass(frozen=True)
class Found:
    """A file to be read: its delivery day, its path below the sources folder and its real one."""

    day: dt.date
    path: str
    file: Path
    fingerprint: str
    delivered_at: dt.datetime


def delivered_rows(spark: SparkSession, source: Source, files: Sequence[Found], now: dt.datetime) -> DataFrame:
    """The rows of the files as raw holds them: lines (of Parquet the declared columns), and where each row came from.

    One pass over all files; which lines are good is decided whenever they are read from raw.
    """
    schema = raw_schema(source)
    if not files:
        return spark.createDataFrame([], schema)
    lines = {f.path: headline(f.file, f.path) for f in files} if _has_headlines(source) else {}
    known = [(str(f.file), f.path, f.fingerprint, f.delivered_at, f.day, lines.get(f.path)) for f in files]
    lineage = spark.createDataFrame(known, f"{_FILE} string, {_LINEAGE}, {HEADER} binary")
    # Left, and loud: a row whose file is not recognised must not go missing.
    joined = _rows(spark, source, files).join(F.broadcast(lineage), _FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("a row of no known file: "), F.col(_FILE)))
    form = F.lit(form_of(reading_of(source)))
    own = {"_source_file": F.coalesce("_source_file", unknown), INGESTED: F.lit(now), FORM: form}
    rows = joined.withColumns(own)
    if source.format is not Format.parquet and source.undeclared is Undeclared.drop:
        rows = dropped(cells_of(rows, source, headers_of(source, {lines[path]: path for path in lines})))
    return rows.select(*schema.names)


def headers_of(declared: DeclaredFiles, paths: Mapping[bytes, str]) -> Headers | None:
    """The columns of CSV files by headline, each with the path of one file that has it; none where files have no headline.

    Raises:
        SourceError: a headline lacks a column that is declared now.
    """
    if not _has_headlines(declared):
        return None
    return {line: columns_of(line, path, declared) for line, path in paths.items()}


def raw_schema(source: Source) -> T.StructType:
    """The columns of raw: the same for all text files, whatever is declared."""
    lineage = struct_of({"_source_file": "string", "_fingerprint": "string", "_delivered_at": "timestamp"})
    tail = struct_of({INGESTED: "timestamp", FORM: "string", "_delivery_day": "date"})
    if source.format is Format.parquet:
        rows = [*struct_of(source.columns).fields, *struct_of({CORRUPT: "string"}).fields]
    else:
        rows = [T.StructField(name, T.BinaryType()) for name in (LINE, HEADER)]
    return T.StructType([*rows, *lineage.fields, *tail.fields])


def lines_of(spark: SparkSession, declared: DeclaredFiles, files: Sequence[Path]) -> DataFrame:
    """The lines of text files, without headlines and blank ones, and the real path of the file of each."""
    reader = spark.read.options(**_LINES, header=str(_has_headlines(declared)).lower())
    lines = reader.schema(f"{LINE} string").csv([spark_path(file) for file in files])
    return lines.select(F.encode(LINE, "ISO-8859-1").alias(LINE), _real_path())


def _rows(spark: SparkSession, source: Source, files: Sequence[Found]) -> DataFrame:
    if source.format is not Format.parquet:
        return lines_of(spark, source, [f.file for f in files])
    frame = spark.read.schema(struct_of(source.columns)).parquet(*(spark_path(f.file) for f in files))
    return frame.select(*source.columns, F.lit(None).cast("string").alias(CORRUPT), _real_path())


def _has_headlines(declared: DeclaredFiles) -> bool:
    return declared.format is Format.csv and declared.csv.header


def _real_path() -> Column:
    # Spark gives a URI; plus signs are not spaces in one, as url_decode thinks.
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, "^file:/+", "/").alias(_FILE)
