"""Opens the complete ledger: creates a missing one, migrates an old one, refuses a newer one."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, delete, text

from backfill_assets.campaign.state import NOTES, JournalEntry
from backfill_assets.core.errors import LedgerError
from backfill_assets.ledger.campaigns import CampaignRows, ProofRows
from backfill_assets.ledger.database import (
    BUSY_SECONDS,
    DEFAULT_PACE,
    Database,
    Host,
    LockPace,
    parsed_url,
    read_meta,
    this_host,
    upsert,
)
from backfill_assets.ledger.releases import ReleaseRows
from backfill_assets.ledger.schema import meta
from backfill_assets.ledger.units import UnitRows
from backfill_assets.ledger.work import WorkRows
from backfill_assets.system import Clock


class Ledger(UnitRows, WorkRows, ReleaseRows, CampaignRows, ProofRows):
    """The control state on SQLite or Postgres; every method is one transaction. `open_ledger` creates it."""

    @cached_property
    def id(self) -> str:
        """The id that it got when it was created; a copy from a backup has the same."""
        with self._database.read() as connection:
            return read_meta(connection, meta, _ID) or ""

    @property
    def warehouse(self) -> str:
        """The mark of the warehouse that it has taken; empty if it has none yet."""
        with self._database.read() as connection:
            return read_meta(connection, meta, WAREHOUSE) or ""

    @property
    def restoring(self) -> str:
        """The backup that it was filled from, as long as that restore has not ended; else empty."""
        with self._database.read() as connection:
            return read_meta(connection, meta, RESTORING) or ""

    def note_warehouse(self, mark: str) -> str:
        """Note which warehouse it has taken, unless it has one, and that no restore goes on; returns the mark that counts."""
        with self._database.read() as connection:
            own = read_meta(connection, meta, WAREHOUSE)
            if own and read_meta(connection, meta, RESTORING) is None:
                return own
        with self._database.write() as connection:
            own = read_meta(connection, meta, WAREHOUSE) or mark
            upsert(connection, meta, [{"key": WAREHOUSE, "value": own}])
            connection.execute(delete(meta).where(meta.c.key == RESTORING))
        return own

    @property
    def name(self) -> str:
        """Its database for messages, without user and password."""
        return self._database.name

    @contextmanager
    def frozen(self) -> Iterator[Connection]:
        """The whole ledger at the moment of entry, for `copies.save`, whatever others write meanwhile."""
        with self._database.read() as connection:
            if not self._database.is_sqlite:
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            read_meta(connection, meta, _ID)  # both databases take the moment of the first query
            yield connection

    def close(self) -> None:
        """Close the database connections; the next use of the ledger opens new ones."""
        self._database.close()


_ID: Final = "id"
WAREHOUSE: Final = "warehouse"
"""The key in `meta` of the mark of the warehouse that the ledger has taken."""
RESTORING: Final = "restoring"
"""The key in `meta` of the backup that the ledger was filled from, until that restore has ended."""
MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Alembic keeps the running migration in module globals, so each process can run only one at a time.
_ALEMBIC: Final = threading.Lock()


def open_ledger(url: str, clock: Clock, host: Host | None = None, lock_pace: LockPace = DEFAULT_PACE) -> Ledger:
    """Open the ledger at a SQLAlchemy URL; creates a missing one, migrates an older one.

    `host` is this machine by default. One ledger object serves all threads of a process; a forked child
    opens its own.

    Raises:
        LedgerError: the ledger cannot be reached, is newer than this code, or is a SQLite file of another host.
    """
    database = prepared_database(url, host or this_host(), adopt=False)
    return Ledger(database, clock, lock_pace)


def adopt_host(url: str, host: Host | None = None) -> None:
    """Make this machine the host of a moved SQLite ledger; call it only if the old host no longer uses the ledger.

    Raises:
        LedgerError: the ledger cannot be opened.
    """
    prepared_database(url, host or this_host(), adopt=True).close()


def prepared_database(url: str, host: Host, *, adopt: bool) -> Database:
    """The database of a ledger, created or migrated; `adopt` makes `host` the host of a SQLite file of another one.

    Raises:
        LedgerError: see `open_ledger`.
    """
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
            if read_meta(connection, meta, _ID) is None:
                upsert(connection, meta, [{"key": _ID, "value": secrets.token_hex(8)}])
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _sole_opener(database: Database) -> Iterator[None]:
    """Postgres needs only the write lock; SQLite needs its folder, and a lock while it switches to WAL."""
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
            f"{database.name}: another process has held {lock} for {BUSY_SECONDS} s while opening the ledger; "
            "find out which one hangs and end it"
        ) from error
    except OSError as error:
        raise LedgerError(f"{database.name}: {error}; choose a writable folder") from error


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
            "put it on a local disk, or use Postgres (BACKFILL_ASSETS_LEDGER_URL)"
        )


def _refuse_other_host(database: Database, connection: Connection, host: Host) -> None:
    owner = read_meta(connection, meta, "host_id") if connection.dialect.has_table(connection, meta.name) else None
    if owner in (None, host.id):
        return
    name = read_meta(connection, meta, "host_name")
    raise LedgerError(
        f"{database.name} belongs to host {name!r}, and this is {host.name!r}: a SQLite ledger serves one "
        "host only. Let both use Postgres (BACKFILL_ASSETS_LEDGER_URL=postgresql+psycopg2://…), or, if the "
        f"file was moved here and {name!r} no longer uses it, take it over with "
        "backfill_assets.ledger.open.adopt_host(url)"
    )


def _remember(connection: Connection, host: Host) -> None:
    rows = [{"key": "host_id", "value": host.id}, {"key": "host_name", "value": host.name}]
    if any(read_meta(connection, meta, row["key"]) != row["value"] for row in rows):
        upsert(connection, meta, rows, replace=["value"])


def _migrate(database: Database, connection: Connection) -> None:
    if _is_newest(connection):
        return
    # Most processes find a ledger that needs no migration.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    with _ALEMBIC:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        scripts = ScriptDirectory.from_config(config)
        found = MigrationContext.configure(connection).get_current_revision()
        if found not in {None, *(script.revision for script in scripts.walk_revisions())}:
            raise LedgerError(
                f"{database.name} is at revision {found}, which this version of backfill_assets does not know: "
                "a newer version has migrated it. Upgrade backfill_assets, or use another ledger"
            )
        command.upgrade(config, "head")


def _is_newest(connection: Connection) -> bool:
    """Whether the ledger is at the newest revision: the name of each migration begins with its revision, and they are in order."""
    newest = max(path.name for path in (MIGRATIONS / "versions").glob("[0-9]*.py")).partition("_")[0]
    if not connection.dialect.has_table(connection, "alembic_version"):
        return False
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [newest]


class LedgerLogin:
    """The identity that Postgres verifies: the role that this process uses to log in to the ledger.

    Raises:
        LedgerError: the ledger is a SQLite file, or its URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(parsed_url(url))
        if self._database.is_sqlite:
            raise LedgerError(
                f"{self._database.name} is a file and has no logins; unset BACKFILL_ASSETS_IDENTITY, or use a ledger on "
                "Postgres (BACKFILL_ASSETS_LEDGER_URL)"
            )

    def name(self) -> str:
        """The name of the role; source: Postgres' `session_user`, which no SET ROLE changes.

        Raises:
            LedgerError: the ledger cannot be reached.
        """
        return self._name

    @cached_property
    def _name(self) -> str:
        try:
            with self._database.read() as connection:
                return str(connection.execute(text("SELECT session_user")).scalar_one())
        finally:
            self._database.close()


