"""Dagster's event log, written in batches: many check results and materializations in few transactions."""

from dagster_batched_events.batches import BatchedEvents, batched_events
from dagster_batched_events.retention import UnsupportedStorageError, delete_old_logs
from dagster_batched_events.sqlite import BatchedSqliteEventLogStorage, BatchedSqliteStorage
from dagster_batched_events.urls import UnreadableUrlError

__all__ = [
    "BatchedEvents",
    "BatchedSqliteEventLogStorage",
    "BatchedSqliteStorage",
    "UnreadableUrlError",
    "UnsupportedStorageError",
    "batched_events",
    "delete_old_logs",
]
