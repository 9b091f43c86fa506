"""What does not agree with what, how bad that is, and what may be done about it without asking."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from backfill_assets.core.release import StoredFile
from backfill_assets.delta.stored_tables import StoredTable


class Gravity(StrEnum):
    """How bad a finding is."""

    error = "error"
    warning = "warning"
    info = "info"


class Mend(StrEnum):
    """What a repair may do, in the order in which it does it; each may be done twice, and nothing is lost by any."""

    set_aside = "sets the commit aside below _set_aside/, so that the version before it is read again"
    checkpoint = "sets the checkpoint aside below _set_aside/: the commits have all that was in it"
    manifest = "writes the manifest again, as the ledger has it"
    commit = "commits the release again, as its manifest says"
    reconcile = "does what backfill reconcile does"
    attempt = "ends the attempt and fails its run, so that it can be launched again"
    run = "fails the run, so that it can be launched again"
    lock = "frees the lock"
    seal = "seals the shadow"
    files = "removes the files"
    stage = "has its days staged again by the next launch that needs them"
    tell = "tells Dagster of the release"


@dataclass(frozen=True)
class Cure:
    """A repair that is safe. `subject` is what it is done to: a release, an attempt's number, a run, a lock or a folder.

    `paths` are files below that folder; `dataset` and `unit` say where it is recorded, and are empty where it concerns none.
    """

    mend: Mend
    subject: str = ""
    dataset: str = ""
    unit: str = ""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be: what a repair does about it, if it may, and what a person does otherwise."""

    severity: Gravity
    what: str
    remedy: str
    cure: Cure | None = None

    @property
    def repair(self) -> str:
        """What `--repair` does about it; empty where a person has to decide."""
        return self.cure.mend.value if self.cure else ""

    def __str__(self) -> str:
        """One line for people."""
        mended = f"--repair {self.repair}, or " if self.cure else ""
        return f"{self.severity.value}: {self.what}; {mended}{self.remedy}"


@dataclass(frozen=True)
class Mended:
    """What a repair did; `fault` says why it did not, and is empty where it did."""

    cure: Cure
    what: str
    fault: str = ""

    def __str__(self) -> str:
        """One line for people."""
        return f"not mended: {self.what}: {self.fault}" if self.fault else f"{self.what}: {self.cure.mend.value}"


@dataclass(frozen=True)
class RunAtWork:
    """A run that the scheduler shows as started and not over; `unit` is what its tag names, empty without one.

    `ended_process` is the number of its process, if that was one of this host and is gone without a word.
    """

    id: str
    started_at: dt.datetime
    unit: str = ""
    ended_process: int | None = None


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
