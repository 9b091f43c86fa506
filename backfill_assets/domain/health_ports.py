"""Ports of the doctor: the files of all tables, the folder of reports, and what the scheduler has been told."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from backfill_assets.core.release import StoredFile
from backfill_assets.delta.stored_tables import StoredTable
from backfill_assets.domain.health import RunAtWork


class StoredTables(Protocol):
    """All Delta tables of the warehouse, looked at as files: a log that no engine can open must not hide them."""

    def look(self) -> tuple[StoredTable, ...]:
        """Every table of raw, staging and published, and `data_releases`, by place."""
        ...

    def set_aside(self, place: str, version: int) -> None:
        """Move the newest commit of a table, with whatever belongs to it, out of its log; nothing is removed.

        `PreconditionError` if it is not the newest. One that is gone already is fine.
        """
        ...

    def set_aside_checkpoint(self, place: str, version: int) -> None:
        """Move the checkpoint of a version out of the log, if it cannot be read and the commits have all of it."""
        ...

    def remove(self, place: str, paths: Iterable[str]) -> None:
        """Remove files below a table's folder; one that is gone already is fine.

        `PreconditionError` or `LayoutError` if a path is a commit or leads elsewhere; nothing has been removed then.
        """
        ...


class WrittenReports(Protocol):
    """The folder of reports."""

    def units(self) -> tuple[str, ...]:
        """The units of which a report lies there."""
        ...

    def unfinished(self) -> tuple[StoredFile, ...]:
        """Files that a write has left unfinished, their paths relative to the folder."""
        ...

    def remove(self, paths: Iterable[str]) -> None:
        """Remove unfinished files; one that is gone already is fine. `PreconditionError` for any other file."""
        ...


class EventLog(Protocol):
    """What the scheduler knows of launches and releases."""

    def at_work(self) -> tuple[RunAtWork, ...]:
        """Runs that are started and not over, oldest first."""
        ...

    def known(self, launches: Collection[str]) -> frozenset[str]:
        """Those of the launches (ids of backfills or runs) that the scheduler still knows."""
        ...

    def fail(self, run: str, why: str) -> bool:
        """End a run as failed, or as canceled where that was asked for; false if it is over already, or nobody knows it."""
        ...

    def told(self, dataset: str) -> Mapping[dt.date, str]:
        """The release that the newest materialization of each published day names; empty text where it names none."""
        ...

    def tell(self, release: str, days: Collection[dt.date]) -> None:
        """Tell of some days of a release, as whoever released them would have."""
        ...

    def note(self, dataset: str, text: str) -> None:
        """Record a repair of a dataset's tables where its other events are."""
        ...
