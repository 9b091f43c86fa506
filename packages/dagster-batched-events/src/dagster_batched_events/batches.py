"""Many events in few transactions, for every SQL event log of Dagster."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster import DagsterEventType as Kind
from dagster._core.events import ASSET_CHECK_EVENTS, ASSET_EVENTS, EVENT_TYPE_TO_PIPELINE_RUN_STATUS, JobFailureData
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.tags import BACKFILL_ID_TAG, WILL_RETRY_TAG
from sqlalchemy import Connection, delete, select

from dagster_batched_events.check_rows import Row, evaluated_row, planned_rows, upsert

BATCH_VARIABLE = "DAGSTER_EVENT_BATCH_SIZE"
"""Dagster's own switch: above 0 it hands materializations and planned events to the storage in batches of this size."""
_SIZE = 500
_SECONDS = 1.0
"""How long an event may stay unseen by other processes while a batch fills up."""
_ASSETS = ASSET_EVENTS & {Kind.ASSET_MATERIALIZATION, Kind.ASSET_OBSERVATION, Kind.ASSET_MATERIALIZATION_PLANNED}
_EVENTS = SqlEventLogStorageTable
_STAYS = [kind.value for kind in ASSET_EVENTS | ASSET_CHECK_EVENTS | set(EVENT_TYPE_TO_PIPELINE_RUN_STATUS)]
_GOES = _EVENTS.c.dagster_event_type.is_(None) | _EVENTS.c.dagster_event_type.not_in(_STAYS)
"""What only the page of a run shows; the index by which assets, checks and runs are found has none of it."""
_log = logging.getLogger(__name__)


def batched_events(instance: dg.DagsterInstance) -> AbstractContextManager[None]:
    """Store the events of this block in batches; with a storage that has none, nothing changes.

    Events keep their order, and this thread sees its own at once; everybody else at the latest with the first event a
    second later, or at the end of the block.
    """
    storage = instance.event_log_storage
    return storage.batched() if isinstance(storage, BatchedEvents) else nullcontext()


@dataclass(eq=False)
class _Entry:
    """An event on its way into the storage: `logged` is its id in the log of its run, 0 before it stands there."""

    event: dg.EventLogEntry
    row: Row = field(default_factory=dict)
    logged: int = 0
    indexed: bool = False


@dataclass
class _Batch:
    """What a thread holds back."""

    entries: list[_Entry] = field(default_factory=list)
    since: float = 0.0


