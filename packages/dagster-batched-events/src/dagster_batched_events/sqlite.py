"""Dagster's SQLite storage with connections that stay open and events that are written in batches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from dagster._core.event_api import EventHandlerFn
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
    INDEX_SHARD_NAME,
    SqliteEventLogStorage,
    SqliteEventLogStorageWatchdog,
)
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from filelock import FileLock
from sqlalchemy import Connection, Engine, create_engine, event, text
from watchdog.events import FileSystemEvent
from watchdog.observers import Observer

from dagster_batched_events.batches import BatchedEvents

_CREATE_SECONDS = 120
_OPEN_RUNS = 16
"""Databases of runs (there is one per run) that stay open; a webserver that shows many runs closes the oldest."""


class BatchedSqliteEventLogStorage(BatchedEvents, SqliteEventLogStorage):
    """Dagster's SQLite event log, same files and tables, some thirty times faster.

    Opening and closing a database per statement costs Dagster most of its time: the last one to close it copies the
    write-ahead log back, syncs and deletes it.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._obs: Any = None  # Dagster declares it without a type
        self._open: OrderedDict[str, Engine] = OrderedDict()
        self._tables: set[str] = set()
        # Reentrant: who writes to the index asks meanwhile which tables it has.
        self._opening = threading.RLock()
        super().__init__(base_dir, inst_data)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedSqliteEventLogStorage:
        """The storage as configured in dagster.yaml."""
        return cls(config_value["base_dir"], inst_data)

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table."""
        if table_name in self._tables:
            return True
        with self.index_connection() as connection:
            if connection.dialect.has_table(connection, table_name):
                self._tables.add(table_name)
        return table_name in self._tables

    def watch(self, run_id: str, cursor: str | None, callback: EventHandlerFn) -> None:
        """Call back for each new event of a run."""
        if not self._obs:
            self._obs = Observer()
            self._obs.start()
        watchdog = _Watchdog(self, run_id, callback, cursor)
        self._watchers[run_id][callback] = (watchdog, self._obs.schedule(watchdog, self._base_dir, recursive=True))

    def wipe(self) -> None:
        """Remove all events of all runs."""
        self._close()
        super().wipe()

    def logged_runs(self) -> Sequence[str]:
        """The runs that have a database of their own."""
        return self.get_all_run_ids()

    def delete_logs(self, runs: Sequence[str]) -> None:
        """Delete the databases of runs that have ended: the index has copies of all that is looked up by asset, check or status."""
        with self._opening:
            for run in runs:
                self._forget(run)
                # The database last: as long as it is there, the run is found again.
                for part in ("-wal", "-shm", ""):
                    Path(f"{self.path_for_shard(run)}{part}").unlink(missing_ok=True)

    def dispose(self) -> None:
        """Close all connections."""
        super().dispose()
        self._close()

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        self.flush()
        with self._opening:
            if shard in self._initialized_dbs and not Path(self.path_for_shard(shard)).exists():
                self._forget(shard)  # another process has deleted the log of an old run
            engine = self._engine(shard)
            if shard not in self._initialized_dbs:
                if not _is_stamped(engine):
                    self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _engine(self, shard: str) -> Engine:
        if shard not in self._open:
            options = {"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}
            engine = create_engine(self.conn_string_for_shard(shard), connect_args=options, pool_size=1)
            event.listen(engine, "connect", _sync_at_checkpoints)
            self._open[shard] = engine
        self._open.move_to_end(shard)
        runs = [name for name in self._open if name != INDEX_SHARD_NAME]
        for name in runs[:-_OPEN_RUNS]:
            self._open.pop(name).dispose()
        return self._open[shard]

    def _forget(self, run: str) -> None:
        self._initialized_dbs.discard(run)
        if (engine := self._open.pop(run, None)) is not None:
            engine.dispose()

    def _close(self) -> None:
        with self._opening:
            while self._open:
                self._open.popitem()[1].dispose()


class BatchedSqliteStorage(DagsterSqliteStorage):
    """Dagster's SQLite storage with the batched event log; under `storage: custom:` in dagster.yaml."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        self._event_log_storage = BatchedSqliteEventLogStorage(
            self._event_log_storage._base_dir,  # noqa: SLF001 - only Dagster knows where it puts them
        )

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> BatchedSqliteStorage:
        """The storage as configured in dagster.yaml."""
        return cls.from_local(inst_data=inst_data, **config_value)

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Self:
        """The storage in a folder; one process at a time creates what is missing there.

        Two that create it at once, such as `dagster dev` and the first command beside it, can leave a database that Dagster
        refuses from then on: "more than one head present".
        """
        folder = Path(base_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "creating.lock", timeout=_CREATE_SECONDS):
            return super().from_local(base_dir, inst_data)


class _Watchdog(SqliteEventLogStorageWatchdog):
    # While a connection stays open, new events are in the write-ahead log only, and the database file does not change.
    @property
    def patterns(self) -> list[str]:
        return [self._log_path, f"{self._log_path}-wal"]

    def on_modified(self, event: FileSystemEvent) -> None:  # noqa: ARG002 - watchdog passes it
        self._process_log()


def _is_stamped(engine: Engine) -> bool:
    # All that `_initdb` would find out of a finished database; loading the migrations for it takes a tenth of a second.
    with engine.connect() as connection:
        known = connection.dialect.has_table(connection, "alembic_version")
        return known and connection.scalar(text("SELECT version_num FROM alembic_version")) is not None


def _sync_at_checkpoints(connection: Any, _record: object) -> None:
    # With a write-ahead log a power cut then costs the newest events, never the database. Evidence is in the ledger.
    connection.execute("PRAGMA synchronous=NORMAL")
