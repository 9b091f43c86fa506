"""Whether all workers of a Spark server see the warehouse."""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.core.errors import StorageError
from backfill_assets.spark.driver import driver_of
from backfill_assets.storage.location import Location
from backfill_assets.storage.owner import OWNER_FILE

SEEN_FILE: Final = "seen_by_spark"
_TASKS: Final = 64
_SPLIT: Final = "spark.sql.files.maxPartitionBytes"
_UNSEEN: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "PATH_NOT_FOUND")
_SHOWN: Final = 300
_log = logging.getLogger(__name__)
_asked: set[tuple[str, str]] = set()
"""The drivers whose workers this process has asked, with the warehouse."""


def require_workers_see(spark: SparkSession, warehouse: Location) -> None:
    """Let the workers of a server read a file of the warehouse in many tasks: what a worker writes elsewhere would be lost.

    Done once per server and process. A worker that joins later, or does none of the tasks, is not asked.

    Raises:
        StorageError: a task does not find the file, or may not read it.
    """
    question = (driver_of(spark), str(warehouse))
    if question in _asked:
        return
    # A copy of the warehouse, or the bucket of this name at another address, has another owner.
    owner = warehouse / OWNER_FILE
    line = f"seen {hashlib.sha256((owner.text() if owner.is_there() else '').encode()).hexdigest()[:16]}"
    file, wanted = warehouse / SEEN_FILE, f"{line}\n" * _TASKS
    try:
        if not file.is_there() or file.text() != wanted:
            file.write(wanted)
    except StorageError as error:
        # A user who may only read cannot lose anything by writing.
        _log.info("not asked whether the workers of Spark see %s: %s", warehouse, error)
        return
    before = spark.conf.get(_SPLIT)
    # One task for each line. A task that fails is not tried again elsewhere: it finds nothing.
    spark.conf.set(_SPLIT, str(len(line) + 1))
    reader = spark.read.option("ignoreMissingFiles", "true").option("ignoreCorruptFiles", "true")
    try:
        lines, why = reader.text(file.escaped_for_spark).where(f"value = '{line}'").count(), ""
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_UNSEEN):
            raise
        lines, why = 0, f": {str(error).splitlines()[0][:_SHOWN]}"
    if lines != _TASKS:
        raise StorageError(
            f"{warehouse}: a worker of the Spark server does not see it{why}. The server and every worker need the warehouse under "
            "this path (docs/cluster.md); nothing was written"
        )
    spark.conf.set(_SPLIT, before or "128MB")
    _asked.add(question)
