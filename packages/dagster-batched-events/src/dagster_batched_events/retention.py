"""Deletes the logs of runs that ended long ago, and leaves all that pages of assets, checks and runs are made from."""

from __future__ import annotations

import datetime as dt

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from dagster_batched_events.batches import BatchedEvents

_AT_ONCE = 100
_STEPS = "compute_logs"
"""Where Dagster puts what the steps of a run printed, below its id."""


class UnsupportedStorageError(TypeError):
    """Raised when the events of an instance are in a storage of another package, which alone knows how to delete them."""


def delete_old_logs(instance: dg.DagsterInstance, before: dt.datetime, *, dry_run: bool = False) -> int:
    """Delete the logs of runs that ended before an aware moment; returns the number of these runs.

    Deleted are log lines, events of steps and engine, and what the steps printed. The run with its tags and status stays, and so
    do materializations, observations and check results: no partition changes its state. Can be repeated at any time, also after a
    death in it. With `dry_run`, only counts.

    Raises:
        UnsupportedStorageError: the events are in a storage of another package.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, BatchedEvents):
        raise UnsupportedStorageError(
            f"{type(storage).__name__} does not delete logs of runs; configure BatchedSqliteStorage or BatchedPostgresStorage of "
            "dagster_batched_events as storage in dagster.yaml"
        )
    deleted = 0
    runs = storage.logged_runs()
    for first in range(0, len(runs), _AT_ONCE):
        some = runs[first : first + _AT_ONCE]
        ended = dg.RunsFilter(run_ids=some, statuses=FINISHED_STATUSES, updated_before=before.astimezone(dt.UTC))
        old = instance.get_run_ids(ended)
        deleted += len(old)
        if old and not dry_run:
            # The log of the run last: as long as it is there, the run is found again.
            for run in old:
                instance.compute_log_manager.delete_logs(prefix=[run, _STEPS])
            storage.delete_logs(old)
    return deleted
