"""Records of work that the ledger keeps: deliveries, attempts with their leases, staged days, releases, holds."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from backfill_assets.domain.evidence import DatasetDay, shadow_folder
from backfill_assets.domain.release import Manifest, ReleaseKind, ReleaseState

FileContent = tuple[dt.date, str, str]
"""Of a source file: its delivery day, its path below the sources folder, and the SHA-256 of its bytes."""

LOCK_WAIT: Final = dt.timedelta(minutes=2)
"""How long to wait for a lock: longer than its lease, or the command after one that was killed would fail for nothing."""


@dataclass(frozen=True)
class Delivery:
    """One source file landed in raw; the same path with other content is another delivery.

    `path` is relative to the sources folder, `fingerprint` the SHA-256 of its bytes, `size` in bytes; `rows` counts all
    rows of the file, `corrupt_rows` those that could not be read as `reading` says (see `domain.reading`). `order` is the
    number that the ledger gave it when it came last: of two, the one with the higher number is the newer one; 0 if it never
    was the newest at its path. `withdrawn` says that a person has taken it out. `landings` counts how often it was read into
    raw; 0 where raw has lost it for good.
    """

    dataset: str
    day: dt.date
    path: str
    fingerprint: str
    size: int
    delivered_at: dt.datetime
    landed_at: dt.datetime
    rows: int = 0
    corrupt_rows: int = 0
    order: int = 0
    withdrawn: bool = False
    landings: int = 1
    reading: str = ""

    @property
    def content(self) -> FileContent:
        """What was delivered: other bytes, or the same ones at another path or for another day, are another content."""
        return self.day, self.path, self.fingerprint


class AttemptState(StrEnum):
    """Where an attempt stands."""

    running = "running"
    done = "done"
    failed = "failed"
    lost = "lost"


@dataclass(frozen=True)
class Work:
    """What an attempt took: the rows it wrote, the bytes of the files it read, and how long it waited to be admitted.

    `layer` is the one that it built: `raw` and `staging` as well where a campaign counts them.
    """

    rows: int = 0
    bytes_read: int = 0
    waited: dt.timedelta = dt.timedelta()
    layer: str = "shadow"


@dataclass(frozen=True)
class Attempt:
    """One run's work on some days of a unit, in a shadow folder of its own.

    `number` grows with every attempt in the ledger and is the fencing token of its lease: evidence is taken only from
    an attempt that still holds its lease. `ended_at` is none while it runs, and for those that ended before the ledger
    recorded it; `rows`, `bytes_read`, `waited` and `layer` are as in `Work`, zero where nobody said.
    """

    number: int
    unit: str
    dataset: str
    days: tuple[dt.date, ...]
    run: str
    worker: str
    state: AttemptState
    started_at: dt.datetime
    lease_until: dt.datetime
    ended_at: dt.datetime | None = None
    rows: int = 0
    bytes_read: int = 0
    waited: dt.timedelta = dt.timedelta()
    layer: str = "shadow"

    @property
    def folder(self) -> str:
        """The shadow folder, relative to the published table's folder."""
        return shadow_folder(self.unit, self.number)

    def spent(self, now: dt.datetime) -> dt.timedelta:
        """How long it has taken so far; one whose worker died counts until its lease ended."""
        end = self.ended_at or min(now, self.lease_until)
        return max(end - self.started_at, dt.timedelta(0))


UNKNOWN_ORIGIN = "unknown"
"""Stands for the upstream content behind files that nobody of this project built."""


@dataclass(frozen=True)
class Content:
    """What a set of files holds of a day: the fingerprint of its rows, and digests of what they were built from.

    `upstream` is empty for a dataset without upstreams (see also `UNKNOWN_ORIGIN`); `inputs` are deliveries and references,
    and `deliveries` the deliveries alone, as `origins` names them; none where unknown.
    """

    fingerprint: str
    upstream: str
    inputs: str | None = None
    deliveries: tuple[str, ...] | None = None


@dataclass(frozen=True)
class StagedDay:
    """What a staged day was built from, and how many delivered rows of that delivery day belong to no day it may bring.

    `inputs` is the digest of the deliveries and references, `code` the fingerprint of the dataset's code. `files` is the digest of
    the files that hold the day in the table `place` below staging: what another process, or a backup, puts there has others.
    """

    dataset: str
    day: dt.date
    inputs: str
    code: str
    outside_rows: int = 0
    place: str = ""
    files: str = ""


@dataclass(frozen=True)
class ReleaseHead:
    """What changes about a release after it was intended; its manifest never does."""

    state: ReleaseState
    version: int | None = None
    committed_at: dt.datetime | None = None


@dataclass(frozen=True)
class ReleaseRecord:
    """The ledger's row of a release; the Delta log is the truth, this is its projection.

    `number` grows with every release of the ledger: it says what came before what, whatever the clocks said. `corrected` stands
    for a time that cannot be right (`domain.times`), and is none where it can.
    """

    manifest: Manifest
    state: ReleaseState
    version: int | None = None
    committed_at: dt.datetime | None = None
    number: int = field(default=0, compare=False)
    corrected: dt.datetime | None = field(default=None, compare=False)

    @property
    def since(self) -> dt.datetime | None:
        """When it became true, as its rollback window counts; none before it did."""
        return self.corrected or self.committed_at


@dataclass(frozen=True)
class Hold:
    """A day that live runs and `backfill refresh` leave alone until it is published again, or somebody lifts the hold."""

    target: DatasetDay
    reason: str
    by: str
    since: dt.datetime


def holds_of(manifest: Manifest) -> tuple[Hold, ...]:
    """The holds that a release puts on its days: a rollback those that it takes back, a publication none."""
    if manifest.kind is not ReleaseKind.rollback:
        return ()
    reason = manifest.reason or f"rolled back by {manifest.release}"
    return tuple(Hold((manifest.dataset, s.day), reason, manifest.by, manifest.created_at) for s in manifest.days)
