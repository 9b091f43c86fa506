"""Delta tables by day: read them, and replace exactly some days in one commit."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, cast

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from backfill_assets.core.canonical import digest
from backfill_assets.lakehouse.published.log import LOG, actions, commits
from backfill_assets.lakehouse.published.reading import add_actions
from backfill_assets.lakehouse.road.spark_sql import condition_of, days_condition, in_days
from backfill_assets.lakehouse.spark_errors import room_for

_PLAIN: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.enableRowTracking": "false",
    "delta.columnMapping.mode": "none",
}
"""What a remote server may switch on by default, and delta-rs or a swap of files cannot do with."""
_RACES: Final = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_TRIES: Final = 5
_WRITES: Final = itertools.count()
"""Numbers the writes of this process."""


def is_table(path: Path) -> bool:
    """Whether a Delta table lies in this folder."""
    return any((path / "_delta_log").glob("*.json"))


def held_by_day(place: Path, column: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
    """By day a digest (hex) of the files that a table has for it, of all where it is not partitioned by `column`.

    Raises:
        DeltaError: the folder holds no whole Delta table.
    """
    table = DeltaTable(place)
    # A column that is added or renamed in the metadata alone changes what is read.
    known: tuple[object, ...] = (table.metadata().id, table.schema().to_json())
    if "deletionVectors" in (table.protocol().reader_features or ()):
        # Such a vector takes rows out of a file that keeps its name.
        return dict.fromkeys(days, digest([*known, table.version()]))
    by_day = column in table.metadata().partition_columns
    files: dict[dt.date | None, list[str]] = {}
    for add in add_actions(table, "path", *(["partition"] if by_day else [])):
        files.setdefault(add["partition"][column] if by_day else None, []).append(add["path"])
    if not by_day:
        return dict.fromkeys(days, digest([*known, sorted(files.get(None, []))]))
    return {day: digest([*known, sorted(files.get(day, []))]) for day in days}


def files_of_days(table: DeltaTable, column: str, days: Collection[dt.date]) -> Mapping[str, dt.date]:
    """The files that a loaded version has for some days, by their path relative to the table, each with its day."""
    files = {f["path"]: f["partition"][column] for f in add_actions(table, "path", "partition")}
    asked = frozenset(days)
    return {file: day for file, day in files.items() if day in asked}


def read_table(spark: SparkSession, path: Path) -> DataFrame:
    """Read the newest version of a Delta table."""
    return spark.read.format("delta").load(str(path))


def read_days(
    spark: SparkSession, path: Path, partition: str, days: Collection[dt.date], version: int | None = None
) -> DataFrame:
    """Read some days of a Delta table, of its newest version or of another; other days' files are not opened."""
    reader = spark.read.format("delta")
    table = reader if version is None else reader.option("versionAsOf", version)
    return table.load(str(path)).where(in_days(partition, days))


def rows_by_day(path: Path, partition: str, days: Collection[dt.date]) -> Mapping[dt.date, int]:
    """Number of rows of each of the days, from the table's log alone."""
    counts = dict.fromkeys(days, 0)
    for file in add_actions(DeltaTable(path), "num_records", "partition"):
        if (day := file["partition"][partition]) in counts:
            counts[day] += file["num_records"]
    return counts


def digests_by_day(path: Path, partition: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
    """By day the digest of the files that a table has for it, as `write_days` gives it; none where there is no table."""
    if not is_table(path):
        return {}
    table, files = DeltaTable(path), dict[dt.date, list[str]]()
    if "deletionVectors" in (table.protocol().reader_features or ()):
        # Such a vector takes rows out of a file that keeps its name; `write_days` makes none.
        return {}
    files = {day: [] for day in days}
    for add in add_actions(table, "path", "partition"):
        if (day := add["partition"][partition]) in files:
            files[day].append(add["path"])
    return {day: digest(sorted(own)) for day, own in files.items()}


def write_days(frame: DataFrame, path: Path, partition: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
    """Replace exactly these days of a table by `frame`, one file per day, in one commit; creates the table.

    Gives by day the digest of the files that this very commit has brought, whatever others write meanwhile.

    Days that `frame` has no row of end up empty. It must not have rows of other days: Delta refuses them, but only where
    there is a table already.

    Raises:
        StorageError: the disk is full; the table is what it was.
    """
    commit = replace_where(frame, path, partition, days_condition(partition, days))
    files: dict[str, list[str]] = {}
    for add in actions(commit, "add") if commit is not None else ():
        files.setdefault(add["partitionValues"][partition], []).append(add["path"])
    return {day: digest(sorted(files.get(day.isoformat(), []))) for day in days}


def replace_where(frame: DataFrame, path: Path, partition: str, condition: str) -> Path | None:
    """Replace the rows that meet a condition by `frame`, one file per day, in one commit; creates the table.

    Gives the file of the commit; none where no row was removed or added, for then Delta makes no commit.

    Raises:
        StorageError: the disk is full; the table is what it was.
    """
    rows = frame.repartition(partition)
    # Told by it and not by its version: others may commit in between.
    mark = f"{cast('ConnectSession', frame.sparkSession).session_id} {os.getpid()} {next(_WRITES)}"

    before = max((version for version, _ in commits(path / LOG)), default=-1)

    def write() -> None:
        writer = rows.write.format("delta").mode("overwrite")
        writer = writer.option("replaceWhere", condition).option("userMetadata", mark)
        if is_table(path):
            writer.option("mergeSchema", "true").save(str(path))
        else:
            writer.partitionBy(partition).options(**_PLAIN).save(str(path))

    with room_for(path):
        retried(write)
    newer = (file for version, file in reversed(commits(path / LOG)) if version > before)
    return next((file for file in newer if _mark_of(file) == mark), None)


def _mark_of(commit: Path) -> object:
    return next((info.get("userMetadata") for info in actions(commit, "commitInfo")), None)


def retried(write: Callable[[], None]) -> None:
    """Run an idempotent write again when a concurrent one came first."""
    for left in reversed(range(_TRIES)):
        try:
            return write()
        except PySparkException as error:
            if not left or not condition_of(error).startswith(_RACES):
                raise
    return None
