"""Dagster's event log, written in batches: what a chunk of hundreds of days tells Dagster in seconds instead of minutes."""

from backfill_assets.orchestration.storage.batches import BatchedEvents, batched_events
from backfill_assets.orchestration.storage.sqlite import BatchedSqliteEventLogStorage, BatchedSqliteStorage

__all__ = ["BatchedEvents", "BatchedSqliteEventLogStorage", "BatchedSqliteStorage", "batched_events"]
