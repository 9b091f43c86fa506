"""Copies a whole ledger: into a file, for a backup, and from such a file into an empty database of either kind."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Table, delete, func, insert, select, text, true, update

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.text import number_of
from backfill_assets.ledger.database import Database, read_meta, this_host
from backfill_assets.ledger.open import RESTORING, WAREHOUSE, prepared_database
from backfill_assets.ledger.schema import attempts, drivers, locks, meta, metadata, staged_days
from backfill_assets.ledger.units import lose_attempts

_ID: Final = "id"
_FILLED_FROM: Final = "filled_from"
_REPLACED: Final = "replaced"
_OF_A_RESTORE: Final = (WAREHOUSE, _FILLED_FROM, RESTORING, _REPLACED)
_OWN: Final = (_ID, "host_id", "host_name", *_OF_A_RESTORE)
"""Keys of `meta` that say which ledger this is and where, and not what it knows."""
_PAGE: Final = 1000
"""How many rows are read and written at a time."""
# An approval names releases and entries that it comes after, and both databases refuse one whose are not there yet.
_ORDERED: Final = sorted(metadata.sorted_tables, key=lambda table: table.name.startswith("approval"))
_OF_THE_MOMENT: Final = frozenset({drivers.name, locks.name})
"""Tables of what is being done right now; a ledger with nothing else is empty."""
_NOT_RESTORED: Final = frozenset({drivers.name, staged_days.name})
"""Who writes now, and which files of staging hold which days: staging is not in a backup, and is built again from raw."""


def save(frozen: Connection, file: Path) -> None:
    """Write all of a ledger, as `Ledger.frozen` shows it, to a new SQLite file.

    Raises:
        LedgerError: the file cannot be written.
    """
    database = _opened(file)
    try:
        with database.write() as target:
            for table in _ORDERED:
                _copy(frozen, target, table)
        _in_one_file(database)
    finally:
        database.close()


@dataclass(frozen=True)
class TargetLedger:
    """A ledger that a backup is restored into: its id, and its place for messages.

    `filled_from` is the backup that it was filled from, `warehouse` the mark of its warehouse, `restoring` the backup whose
    restore filled it and has not ended, and `replaced` the id of the ledger that it was restored instead of; each may be empty.
    """

    id: str
    name: str
    filled_from: str
    warehouse: str
    restoring: str = ""
    replaced: str = ""


def migrated(file: Path) -> None:
    """Bring a saved ledger to the present schema.

    Raises:
        LedgerError: it is none, or a newer version of this project wrote it.
    """
    _opened(file).close()


def require_empty(url: str, backup: str) -> TargetLedger:
    """The ledger at a SQLAlchemy URL, which is created if it is missing; it knows nothing, or has all of this backup already.

    Raises:
        LedgerError: it has other rows, or it cannot be opened.
    """
    database = prepared_database(url, this_host(), adopt=False)
    try:
        with database.read() as connection:
            found = read_meta(connection, meta, _FILLED_FROM) or ""
            if found != backup:
                _require_empty(connection, database)
            own, *others = (read_meta(connection, meta, key) or "" for key in (_ID, WAREHOUSE, RESTORING, _REPLACED))
            return TargetLedger(own, database.name, found, *others)
    finally:
        database.close()


def restore(
    file: Path, url: str, backup: str, at: dt.datetime, last_attempt: int, warehouse: str, replaced: str
) -> None:
    """Write all that a file has into the empty ledger at a SQLAlchemy URL, in one transaction.

    The ledger keeps its own id, and gets the mark of the `warehouse` that is restored with it; until `Ledger.note_warehouse`, it
    counts as being restored. Locks are free afterwards, and keep their tokens. Attempts that were running are lost at the time
    `at` of the backup. New numbers follow the saved ones, and those of attempts also follow `last_attempt`. `replaced` is the id of
    the ledger that it is restored instead of; it may be empty.

    Raises:
        LedgerError: the ledger at the URL is not empty.
    """
    saved, database = _opened(file), prepared_database(url, this_host(), adopt=False)
    try:
        with saved.read() as source, database.write() as target:
            _require_empty(target, database)
            target.execute(delete(meta).where(meta.c.key.not_in(_OWN) | meta.c.key.in_(_OF_A_RESTORE)))
            target.execute(delete(locks))
            for table in _ORDERED:
                if table.name not in _NOT_RESTORED:
                    _copy(source, target, table)
            notes = {_FILLED_FROM: backup, WAREHOUSE: warehouse, RESTORING: backup, _REPLACED: replaced}
            target.execute(insert(meta), [{"key": key, "value": value} for key, value in notes.items()])
            target.execute(update(locks).values(until=None))
            lose_attempts(target, true(), at)
            _go_on_counting(target, last_attempt, sqlite=database.is_sqlite)
    finally:
        saved.close()
        database.close()


def _opened(file: Path) -> Database:
    return prepared_database(f"sqlite:///{file}", this_host(), adopt=True)


def _copy(source: Connection, target: Connection, table: Table) -> None:
    query = select(table)
    if table is meta:
        query = query.where(meta.c.key.not_in(_OWN))
    found = source.execute(query, execution_options={"yield_per": _PAGE}).mappings()
    for page in found.partitions():
        target.execute(insert(table), [dict(row) for row in page])


def _require_empty(connection: Connection, database: Database) -> None:
    for table in metadata.sorted_tables:
        if table is meta or table.name in _OF_THE_MOMENT:
            continue
        if rows := connection.execute(select(func.count()).select_from(table)).scalar_one():
            if half := read_meta(connection, meta, RESTORING):
                raise LedgerError(
                    f"{database.name} was being filled from backup {half}: repeat it with --backup {half}"
                )
            raise LedgerError(
                f"{database.name} is not empty: its table {table.name} has {number_of(rows, 'row')}, and a backup is restored into "
                "an empty ledger only. Name another one (BACKFILL_ASSETS_LEDGER_URL), or move this one away"
            )


def _in_one_file(database: Database) -> None:
    """Leave no part of a SQLite file in its write-ahead log."""
    database.close()  # no other connection may have it open
    with database.raw() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = DELETE")


def _go_on_counting(target: Connection, last_attempt: int, *, sqlite: bool) -> None:
    """Let new rows be numbered after the copied ones, and attempts also after those whose shadows are there."""
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        if column is None:
            continue
        last = target.execute(select(func.max(column))).scalar_one() or 0
        last = max(last, last_attempt) if table is attempts else last
        if sqlite and table is attempts:
            target.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table.name})
            target.execute(
                text("INSERT INTO sqlite_sequence VALUES (:name, :last)"), {"name": table.name, "last": last}
            )
        elif last and not sqlite:
            sequence = text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)")
            target.execute(sequence, {"table": table.name, "column": column.name, "last": last})
