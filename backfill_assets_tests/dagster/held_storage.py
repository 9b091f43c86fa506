"""Dagster's storage of an installation whose webserver waits at gates before and after it stores a launch; see `gates.py`."""

from __future__ import annotations

import os
from pathlib import Path

from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.storage.runs import SqliteRunStorage
from dagster._serdes import ConfigurableClassData

from backfill_assets_tests.dagster.gates import HOLD_VARIABLE, stand
from dagster_batched_events import BatchedSqliteStorage

BEFORE, AFTER = "before_add_backfill", "after_add_backfill"


class _HeldRuns(SqliteRunStorage):
    def add_backfill(self, partition_backfill: PartitionBackfill) -> None:
        gates = Path(os.environ.get(HOLD_VARIABLE, os.devnull))
        stand(gates, BEFORE)
        super().add_backfill(partition_backfill)
        stand(gates, AFTER)


class HeldStorage(BatchedSqliteStorage):
    """The storage as shipped, with a gate before and one after a launch is stored."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        # Dagster decides where the database of runs is.
        self._run_storage.__class__ = _HeldRuns
