"""Dagster's event log, written in batches: what a chunk of hundreds of days tells Dagster in seconds instead of minutes."""

from dagster_batched_events.batches import BatchedEvents, batched_events
from dagster_batched_events.sqlite import BatchedSqliteEventLogStorage, BatchedSqliteStorage

__all__ = ["BatchedEvents", "BatchedSqliteEventLogStorage", "BatchedSqliteStorage", "batched_events"]
