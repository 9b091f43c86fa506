"""One database with two kinds of transactions: each read sees one moment, and writes never overlap."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    create_engine,
    event,
    false,
    make_url,
    select,
    text,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from backfill_assets.core.errors import LedgerError
from backfill_assets.system import Clock

__all__ = ["IntegrityError"]  # Dagster's storage raises it as well

BUSY_SECONDS: Final = 60
"""How many seconds a write waits for another one before it fails; no write takes more than a second or two."""

_ADVISORY_KEY: Final = 0x6261636B66696C6C
_WRITE: Final = "backfill_assets_write"
_RAW: Final = "backfill_assets_raw"


def parsed_url(url: str) -> URL:
    """Read a ledger URL.

    Raises:
        LedgerError: it cannot be read (the message never shows it), or is neither a SQLite file nor Postgres.
    """
    parsed = readable_url(url)
    if parsed is None:
        raise LedgerError(
            "BACKFILL_ASSETS_LEDGER_URL (not shown: it may hold a password) cannot be read; write "
            "sqlite:///<path> or postgresql+psycopg2://user:password@host/database, with special "
            "characters of the password percent-encoded"
        )
    backend = parsed.get_backend_name()
    if backend not in {"sqlite", "postgresql"}:
        raise LedgerError(f"the ledger does not run on {backend}; use sqlite:///<path> or postgresql+psycopg2://…")
    if backend == "sqlite" and (parsed.query or not parsed.database or parsed.database.startswith((":", "file:"))):
        raise LedgerError("the ledger needs a SQLite file that all processes can open; write sqlite:///<path>")
    return parsed


def readable_url(url: str) -> URL | None:
    """A database URL; None if it cannot be read, or an @ in its password is not encoded.

    Drivers quote such a URL, with parts of the password, in their errors.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            # Without this, SQLAlchemy looks for another driver than the one of the extra `postgres`.
            parsed = parsed.set(drivername="postgresql+psycopg2")
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError):
        return None
    return None if "@" in (parsed.host or "") else parsed


def shown(url: URL) -> str:
    """The part of a URL that messages may show: never user, password or options."""
    if url.get_backend_name() == "sqlite":
        return f"ledger {url.database}"
    port = f":{url.port}" if url.port else ""
    return f"ledger {url.database or 'postgres'} on {url.host or 'the local socket'}{port}"