class BatchedEvents(SqlEventLogStorage):
    """Mixin of an event log storage: two commits for many events, where Dagster commits several times for each.

    As in Dagster's own storage the log of the run is committed first, and then what assets and checks are looked up by;
    each whole or not at all. What an exception interrupts is written all the same, at the end of `batched`. A worker
    that is killed loses at most the batch that it had not written; killed between the two commits, it leaves events in its
    run's log that no asset and no check shows.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        # By thread: only then does nobody wait for the lock of somebody who waits for the database.
        self._local = threading.local()
        # Set here, so that every process that opens the instance batches; in the environment it would have to be set for
        # daemon, webserver, code server and each command alike.
        os.environ.setdefault(BATCH_VARIABLE, str(_SIZE))
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    @contextmanager
    def batched(self) -> Iterator[None]:
        """Hold back the events of this thread until a batch is full, or a second old, or this thread reads."""
        if self._batch is not None:
            yield
            return
        batch = self._local.batch = _Batch()
        try:
            yield
        finally:
            self._local.batch = None
            self._finish(batch)

    def store_event(self, event: dg.EventLogEntry) -> None:
        """Store an event: at once, or inside `batched` together with those that follow."""
        batch, refused = self._batch, self._refused.pop(id(event), None)
        if refused is not None:
            self._store_alone(refused)
            return
        if batch is None or (event.is_dagster_event and not _fits(event)):
            self.flush()
            self._mark_for_retry(event)
            if not event.run_id and _kind(event) is Kind.ASSET_CHECK_EVALUATION and _fits(event):
                # Dagster itself stores one such result per partition, and refuses the second for ever.
                self._write([_Entry(event)])
            else:
                super().store_event(event)
            return
        if not batch.entries or batch.entries[0].event.run_id != event.run_id:
            self._flush(batch)
            batch.since = time.monotonic()
        batch.entries.append(_Entry(event))
        if len(batch.entries) >= _SIZE or time.monotonic() - batch.since >= _SECONDS:
            self._flush(batch)

    def _mark_for_retry(self, event: dg.EventLogEntry) -> None:
        """Of a run of a backfill that is going to be retried: mark it, then let it fail, and only then store the event.

        Dagster does it the other way round. A backfill that looks in between takes the failure for the last word and ends, and
        a run of a backfill that has ended is not retried (dagster-io/dagster#34204); and who retries runs by their events does
        not retry one that has not failed yet.
        """
        if _kind(event) is not Kind.RUN_FAILURE or not self.has_instance or not self._instance.run_retries_enabled:
            return
        run = self._instance.get_run_by_id(event.run_id)
        if run is None or BACKFILL_ID_TAG not in run.tags:
            return
        failure = event.get_dagster_event()
        data = failure.event_specific_data
        reason = data.failure_reason if isinstance(data, JobFailureData) else None
        if auto_reexecution_should_retry_run(self._instance, run.with_status(dg.DagsterRunStatus.FAILURE), reason):
            self._instance.add_run_tags(run.run_id, {WILL_RETRY_TAG: "true"})
            at = dt.datetime.fromtimestamp(event.timestamp, dt.UTC)
            self._instance.run_storage.handle_run_event(run.run_id, failure, at)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events together; should this raise, Dagster stores them one by one: only what is missing by then."""
        self.flush()
        self._refused.clear()
        if not all(_fits(event) and event.run_id == events[0].run_id for event in events):
            for event in events:
                super().store_event(event)
            return
        batch = _Batch([_Entry(event) for event in events])
        try:
            self._write(batch.entries)
        except Exception:
            # Each holds its event, so that no other can come by the same id.
            self._refused.update({id(entry.event): entry for entry in batch.entries})
            raise
        except BaseException:
            self._finish(batch)
            raise

    def flush(self) -> None:
        """Write what this thread holds back; to be called before anything else is read or written."""
        if self._batch is not None:
            self._flush(self._batch)

    def logged_runs(self) -> Sequence[str]:
        """The runs that have events which only the page of the run shows."""
        with self.index_connection() as connection:
            return connection.execute(select(_EVENTS.c.run_id).where(_GOES).distinct()).scalars().all()

    def delete_logs(self, runs: Sequence[str]) -> None:
        """Delete these events of runs that have ended; see `delete_old_logs`."""
        with self.index_connection() as connection:
            connection.execute(delete(_EVENTS).where(_EVENTS.c.run_id.in_(runs), _GOES))

    @property
    def _batch(self) -> _Batch | None:
        batch: _Batch | None = getattr(self._local, "batch", None)
        return batch

    @property
    def _refused(self) -> dict[int, _Entry]:
        """Events of the last batch that Dagster was told to store one by one, by the identity of the event."""
        refused: dict[int, _Entry] = self._local.__dict__.setdefault("refused", {})
        return refused

    def _finish(self, batch: _Batch) -> None:
        """Write a batch that nobody will flush again."""
        try:
            self._flush(batch)
        except Exception:
            raise
        except BaseException:
            # Dagster cancels a run by an exception in whatever is being done; what happened until then is still told.
            self._flush(batch)
            raise

    def _flush(self, batch: _Batch) -> None:
        held, batch.entries = batch.entries, []
        if not held:
            return
        try:
            self._store(held)
        except Exception:
            raise
        except BaseException:
            batch.entries = [entry for entry in held if not entry.indexed]
            raise

    def _store(self, entries: Sequence[_Entry]) -> None:
        """Write events together or, if that is refused, each as far as it is missing; raises the first error at the end."""
        try:
            self._write(entries)
        except Exception:  # noqa: BLE001 - whatever it is, Dagster's own way has the last word
            _log.warning("a batch of %d events was refused; storing them one by one", len(entries), exc_info=True)
        else:
            return
        errors = []
        for entry in entries:
            try:
                self._store_alone(entry)
            except Exception as error:  # noqa: BLE001 - one that cannot be stored must not take the rest with it
                errors.append(error)
            entry.indexed = True
        if errors:
            raise errors[0]

    def _write(self, entries: Sequence[_Entry]) -> None:
        """Write events of one run: first to the run's log, then to the index, each in one transaction."""
        new = [entry for entry in entries if not entry.logged]
        if new:
            self._log_together(new)
        to_index = [entry for entry in entries if entry.event.is_dagster_event]
        if to_index:
            with self.index_transaction() as connection:
                self._index(connection, to_index)
        for entry in entries:
            entry.indexed = True

    def _log_together(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            entry.row = self._event_to_row(entry.event)
        # Committed at once. In Postgres that is one statement: whoever reads on from the highest id that he saw would miss
        # ids that were taken before it but become visible later, and indexing takes long.
        with self.run_connection(entries[0].event.run_id) as connection:
            numbers = _insert(connection, entries)
        for entry, number in zip(entries, numbers, strict=True):
            entry.logged = number

    def _store_alone(self, entry: _Entry) -> None:
        """Dagster's own way, but without what is stored already."""
        event = entry.event
        if not entry.logged:
            super().store_event(event)
        elif event.is_dagster_event:
            with self.index_transaction() as connection:
                (number,) = self._numbers(connection, [entry])
                if _kind(event) in _ASSETS:
                    self._store_asset_event_tags(connection, [event], [number])
                    self._store_asset_event(connection, event, number)
            if _kind(event) in ASSET_CHECK_EVENTS:
                self.store_asset_check_event(event, number)

    def _numbers(self, connection: Connection, entries: Sequence[_Entry]) -> Sequence[int]:
        """The ids that everything else refers to; where each run has a log of its own, the index holds copies."""
        return _insert(connection, entries) if self.is_run_sharded else [entry.logged for entry in entries]

    def _index(self, connection: Connection, entries: Sequence[_Entry]) -> None:
        """Store what Dagster looks assets and checks up by."""
        numbers = self._numbers(connection, entries)
        stored = [(entry.event, entry.row, number) for entry, number in zip(entries, numbers, strict=True)]
        assets = [(event, number) for event, _, number in stored if _kind(event) in _ASSETS]
        if assets:
            self._store_asset_event_tags(connection, *map(list, zip(*assets, strict=True)))
        # An asset shows its newest event of each kind; writing the older ones first would only cost time.
        newest = {(event.get_dagster_event().asset_key, _kind(event)): (event, number) for event, number in assets}
        # By asset, as everywhere: two transactions that lock the same rows in different order would block each other.
        for _, (event, number) in sorted(newest.items(), key=lambda item: (str(item[0][0]), item[1][1])):
            self._store_asset_event(connection, event, number)
        planned = [
            r
            for found in stored
            if _kind(found[0]) is Kind.ASSET_CHECK_EVALUATION_PLANNED
            for r in planned_rows(*found)
        ]
        if planned:
            connection.execute(AssetCheckExecutionsTable.insert(), planned)
        evaluated = [evaluated_row(*found) for found in stored if _kind(found[0]) is Kind.ASSET_CHECK_EVALUATION]
        if evaluated:
            upsert(connection, evaluated)


def _insert(connection: Connection, entries: Sequence[_Entry]) -> Sequence[int]:
    table = SqlEventLogStorageTable
    insert = table.insert().returning(table.c.id, sort_by_parameter_order=True)
    # SQLAlchemy would cut a large batch into several statements.
    whole = {"insertmanyvalues_page_size": len(entries)}
    return connection.execute(insert, [entry.row for entry in entries], execution_options=whole).scalars().all()


def _kind(event: dg.EventLogEntry) -> Kind | None:
    return event.dagster_event_type


def _fits(event: dg.EventLogEntry) -> bool:
    """Whether a batch may hold it; what decides over runs and steps is always written at once."""
    kind = _kind(event)
    if kind is Kind.ASSET_CHECK_EVALUATION:
        # Without partition the index that the upsert needs does not tell two results apart.
        return event.get_dagster_event().asset_check_evaluation_data.partition is not None
    return kind in _ASSETS or kind is Kind.ASSET_CHECK_EVALUATION_PLANNED
