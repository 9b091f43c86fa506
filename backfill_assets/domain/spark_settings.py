"""Spark settings: those that a campaign may choose, and those that decide which rows come out and are the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

OF_SPEED: Final = (
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.enabled",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes",
    "spark.sql.adaptive.autoBroadcastJoinThreshold",
    "spark.sql.adaptive.coalescePartitions.*",
    "spark.sql.adaptive.localShuffleReader.enabled",
    "spark.sql.adaptive.skewJoin.*",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.inMemoryColumnarStorage.batchSize",
    "spark.sql.join.preferSortMergeJoin",
    "spark.sql.parquet.columnarReaderBatchSize",
    "spark.sql.sources.parallelPartitionDiscovery.*",
)
"""What a campaign may set: they decide how fast a query runs and on how many tasks, never which rows it finds."""

PINNED: Final[Mapping[str, str]] = {
    # An overflow, a division by zero or a text that is no number is an error, and not null.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    # Files that vanish or cannot be read are an error, and no missing rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreInvalidPartitionPaths": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.legacy.csv.enableDateTimeParsingFallback": "false",
    "spark.sql.legacy.json.enableDateTimeParsingFallback": "false",
    "spark.databricks.delta.stalenessLimit": "0",
    # Raw is read at the version at which its rows were counted, also if that is a week old and another landing comes meanwhile.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Days, times and numbers.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Spark's own default, INT96, is unknown to many readers, has no statistics, and ends in the year 2262 for Arrow and Polars.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # What names mean.
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # Plans are shown whole: what a model reads is looked up in them.
    "spark.sql.debug.maxToStringFields": "100000",
    "spark.sql.maxPlanStringLength": "2147483632",
    # Writing.
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "true",
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
}
"""What every session sets, whatever the server or a campaign says: with other values the same models build other rows."""


def is_of_speed(name: str) -> bool:
    """Whether a campaign may set it."""
    return any(fnmatchcase(name, pattern) for pattern in OF_SPEED)
