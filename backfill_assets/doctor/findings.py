"""What does not agree with what, how bad that is, and what may be done about it without asking."""

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
    report = "tells Dagster of the release"


RECONCILE: Final = "run: backfill reconcile"
RESTORE_FOLDER: Final = "restore the folder from a backup"
RESTORE_MANIFESTS: Final = "restore _releases/ from a backup"
RESTORE_LEDGER: Final = "backfill reconcile, or restore the ledger from a backup"
LEDGER_ALTERED: Final = "the ledger was altered: restore it from a backup, or find out who writes to it"


@dataclass(frozen=True)
class Repair:
    """A repair that is safe. `subject` is what it is done to: a release, an attempt's number, a run, a lock or a folder.

    `paths` are files below that folder; `dataset` and `unit` say where it is recorded, and are empty where it concerns none.
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
        """The dataset that nobody may release while it is done; none where it does not touch the published table."""
        touches = self.subject.startswith("published/") or self.kind in {
            RepairKind.manifest,
            RepairKind.commit,
            RepairKind.seal,
        }
        return (self.dataset,) if touches else ()


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be: what a repair does about it, if it may, and what a person does otherwise."""

    severity: FindingSeverity
    what: str
    remedy: str
    repair: Repair | None = None

    def __str__(self) -> str:
        """One line for people."""
        automatic = f"--repair {self.repair}, or " if self.repair else ""
        return f"{self.severity.value}: {self.what}; {automatic}{self.remedy}"


@dataclass(frozen=True)
class RepairResult:
    """What a repair did; `problem` says why it did not, and is empty where it did."""

    repair: Repair
    what: str
    problem: str = ""

    def __str__(self) -> str:
        """One line for people."""
        return f"not repaired: {self.what}: {self.problem}" if self.problem else f"{self.what}: {self.repair}"


@dataclass(frozen=True)
class RunAtWork:
    """A run that the scheduler shows as started and not over; `unit` is what its tag names, empty without one.

    `ended_process` is the number of its process, if that was one of this host and is gone without a word.
    """

    id: str
    started_at: dt.datetime
    unit: str = ""
    ended_process: int | None = None


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

    def reported(self, dataset: str) -> Mapping[dt.date, str]:
        """The release that the newest materialization of each published day names; empty text where it names none."""
        ...

    def report(self, release: str, days: Collection[dt.date]) -> None:
        """Tell of some days of a release, as whoever released them would have."""
        ...

    def note(self, dataset: str, text: str) -> None:
        """Record a repair of a dataset's tables where its other events are."""
        ...