class Database:
    """Transactions on the ledger's database; all its failures are raised as `LedgerError`."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.name = shown(url)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        try:
            self.engine = _engine(url)
        except ImportError as error:
            raise LedgerError(f"{self.name}: {error}; install backfill-assets[postgres]") from error
        self._reading = self.engine
        if not self.is_sqlite:
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            self._reading = self.engine.execution_options(**options)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction whose queries all see the database at one moment."""
        with self._explained(), self._reading.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that no other write overlaps: what it reads stays true until it commits.

        SQLite uses BEGIN IMMEDIATE; Postgres takes an advisory lock that ends with the transaction. One writer at
        a time is enough for control state, and makes the same code correct on both.
        """
        with self._explained(), self.engine.connect() as plain:
            connection = plain.execution_options(**{_WRITE: True})
            with connection.begin():
                if not self.is_sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_KEY})
                yield connection

    @contextmanager
    def raw(self) -> Iterator[Connection]:
        """A connection without a transaction, for statements that SQLite runs only outside of one."""
        with self._explained(), self.engine.connect() as plain:
            yield plain.execution_options(**{_RAW: True})

    def close(self) -> None:
        """Close all connections; the next transaction opens new ones."""
        self.engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise LedgerError(f"{self.name}: {self._cause(error)}; {_remedy(error)}") from error
        except PoolTimeoutError as error:
            raise LedgerError(
                f"{self.name}: no connection is free; too much waits for the database at the same time"
            ) from error

    def _cause(self, error: DBAPIError) -> str:
        cause = " ".join(str(error.orig).split())
        # We know no driver that quotes passwords; this protects against one that does.
        return cause.replace(self.url.password, "***") if self.url.password else cause


def upsert(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], replace: Collection[str] = ()
) -> None:
    """Insert rows in bulk; if a row exists (by primary key), replaces its columns in `replace`, or nothing."""
    if not rows:
        return
    statement: sqlite.Insert | postgresql.Insert
    statement = sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
    if replace:
        new = {column: statement.excluded[column] for column in replace}
        statement = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=new)
    else:
        statement = statement.on_conflict_do_nothing()
    connection.execute(statement, rows)


def span(column: Column[dt.date], days: Collection[dt.date]) -> ColumnElement[bool]:
    """Condition for the days from the first to the last of `days`; callers drop the days between that they do not want.

    A condition that lists 10,000 days exceeds the number of variables that databases allow.
    """
    return column.between(min(days), max(days)) if days else false()


def matching(table: Table, **values: object) -> ColumnElement[bool]:
    """Condition for the rows with these values; ignores values that are None."""
    return and_(true(), *(table.c[name] == value for name, value in values.items() if value is not None))


def read_meta(connection: Connection, table: Table, key: str) -> str | None:
    """A value of the meta table."""
    return connection.execute(select(table.c.value).where(table.c.key == key)).scalar_one_or_none()


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url, hide_parameters=True, pool_timeout=BUSY_SECONDS, connect_args={"timeout": BUSY_SECONDS}
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    # With more batches at a time than connections, each waits for one as long as for another write.
    more: dict[str, Any] = {"pool_timeout": BUSY_SECONDS}
    if url.get_driver_name() == "psycopg2":
        # By default, a bulk upsert makes one round trip per row.
        more["executemany_mode"] = "values_plus_batch"
    connect = {"connect_timeout": 10}
    engine = create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=connect, **more)
    event.listen(engine, "connect", _prepare_postgres)
    return engine


def _prepare_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    # None stops the driver from opening transactions itself: `_begin_sqlite` decides when and how.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    # A plain transaction that reads first and writes later fails if another one writes in between.
    options = connection.get_execution_options()
    if not options.get(_RAW, False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(_WRITE, False) else "BEGIN")


def _prepare_postgres(connection: Any, _: ConnectionPoolEntry) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
        # A worker that is stopped during a write must not block all others forever.
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{BUSY_SECONDS}s'")
    connection.commit()


def _remedy(error: DBAPIError) -> str:
    cause = str(error.orig).lower()
    if "locked" in cause or "lock timeout" in cause:
        return f"another process has been writing for {BUSY_SECONDS} s; find out which one hangs and end it"
    if "malformed" in cause or "not a database" in cause:
        return "the file is damaged or not a ledger; restore it from a backup"
    return "check that the database is up, reachable and writable, and that BACKFILL_ASSETS_LEDGER_URL is correct"


_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Host:
    """A machine: its readable name, and an id that survives renaming."""

    name: str
    id: str


def this_host() -> Host:
    """The machine of this process; without a machine id (containers), its name serves as the id."""
    name = socket.gethostname()
    try:
        machine = _MACHINE_ID.read_text().strip()
    except OSError:
        machine = ""
    # Hashed, because raw machine ids should not leave the machine.
    return Host(name, hashlib.sha256(f"backfill_assets:{machine or name}".encode()).hexdigest()[:16])


def worker_name() -> str:
    """The name of this process as a holder of leases and locks: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def process_here(worker: str) -> int | None:
    """The process id of a worker if it runs or ran on this host, otherwise None."""
    host, _, number = worker.rpartition(":")
    return int(number) if host == socket.gethostname() else None


@dataclass(frozen=True)
class LockPace:
    """How long a lease lasts without renewal, how often its holder renews it, and how often others check it."""

    lease: dt.timedelta = dt.timedelta(seconds=60)
    renew: dt.timedelta = dt.timedelta(seconds=15)
    poll: dt.timedelta = dt.timedelta(milliseconds=200)


DEFAULT_PACE: Final = LockPace()


class Rows:
    """A database, a clock, and the pace of locks."""

    def __init__(self, database: Database, clock: Clock, lock_pace: LockPace) -> None:
        self._database = database
        self._clock = clock
        self._lock_pace = lock_pace
