"""Many events in one transaction, for every SQL event log of Dagster."""

from __future__ import annotations

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
from dagster._core.events import ASSET_EVENTS
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as Status
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects import postgresql, sqlite

BATCH_VARIABLE = "DAGSTER_EVENT_BATCH_SIZE"
"""Dagster's own switch: above 0 it hands materializations and planned events to the storage in batches of this size."""
_SIZE = 500
_SECONDS = 1.0
"""How long an event may stay unseen by other processes while a batch fills up."""
_ASSETS = ASSET_EVENTS & {Kind.ASSET_MATERIALIZATION, Kind.ASSET_OBSERVATION, Kind.ASSET_MATERIALIZATION_PLANNED}
_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_UNIQUE = ("asset_key", "check_name", "run_id", "partition")
_log = logging.getLogger("backfill_assets")
Row = dict[str, Any]


def batched_events(instance: dg.DagsterInstance) -> AbstractContextManager[None]:
    """Store the events of this block in batches; with a storage that has none, nothing changes.

    Events keep their order, and this thread sees its own at once; everybody else at the latest with the first event a
    second later, or at the end of the block.
    """
    storage = instance.event_log_storage
    return storage.batched() if isinstance(storage, BatchedEvents) else nullcontext()


@dataclass
class _Batch:
    """What a thread holds back."""

    events: list[dg.EventLogEntry] = field(default_factory=list)
    since: float = 0.0


