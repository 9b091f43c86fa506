"""The ledger, whole, and opened: creates what is missing, migrates what is old, refuses what is newer."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, text

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
    """The control state on SQLite or Postgres; every method is one transaction. Made by `open_ledger`."""

    def close(self) -> None:
        """Close the database connections; the ledger opens new ones when it is used again."""
        self._database.close()


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
    owner = read_meta(connection, meta, "host_id") if connection.dialect.has_table(connection, meta.name) else None
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


class LedgerLogin:
    """The identity that Postgres has verified: the role with which this process logs in to the ledger.

    Raises:
        LedgerError: the ledger is a SQLite file, or its URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(parsed_url(url))
        if self._database.is_sqlite:
            raise LedgerError(
                f"{self._database.name} is a file and has no logins; unset BACKFILL_ASSETS_IDENTITY, or use a ledger on "
                "Postgres by BACKFILL_ASSETS_LEDGER_URL"
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
"""How long a time of the database is counted on from, before it is asked again."""

# Goes on while a machine sleeps, unlike the plain one; only Linux has it.
_COUNTER: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def ledger_clock(url: str, own: Clock) -> Clock:
    """The clock to date everything by: Postgres' for a ledger there, this host's `own` for a file, which no other host opens.

    Raises:
        LedgerError: the URL cannot be read.
    """
    parsed = parsed_url(url)
    return own if parsed.get_backend_name() == "sqlite" else PostgresClock(parsed)


class PostgresClock:
    """The port `Clock` on Postgres; between two questions the time is counted on, whatever this host's clock is set to."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._told: tuple[dt.datetime, float] | None = None

    def now(self) -> dt.datetime:
        """The present moment, aware, in UTC; counted on while the database is away.

        Raises:
            LedgerError: the database could not be reached yet.
        """
        with self._lock:
            told = self._told
            if told is None or self._passed(told) >= ASK_AGAIN:
                told = self._told = self._asked_unless_away(told)
            return told[0] + self._passed(told)

    def _asked_unless_away(self, told: tuple[dt.datetime, float] | None) -> tuple[dt.datetime, float]:
        try:
            return self._asked(), time.clock_gettime(_COUNTER)
        except LedgerError:
            if told is None:
                raise
            # A failed question takes seconds. The counted time counts as an answer, so nobody asks again for a minute.
            passed = self._passed(told)
            return told[0] + passed, told[1] + passed.total_seconds()

    def _passed(self, told: tuple[dt.datetime, float]) -> dt.timedelta:
        return dt.timedelta(seconds=time.clock_gettime(_COUNTER) - told[1])

    def _asked(self) -> dt.datetime:
        # A connection of its own, closed at once: a process that is forked later must not share it.
        database = Database(self._url)
        try:
            with database.read() as connection:
                found: dt.datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        finally:
            database.close()
        return found.astimezone(dt.UTC)


def last_step(ledger: Ledger, campaign_id: str) -> JournalEntry | None:
    """The newest entry that has brought the campaign on; notes about waits, knobs and notices explain no phase.

    Raises:
        CampaignError: there is no such campaign.
    """
    return next((entry for entry in reversed(ledger.journal(campaign_id)) if entry.action not in NOTES), None)
