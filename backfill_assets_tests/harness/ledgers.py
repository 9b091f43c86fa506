"""Empty ledgers: the migrations run once for each process and Postgres cluster, and what they made is copied."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from backfill_assets.ledger.database import DEFAULT_PACE, LockPace
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets.system import Clock, SystemClock

_TEMPLATE = "empty_ledger"


@dataclass
class Known:
    """The port `Owner`: a ledger of which only this is known."""

    id: str
    name: str
    releases: bool = False
    warehouse: str = ""
    restoring: str = ""

    def note_warehouse(self, mark: str) -> str:
        self.restoring = ""
        self.warehouse = self.warehouse or mark
        return self.warehouse

    def knows_releases(self) -> bool:
        return self.releases


def opened_ledger(url: str, clock: Clock, lock_pace: LockPace = DEFAULT_PACE) -> Ledger:
    """Open a ledger; a SQLite file that does not exist yet begins as a copy of an empty one."""
    path = make_url(url).database
    if url.startswith("sqlite:") and path is not None:
        copy_empty_ledger(Path(path))
    return open_ledger(url, clock, lock_pace=lock_pace)


def copy_empty_ledger(path: Path) -> None:
    """Put an empty ledger at this path, unless something is there already; any number of processes may do so at once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = shutil.copyfile(_empty_file(), Path(folder) / path.name)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(whole)  # complete from its first moment, and never over a ledger in use


@functools.cache
def _empty_file() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="empty-ledger-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "ledger.db"
    open_ledger(f"sqlite:///{path}", SystemClock()).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # The host that opens a copy first owns it, as it owns a new ledger.
        connection.execute("DELETE FROM meta")
        connection.commit()
    assert [left.name for left in folder.glob("ledger.db-*")] == [], (
        "the copy would lack what is in the write-ahead log"
    )
    return path


def new_database(cluster: str, name: str, template: str = "template1") -> str:
    """Create a database on a Postgres cluster from a template, by default without any table; returns its URL."""
    _administer(cluster, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return make_url(cluster).set(database=name).render_as_string(hide_password=False)


def empty_postgres_ledger(cluster: str, name: str) -> str:
    """Create a database that is an empty ledger; returns its URL."""
    _make_template(cluster)
    return new_database(cluster, name, _TEMPLATE)


def drop_database(cluster: str, name: str) -> None:
    """Remove a database, even if it still has connections."""
    _administer(cluster, f"DROP DATABASE {name} WITH (FORCE)")


@functools.cache
def _make_template(cluster: str) -> None:
    open_ledger(new_database(cluster, _TEMPLATE), SystemClock()).close()


def _administer(cluster: str, statement: str) -> None:
    engine = create_engine(cluster, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