class BatchedEvents(SqlEventLogStorage):
    """Mixin of an event log storage: one transaction for many events, where Dagster commits several times for each.

    A worker that is killed loses at most the batch that it had not written; a batch is written whole or not at all.
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
            self._flush(batch)

    def store_event(self, event: dg.EventLogEntry) -> None:
        """Store an event: at once, or inside `batched` together with those that follow."""
        batch = self._batch
        if batch is None or (event.is_dagster_event and not _fits(event)):
            self.flush()
            if not event.run_id and _kind(event) is Kind.ASSET_CHECK_EVALUATION and _fits(event):
                # Dagster itself stores one such result per partition, and refuses the second for ever.
                self._write([event])
            else:
                super().store_event(event)
            return
        if not batch.events or batch.events[0].run_id != event.run_id:
            self._flush(batch)
            batch.since = time.monotonic()
        batch.events.append(event)
        if len(batch.events) >= _SIZE or time.monotonic() - batch.since >= _SECONDS:
            self._flush(batch)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events together; should this raise, nothing is stored, and Dagster stores them one by one."""
        self.flush()
        if all(_fits(event) and event.run_id == events[0].run_id for event in events):
            self._write(events)
        else:
            for event in events:
                super().store_event(event)

    def flush(self) -> None:
        """Write what this thread holds back; to be called before anything else is read or written."""
        if self._batch is not None:
            self._flush(self._batch)

    @property
    def _batch(self) -> _Batch | None:
        batch: _Batch | None = getattr(self._local, "batch", None)
        return batch

    def _flush(self, batch: _Batch) -> None:
        held, batch.events = batch.events, []
        if not held:
            return
        try:
            self._write(held)
        except Exception:  # noqa: BLE001 - whatever it is, Dagster's own way has the last word
            _log.warning("a batch of %d events was refused; storing them one by one", len(held), exc_info=True)
            for event in held:
                super().store_event(event)

    def _write(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Write events of one run in one transaction, or not at all."""
        batch = [(event, self._event_to_row(event)) for event in events]
        if not self.is_run_sharded:
            with self.index_transaction() as connection:
                self._index(connection, batch)
            return
        # Neither is committed before both are complete, so a refused batch leaves nothing behind in either.
        with self.run_connection(events[0].run_id) as connection:
            connection.execute(SqlEventLogStorageTable.insert(), [row for _, row in batch])
            indexed = [(event, row) for event, row in batch if event.is_dagster_event]
            if indexed:
                with self.index_transaction() as index:
                    self._index(index, indexed)

    def _index(self, connection: Connection, batch: Sequence[tuple[dg.EventLogEntry, Row]]) -> None:
        """Insert events, and what Dagster looks assets and checks up by."""
        ids = connection.execute(
            SqlEventLogStorageTable.insert().returning(SqlEventLogStorageTable.c.id, sort_by_parameter_order=True),
            [row for _, row in batch],
        ).scalars()
        stored = [(event, row, number) for (event, row), number in zip(batch, ids, strict=True)]
        assets = [(event, number) for event, _, number in stored if _kind(event) in _ASSETS]
        if assets:
            self._store_asset_event_tags(connection, *map(list, zip(*assets, strict=True)))
        # An asset shows its newest event of each kind; writing the older ones first would only cost time.
        newest = {(event.get_dagster_event().asset_key, _kind(event)): (event, number) for event, number in assets}
        # By asset, as everywhere: two transactions that lock the same rows in different order would block each other.
        for _, (event, number) in sorted(newest.items(), key=lambda item: (str(item[0][0]), item[1][1])):
            self._store_asset_event(connection, event, number)
        planned = [
            r for e, row, n in stored if _kind(e) is Kind.ASSET_CHECK_EVALUATION_PLANNED for r in _planned(e, row, n)
        ]
        if planned:
            connection.execute(AssetCheckExecutionsTable.insert(), planned)
        evaluated = [_evaluated(e, row, n) for e, row, n in stored if _kind(e) is Kind.ASSET_CHECK_EVALUATION]
        if evaluated:
            _upsert(connection, evaluated)


def _kind(event: dg.EventLogEntry) -> Kind | None:
    return event.dagster_event_type


def _fits(event: dg.EventLogEntry) -> bool:
    """Whether a batch may hold it; what decides over runs and steps is always written at once."""
    kind = _kind(event)
    if kind is Kind.ASSET_CHECK_EVALUATION:
        # Without partition the index that the upsert needs does not tell two results apart.
        return event.get_dagster_event().asset_check_evaluation_data.partition is not None
    return kind in _ASSETS or kind is Kind.ASSET_CHECK_EVALUATION_PLANNED


def _planned(event: dg.EventLogEntry, row: Row, number: int) -> Iterator[Row]:
    data = event.get_dagster_event().asset_check_planned_data
    keys = data.partitions_subset.get_partition_keys() if data.partitions_subset else [None]
    for key in keys:
        yield _execution(row, number, key, Status.PLANNED) | {
            "asset_key": data.asset_key.to_string(),
            "check_name": data.check_name,
        }


def _evaluated(event: dg.EventLogEntry, row: Row, number: int) -> Row:
    data = event.get_dagster_event().asset_check_evaluation_data
    target = data.target_materialization_data
    return _execution(row, number, data.partition, Status.SUCCEEDED if data.passed else Status.FAILED) | {
        "asset_key": data.asset_key.to_string(),
        "check_name": data.check_name,
        "materialization_event_storage_id": target.storage_id if target else None,
    }


def _execution(row: Row, number: int, partition: str | None, status: Status) -> Row:
    return {
        "run_id": row["run_id"],
        "partition": partition,
        "execution_status": status.value,
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": number,
    }


def _upsert(connection: Connection, rows: Sequence[Row]) -> None:
    # One statement must not touch a row twice; the last result of a check is the one that counts.
    last = {tuple(row[name] for name in _UNIQUE): row for row in rows}
    runless = [{name: row[name] for name in _UNIQUE} for row in last.values() if not row["run_id"]]
    if runless:
        # Dagster takes the row with the highest id for the newest, so that a changed one would stay behind those of runs.
        same = [AssetCheckExecutionsTable.c[name] == bindparam(name) for name in _UNIQUE]
        connection.execute(AssetCheckExecutionsTable.delete().where(*same), runless)
    insert: Any = _INSERT[connection.dialect.name](AssetCheckExecutionsTable)
    changed = {name: insert.excluded[name] for name in rows[0] if name not in _UNIQUE}
    connection.execute(insert.on_conflict_do_update(index_elements=list(_UNIQUE), set_=changed), list(last.values()))