ASK_AGAIN: Final = dt.timedelta(minutes=1)
"""How long the clock counts on from a time of the database before it asks again."""

# Unlike CLOCK_MONOTONIC, it also counts while the machine sleeps; only Linux has it.
_COUNTER: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def ledger_clock(url: str, own: Clock) -> Clock:
    """The clock for all dates: that of Postgres for a ledger there, this host's `own` for a file, which only it opens.

    Raises:
        LedgerError: the URL cannot be read.
    """
    parsed = parsed_url(url)
    return own if parsed.get_backend_name() == "sqlite" else PostgresClock(parsed)


class PostgresClock:
    """The port `Clock` on Postgres; counts on between two queries, independent of the setting of this host's clock."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._last: tuple[dt.datetime, float] | None = None

    def now(self) -> dt.datetime:
        """The current time, aware, in UTC; counts on while the database is unreachable.

        Raises:
            LedgerError: the database has never been reached yet.
        """
        with self._lock:
            last = self._last
            if last is None or self._passed(last) >= ASK_AGAIN:
                last = self._last = self._asked_unless_away(last)
            return last[0] + self._passed(last)

    def _asked_unless_away(self, last: tuple[dt.datetime, float] | None) -> tuple[dt.datetime, float]:
        try:
            return self._asked(), time.clock_gettime(_COUNTER)
        except LedgerError:
            if last is None:
                raise
            # A failed query takes seconds: the counted time is the answer, so the next query is a minute later.
            passed = self._passed(last)
            return last[0] + passed, last[1] + passed.total_seconds()

    def _passed(self, last: tuple[dt.datetime, float]) -> dt.timedelta:
        return dt.timedelta(seconds=time.clock_gettime(_COUNTER) - last[1])

    def _asked(self) -> dt.datetime:
        # Its own connection, closed immediately: a process that is forked later must not share it.
        database = Database(self._url)
        try:
            with database.read() as connection:
                found: dt.datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        finally:
            database.close()
        return found.astimezone(dt.UTC)


def last_step(ledger: Ledger, campaign_id: str) -> JournalEntry | None:
    """The newest journal entry that explains the campaign's phase; skips notes about waits, knobs and notices.

    Raises:
        CampaignError: there is no such campaign.
    """
    return next((entry for entry in reversed(ledger.journal(campaign_id)) if entry.action not in NOTES), None)
