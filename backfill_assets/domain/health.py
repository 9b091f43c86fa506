"""Health: what does not agree with what, how bad that is, and what may be done about it without asking anybody."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from backfill_assets.core.release import StoredFile


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
class DamagedCommit:
    """A commit that cannot be what was written: `fault` says what is wrong with the file."""

    version: int
    fault: str


@dataclass(frozen=True)
class LostFile:
    """A data file of the newest version that is not on disk with its size in bytes; `found` is -1 where there is none."""

    path: str
    size: int
    found: int


@dataclass(frozen=True)
class StoredTable:
    """A Delta table as its files lie on disk, whatever its log can still be used for.

    `place` is its folder, relative to the warehouse; `layer` and `dataset` say whose it is. `version` is that of the
    newest commit file, -1 without any; `gaps` are versions that lack between others; `fault` says why the newest version
    cannot be read. `lost` are files of that version (of published tables none are named here), `rows` counts the rows of raw
    by delivery day, as the newest undamaged version has them. `temporary` are files that some write has left unfinished,
    `orphans` data files that no commit names; `manifests` are the releases whose manifest beside the table cannot be read;
    `set_aside` are versions that a repair has taken out of the log; `torn_checkpoints` those of which the checkpoint cannot be
    read and is not needed.
    """

    place: str
    layer: str
    dataset: str
    version: int = -1
    written_at: dt.datetime | None = None
    damaged: tuple[DamagedCommit, ...] = ()
    gaps: tuple[int, ...] = ()
    fault: str = ""
    lost: tuple[LostFile, ...] = ()
    rows: Mapping[dt.date, int] = field(default_factory=dict)
    temporary: tuple[StoredFile, ...] = ()
    orphans: tuple[StoredFile, ...] = ()
    manifests: tuple[str, ...] = ()
    set_aside: tuple[int, ...] = ()
    torn_checkpoints: tuple[int, ...] = ()

    @property
    def readable(self) -> bool:
        """Whether what its log says can be compared with anything."""
        return not (self.damaged or self.gaps or self.fault)


@dataclass(frozen=True)
class RunAtWork:
    """A run that the scheduler shows as started and not over; `unit` is what its tag names, empty without one.

    `ended_process` is the number of its process, if that was one of this host and is gone without a word.
    """

    id: str
    started_at: dt.datetime
    unit: str = ""
    ended_process: int | None = None
