"""Releases: which files one atomic commit adds to a published table and removes from it, and how long it can be undone."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import takewhile
from typing import Final

from backfill_assets.core.canonical import canonical_json, digest


@dataclass(frozen=True)
class DataFile:
    """One data file as its Delta log describes it.

    `path` is relative to the published table's folder; `size` is in bytes, `modified` in milliseconds since 1970;
    `stats` is the log's own JSON text, copied exactly (or empty for none).
    """

    path: str
    size: int
    day: dt.date
    modified: int
    stats: str = ""

    @property
    def identity(self) -> tuple[str, int, str]:
        """What the layout digest is made of: path, size, partition."""
        return (self.path, self.size, self.day.isoformat())

    @property
    def rows(self) -> int | None:
        """Number of rows in the statistics; None if they have none."""
        count = json.loads(self.stats).get("numRecords") if self.stats else None
        return count if isinstance(count, int) else None


SHADOW: Final = "_shadow"
"""The folder of a published table under which units build what they will release."""


def shadow_of(path: str) -> str:
    """The folder of the shadow that a published file was written to: `_shadow/<unit>/<attempt>`."""
    return "/".join(path.split("/")[:3])


def layout_digest(files: Iterable[DataFile]) -> str:
    """Digest of the sorted identities of files; equal exactly when the same files are there."""
    return digest(sorted(f.identity for f in files))


def identities(active: Mapping[dt.date, Iterable[DataFile]]) -> set[tuple[str, int, str]]:
    """What identifies each file of some days."""
    return {f.identity for found in active.values() for f in found}


class ReleaseKind(StrEnum):
    """What a release does; a baseline changes no file: it names those with which an adopted table begins."""

    publish = "publish"
    rollback = "rollback"
    baseline = "baseline"


class ReleaseState(StrEnum):
    """The state of a release: intended in the ledger, committed in the log, given up before, or of a table given back since."""

    intent = "intent"
    finalized = "finalized"
    abandoned = "abandoned"
    returned = "returned"


@dataclass(frozen=True)
class DaySwap:
    """What happens to one day: the files that are removed, the files that are added, and the evidence behind it."""

    day: dt.date
    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    evidence: str = ""


_LATER: Final = frozenset({"campaign", "approved_by", "source_range", "certificate"})
"""Fields that older manifests do not have: left out if they are empty, so that no old hash changes."""


@dataclass(frozen=True)
class Manifest:
    """One complete release of one dataset: enough to commit it, to recognise it in the Delta log, and to undo it.

    `campaign`, `approved_by` (names separated by commas) and `source_range` (`1995-01-01..1996-06-30`) are empty outside
    of campaigns; `certificate` names the one that the evidence passed, if any.
    """

    release: str
    kind: ReleaseKind
    dataset: str
    unit: str
    by: str
    created_at: dt.datetime
    evidence: str
    code_version: str
    days: tuple[DaySwap, ...]
    reason: str = ""
    undoes: str = ""
    campaign: str = ""
    approved_by: str = ""
    source_range: str = ""
    certificate: str = ""

    @property
    def hash(self) -> str:
        """Digest that the commit carries, so that a forged or damaged manifest on disk is noticed."""
        return digest(self._stored())

    @property
    def added(self) -> tuple[DataFile, ...]:
        """All files that are added; a baseline names files that are already in the table."""
        return tuple(f for swap in self.days for f in swap.add)

    @property
    def removed(self) -> tuple[DataFile, ...]:
        """All files that are removed."""
        return tuple(f for swap in self.days for f in swap.remove)

    def metadata(self) -> dict[str, str]:
        """What the Delta commit records about the release; all values are text."""
        dates = sorted(s.day for s in self.days)
        return {
            "release": self.release, "kind": self.kind.value, "dataset": self.dataset, "unit": self.unit,
            "released_by": self.by, "released_at": self.created_at.isoformat(), "evidence": self.evidence,
            "code_version": self.code_version, "manifest": self.hash, "reason": self.reason, "undoes": self.undoes,
            **({"first_day": dates[0].isoformat(), "last_day": dates[-1].isoformat()} if dates else {}),
            "days": str(len(dates)),
            **({"published_at": self.created_at.isoformat()} if self.kind is ReleaseKind.publish else {}),
            **{name: str(getattr(self, name)) for name in sorted(_LATER) if getattr(self, name)},
        }  # fmt: skip

    def to_json(self) -> str:
        """Canonical JSON, as stored beside the table."""
        return canonical_json(self._stored())

    def _stored(self) -> dict[str, object]:
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in held.items() if value or name not in _LATER}


class CommitKind(StrEnum):
    """Who made a commit of a published table: a release, this project when it prepares the schema, or another writer."""

    release = "release"
    schema = "schema"
    foreign = "foreign"


@dataclass(frozen=True)
class TableCommit:
    """One commit in the log of a published table; `release`, `manifest` (its hash) and `does` are set for releases only."""

    version: int
    at: dt.datetime
    kind: CommitKind
    operation: str
    release: str = ""
    manifest: str = ""
    does: ReleaseKind | None = None


def foreign_commits(history: Iterable[TableCommit]) -> tuple[TableCommit, ...]:
    """The commits of other writers since the newest baseline, newest first, as `history` is; all if there is no baseline."""
    since = takewhile(lambda commit: commit.does is not ReleaseKind.baseline, history)
    return tuple(commit for commit in since if commit.kind is CommitKind.foreign)


AHEAD: Final = dt.timedelta(minutes=5)
"""How far a time may be in the future before its clock counts as wrong: clocks of hosts agree within seconds."""


def is_ahead(at: dt.datetime, now: dt.datetime) -> bool:
    """Whether a time is in the future by more than `AHEAD`."""
    return at > now + AHEAD


def corrected(releases: Sequence[tuple[str, dt.datetime]], now: dt.datetime) -> Mapping[str, dt.datetime]:
    """The releases whose time is wrong, each with a possible time; `releases` are all, in order of their numbers.

    A release that is dated before an earlier one was made by a clock that was behind: it counts as made at the time of the
    earlier one. A release in the future was made by a clock that was ahead: it counts as made at the time of the next one that
    is not. As long as there is no next one, it keeps its time. So no window ends too early, and each one ends.
    """
    found: dict[str, dt.datetime] = {}
    before: dt.datetime | None = None
    for release, at in releases:
        if not is_ahead(at, now):
            if before is not None and at < before:
                found[release] = before
            before = max(at, before or at)
    after: dt.datetime | None = None
    for release, at in reversed(releases):
        if not is_ahead(at, now):
            after = found.get(release, at)
        elif after is not None:
            found[release] = after
    return found


UNDO = "_undo"
"""What the name of a release ends with that takes back half of a publication; the rest of it is the name of that half."""

EXTRA = dt.timedelta(days=7)
"""How much longer than the longest `keep_for` files are kept, so that a rollback at the last minute finds its files."""


@dataclass(frozen=True)
class StoredFile:
    """A file found under `_shadow/`: path relative to the published table, when last modified, size in bytes."""

    path: str
    modified: dt.datetime
    size: int = 0


def restorable_until(committed_at: dt.datetime, keep_for: dt.timedelta) -> dt.datetime:
    """When a release's rollback window ends."""
    return committed_at + keep_for
