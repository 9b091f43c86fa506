"""Findings: what does not agree, how bad it is, and which repairs are safe without asking."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol


class FindingSeverity(StrEnum):
    """How bad a finding is."""

    error = "error"
    warning = "warning"
    info = "info"


class RepairKind(StrEnum):
    """What a repair may do, in the order of execution; each is safe to repeat and loses nothing."""

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
    report = "reports the release to Dagster"


RECONCILE: Final = "run: backfill reconcile"
RESTORE_FOLDER: Final = "restore the folder from a backup"
RESTORE_MANIFESTS: Final = "restore _releases/ from a backup"
RESTORE_LEDGER: Final = "backfill reconcile, or restore the ledger from a backup"
LEDGER_ALTERED: Final = "the ledger was altered: restore it from a backup, or find out who writes to it"


@dataclass(frozen=True)
class Repair:
    """A safe repair. `subject` is what it repairs: a release, an attempt's number, a run, a lock or a folder.

    `paths` are files below that folder; `dataset` and `unit` say where the repair is recorded, empty if it concerns none.
    """

    kind: RepairKind
    subject: str = ""
    dataset: str = ""
    unit: str = ""
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What it does, for people."""
        return self.kind.value

    @property
    def locked(self) -> tuple[str, ...]:
        """The dataset that is locked against releases meanwhile; empty if the published table is not touched."""
        touches = self.subject.startswith("published/") or self.kind in {
            RepairKind.manifest,
            RepairKind.commit,
            RepairKind.seal,
        }
        return (self.dataset,) if touches else ()


@dataclass(frozen=True)
class Finding:
    """One problem, its repair if a safe one exists, and what a person can do otherwise."""

    severity: FindingSeverity
    what: str
    remedy: str
    repair: Repair | None = None

    @classmethod
    def error(cls, what: str, remedy: str, repair: Repair | None = None) -> Finding:
        """A finding that makes `backfill doctor` fail."""
        return cls(FindingSeverity.error, what, remedy, repair)

    @classmethod
    def warning(cls, what: str, remedy: str, repair: Repair | None = None) -> Finding:
        """A finding that needs attention, but does not make `backfill doctor` fail."""
        return cls(FindingSeverity.warning, what, remedy, repair)

    @classmethod
    def info(cls, what: str, remedy: str, repair: Repair | None = None) -> Finding:
        """A finding for information: nothing is wrong yet, or only something is left over."""
        return cls(FindingSeverity.info, what, remedy, repair)

    def __str__(self) -> str:
        """One line for people."""
        automatic = f"--repair {self.repair}, or " if self.repair else ""
        return f"{self.severity.value}: {self.what}; {automatic}{self.remedy}"


@dataclass(frozen=True)
class RepairResult:
    """The result of a repair; `problem` says why it failed, and is empty if it succeeded."""

    repair: Repair
    what: str
    problem: str = ""

    def __str__(self) -> str:
        """One line for people."""
        return f"not repaired: {self.what}: {self.problem}" if self.problem else f"{self.what}: {self.repair}"


@dataclass(frozen=True)
class RunAtWork:
    """A run that the scheduler shows as started and not finished; `unit` is the unit in its tag, empty without one.

    `ended_process` is the number of its process if it ran on this host and has ended without reporting.
    """

    id: str
    started_at: dt.datetime
    unit: str = ""
    ended_process: int | None = None


class EventLog(Protocol):
    """What the scheduler knows of launches and releases."""

    def at_work(self) -> tuple[RunAtWork, ...]:
        """Runs that are started and not finished, oldest first."""
        ...

    def known(self, launches: Collection[str]) -> frozenset[str]:
        """The launches (ids of backfills or runs) among these that the scheduler still knows."""
        ...

    def fail(self, run: str, why: str) -> bool:
        """End a run as failed, or as canceled if that was requested; false if it is finished or unknown."""
        ...

    def reported(self, dataset: str) -> Mapping[dt.date, str]:
        """The release that the newest materialization of each published day names; empty if it names none."""
        ...

    def report(self, release: str, days: Collection[dt.date]) -> None:
        """Report some days of a release, like the release itself does."""
        ...

    def note(self, dataset: str, text: str) -> None:
        """Record a repair of a dataset's tables among its other events."""
        ...
