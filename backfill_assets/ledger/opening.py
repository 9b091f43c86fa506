"""Opening a ledger: create what is missing, migrate what is old, refuse what is newer or another host's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock, Timeout
from sqlalchemy import Connection

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.ports import Clock
from backfill_assets.ledger.database import BUSY_SECONDS, Database, has_table, parsed_url, read_meta, upsert
from backfill_assets.ledger.host import Host, this_host
from backfill_assets.ledger.locks import DEFAULT_PACE, LockPace
from backfill_assets.ledger.schema import meta
from backfill_assets.ledger.sql_ledger import Ledger

MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Alembic keeps the migration that is running in module globals: one at a time in each process.
_ALEMBIC: Final = threading.Lock()


def open_ledger(url: str, clock: Clock, host: Host | None = None, lock_pace: LockPace = DEFAULT_PACE) -> Ledger:
    """Open the ledger at a SQLAlchemy URL; creates a fresh one, migrates an older one.

    `host` is this machine unless given. One ledger object serves all threads of a process; a forked child
    opens its own.

    Raises:
        LedgerError: the ledger cannot be reached, is newer than this code, or a SQLite file of another host.
    """
    database = _prepared(url, host or this_host(), adopt=False)
    return Ledger(database, clock, lock_pace)


def adopt_host(url: str, host: Host | None = None) -> None:
    """Make a SQLite ledger that was moved here this machine's own; only when the old host no longer uses it.

    Raises:
        LedgerError: the ledger cannot be opened.
    """
    _prepared(url, host or this_host(), adopt=True).close()


def _prepared(url: str, host: Host, *, adopt: bool) -> Database:
    parsed = parsed_url(url)
    if parsed.get_backend_name() == "sqlite":
        parsed = parsed.set(database=str(Path(parsed.database or "").absolute()))
    database = Database(parsed)
    try:
        with _sole_opener(database), database.write() as connection:
            if database.is_sqlite and not adopt:
                _refuse_other_host(database, connection, host)
            _migrate(database, connection)
            if database.is_sqlite:
                _remember(connection, host)
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _sole_opener(database: Database) -> Iterator[None]:
    """Postgres needs only the write lock; SQLite needs its folder, and a lock while it turns to WAL."""
    if not database.is_sqlite:
        yield
        return
    path = Path(database.url.database or "")
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=BUSY_SECONDS):
            _use_wal(database)
            yield
    except Timeout as error:
        raise LedgerError(
            f"{database.name}: another process has held {lock} for {BUSY_SECONDS} s while opening it; "
            "find out which one hangs and end it"
        ) from error
    except OSError as error:
        raise LedgerError(f"{database.name}: {error}; choose a folder that can be written to") from error


def _use_wal(database: Database) -> None:
    with database.read() as connection:
        wal = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    if wal:
        return
    with database.raw() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
    if mode != "wal":
        raise LedgerError(
            f"{database.name}: SQLite cannot use its write-ahead log there (mode {mode}); "
            "put it on a local disk, or use Postgres by BACKFILL_ASSETS_LEDGER_URL"
        )


def _refuse_other_host(database: Database, connection: Connection, host: Host) -> None:
    owner = read_meta(connection, meta, "host_id") if has_table(connection, meta.name) else None
    if owner in (None, host.id):
        return
    name = read_meta(connection, meta, "host_name")
    raise LedgerError(
        f"{database.name} belongs to host {name!r}, and this is {host.name!r}: a SQLite ledger serves one "
        "host only. Let both use Postgres (BACKFILL_ASSETS_LEDGER_URL=postgresql+psycopg2://…), or, if it "
        f"was moved here and {name!r} no longer uses it, take it over with "
        "backfill_assets.ledger.adopt_host(url)"
    )


def _remember(connection: Connection, host: Host) -> None:
    rows = [{"key": "host_id", "value": host.id}, {"key": "host_name", "value": host.name}]
    if any(read_meta(connection, meta, row["key"]) != row["value"] for row in rows):
        upsert(connection, meta, rows, replace=["value"])


def _migrate(database: Database, connection: Connection) -> None:
    with _ALEMBIC:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        scripts = ScriptDirectory.from_config(config)
        found = MigrationContext.configure(connection).get_current_revision()
        if found == scripts.get_current_head():
            return
        if found not in {None, *(script.revision for script in scripts.walk_revisions())}:
            raise LedgerError(
                f"{database.name} is at revision {found}, which this backfill_assets does not know: "
                "a newer one has migrated it. Upgrade backfill_assets, or use another ledger"
            )
        command.upgrade(config, "head")
