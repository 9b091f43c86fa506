"""Delta tables by day: read them, and replace exactly some days in one commit."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from backfill_assets.core.canonical import digest
from backfill_assets.delta.log import LOG, actions, commits
from backfill_assets.delta.reading import is_table
from backfill_assets.lakehouse.road.spark_sql import condition_of, days_condition, in_days
from backfill_assets.spark.session import room_for

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
