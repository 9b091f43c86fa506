"""Shared by publishing, rolling back and reconciling: locks, and how to finish a committed release."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from backfill_assets.core.errors import DatasetError, ReadBackError, TableMovedError, UnitError
from backfill_assets.core.release import UNDO, DaySwap, Manifest, ReleaseKind, ReleaseState, shadow_of
from backfill_assets.core.unit import ReleaseRecord, Unit, UnitState, holds_of
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.open import Ledger
from backfill_assets.warehouse import OnWarehouse, Warehouse

T = TypeVar("T")

Checkpoint = Callable[[str], None]
"""Called with the name of each completed step; crash tests end the process there."""

After = Callable[[Sequence[str]], bool]
"""Called with the names of releases that are now finalized, once all locks are free; never raises.

Returns True if it had to update a projection of the ledger.
"""

ROUNDS = 5
"""How many times a release is verified and tried when others commit to the table in between."""

WAIT = dt.timedelta(minutes=5)
"""How long a release waits for another one of the same table."""
NO_WAIT = dt.timedelta(0)


class SettlementKind(StrEnum):
    """What reconciling did with a release."""

    finalized = "finalized: its commit is in the Delta log"
    abandoned = "abandoned: it was never committed"
    undone = "undone: its unit was discarded, or another dataset of it was not committed in time"
    rebuilt = "rebuilt from its manifest: the ledger had lost it"
    stuck = (
        "left alone: half of its unit is committed, and that half was rewritten since; build and publish its days again"
    )
    busy = "left alone: another process is releasing right now"
    projected = "written again: it did not match the ledger"
    forged = "left alone: its manifest is not the one that was committed"
    unreadable = "left alone: it cannot be settled now"

    @property
    def left(self) -> bool:
        """Whether nothing was done and a person has to look at it."""
        return self in {SettlementKind.stuck, SettlementKind.busy, SettlementKind.forged, SettlementKind.unreadable}


@dataclass(frozen=True)
class Settlement:
    """One release that reconciling settled or left alone; `problem` says why it cannot be settled now."""

    release: str
    dataset: str
    kind: SettlementKind
    problem: str = ""

    def __str__(self) -> str:
        """One line of text."""
        return f"{self.release} ({self.dataset}) {self.kind.value}" + (f": {self.problem}" if self.problem else "")


def in_rounds(act: Callable[[], T]) -> T:
    """Verify and commit; repeat if others commit in between. Raises `TableMovedError` after the last round."""
    for _ in range(ROUNDS - 1):
        with suppress(TableMovedError):
            return act()
    return act()


def no_checkpoint(_step: str) -> None:
    """Go on."""


def no_after(_releases: Sequence[str]) -> bool:
    """Report nothing."""
    return False


@contextmanager
def publish_locks(ledger: Ledger, datasets: Iterable[str], wait: dt.timedelta) -> Iterator[None]:
    """Hold the publish locks of these datasets; takes them in sorted order, so that two releases never deadlock.

    Raises:
        LedgerError: a lock is not free within `wait`; names its holder.
    """
    with ExitStack() as stack:
        for name in sorted(set(datasets)):
            stack.enter_context(ledger.lock(f"publish:{name}", wait))
        yield


def require_tables(tables: Mapping[str, PublishedTable], datasets: Iterable[str]) -> None:
    """Refuse datasets whose folder is gone or could not be loaded.

    Raises:
        DatasetError: a dataset is not loaded; names the first one.
    """
    for name in datasets:
        if name not in tables:
            raise DatasetError(
                f"dataset {name!r} is not loaded, so its table cannot be changed; "
                f"put its folder back, or repair its dataset.yaml. Loaded: {', '.join(sorted(tables)) or 'none'}"
            )


def unit_or_none(ledger: Ledger, unit: str) -> Unit | None:
    """The unit, or None if the ledger lost it."""
    try:
        return ledger.unit(unit)
    except UnitError:
        return None


def last_publish(records: Sequence[ReleaseRecord]) -> tuple[ReleaseRecord, ...]:
    """The releases of a unit's last finalized publication: one for each dataset, sorted by name."""
    published = [r for r in records if r.state is ReleaseState.finalized and r.manifest.kind is ReleaseKind.publish]
    ordered = sorted(published, key=lambda r: r.number)
    # A coarse clock may give two publications the same time; the last one of each dataset counts.
    latest = [r for r in ordered if r.manifest.created_at == ordered[-1].manifest.created_at]
    by_dataset = {r.manifest.dataset: r for r in latest}
    return tuple(by_dataset[name] for name in sorted(by_dataset))


def undone_days(records: Sequence[ReleaseRecord], release: str) -> frozenset[dt.date]:
    """The days of a release that finalized rollbacks undid."""
    return frozenset(
        swap.day
        for r in records
        if r.state is ReleaseState.finalized and r.manifest.undoes == release
        for swap in r.manifest.days
    )


def last_swaps(records: Iterable[ReleaseRecord]) -> Mapping[dt.date, tuple[ReleaseRecord, DaySwap]]:
    """The last finalized record of each day, in the order of the table's versions, and what it did to the day."""
    last: dict[dt.date, tuple[ReleaseRecord, DaySwap]] = {}
    finalized = (record for record in records if record.state is ReleaseState.finalized)
    for record in sorted(finalized, key=lambda record: record.version or 0):
        last |= {swap.day: (record, swap) for swap in record.manifest.days}
    return last


def is_rollback(record: ReleaseRecord) -> bool:
    """Whether this is a user's rollback, not the automatic undo of an incomplete publication."""
    finalized = record.state is ReleaseState.finalized and record.manifest.kind is ReleaseKind.rollback
    return finalized and not taken_back([record])


def taken_back(records: Iterable[ReleaseRecord]) -> frozenset[str]:
    """The releases that were undone because another dataset of their unit could not be released."""
    undoings = (r.manifest for r in records if r.state is ReleaseState.finalized and r.manifest.undoes)
    return frozenset(m.undoes for m in undoings if is_undo(m))


def is_undo(manifest: Manifest) -> bool:
    """Whether it takes a part of a publication back that could not be completed, or whose unit was discarded."""
    return bool(manifest.undoes) and manifest.release == manifest.undoes + UNDO


@dataclass(frozen=True)
class Finisher(OnWarehouse):
    """Updates the ledger and the shadows to match the Delta log; every method is safe to repeat, also after a death in it."""

    def publish(self, versions: Mapping[str, int], manifests: Sequence[Manifest]) -> None:
        """Finalize a publication with all datasets committed, and with it its unit.

        Raises:
            TakenBackError: another process takes the publication back, or the unit was discarded: take it back, too.
        """
        self.ledger.finalize_publication({m.release: versions[m.release] for m in manifests})

    def keep(self, manifest: Manifest, version: int) -> None:
        """Bring a commit to the disk: a release counts only if it is there, and its process may have died before it synced."""
        self.tables[manifest.dataset].commit(manifest, version - 1)

    def seal(self, manifests: Iterable[Manifest]) -> None:
        """Seal the shadows whose files a publication added."""
        for manifest in manifests:
            for folder in sorted({shadow_of(f.path) for f in manifest.added}):
                self.tables[manifest.dataset].seal(folder)

    def rollback(self, manifest: Manifest, version: int) -> None:
        """Finalize a committed rollback, put its days on hold, and move the unit if none of its days stay published.

        The undo of an incomplete publication leaves the unit as it is and puts nothing on hold.
        """
        if is_undo(manifest):
            self.ledger.finalize(manifest.release, version, manifest.created_at, None)
            return
        unit = unit_or_none(self.ledger, manifest.unit)
        state = UnitState.rolled_back if unit is None else self._state_after(unit, manifest)
        self.ledger.hold(holds_of(manifest))
        self.ledger.finalize(manifest.release, version, manifest.created_at, state)

    def baseline(self, manifest: Manifest, version: int) -> None:
        """Finalize the committed baseline of an adopted table."""
        self.ledger.finalize(manifest.release, version, manifest.created_at, UnitState.published)

    def take_back(self, committed: Sequence[Manifest], group: Sequence[Manifest]) -> None:
        """Undo the committed part of a publication that cannot be completed, last first, then abandon the rest."""
        for manifest in reversed(committed):
            self.undo(manifest)
        # After a death in here, reconcile finds the intent of a member or of an undo, or a commit that was given up, and goes on.
        for manifest in group:
            if manifest not in committed:
                self.ledger.abandon(manifest.release)

    def undo(self, manifest: Manifest) -> Manifest:
        """Undo one dataset of a publication because another dataset could not be committed, or the unit was discarded.

        The name of the undo follows from the release that it undoes, so a second call finds it done.

        Raises:
            UnitError: the release is not committed, or its unit has been published meanwhile.
        """
        table = self.tables[manifest.dataset]
        version = table.committed(manifest.release)
        if version is None:
            raise UnitError(f"release {manifest.release} is not committed; there is nothing to undo")
        unit = unit_or_none(self.ledger, manifest.unit)
        given_up = unit is not None and unit.state is UnitState.discarded
        back = replace(
            manifest,
            release=manifest.release + UNDO,
            kind=ReleaseKind.rollback,
            created_at=self.clock.now(),
            days=tuple(DaySwap(s.day, s.add, s.remove, s.evidence) for s in manifest.days),
            reason="the unit was discarded" if given_up else "another dataset of the unit could not be released",
            undoes=manifest.release,
            approved_by="",
            certificate="",
        )
        back = self._intended(back)
        # Its name is always the same: a process that died here may have left another one, which nothing was committed with.
        table.restore_manifest(back)
        self.ledger.intend_undo(back, version)
        self.rollback(back, commit_on_newest(table, back))
        return back

    def _intended(self, manifest: Manifest) -> Manifest:
        known = (r.manifest for r in self.ledger.releases(manifest.dataset, manifest.unit))
        return next((m for m in known if m.release == manifest.release), manifest)

    def _state_after(self, unit: Unit, manifest: Manifest) -> UnitState:
        if unit.state is not UnitState.published:
            return unit.state
        records = self.ledger.releases(unit=unit.id)
        for record in last_publish(records):
            gone = undone_days(records, record.manifest.release)
            if record.manifest.release == manifest.undoes:
                gone |= {swap.day for swap in manifest.days}
            if not gone >= {swap.day for swap in record.manifest.days}:
                return unit.state
        return UnitState.rolled_back


def commit_on_newest(table: PublishedTable, manifest: Manifest) -> int:
    """Commit on the newest version; for manifests that do not depend on other days. Checks preconditions each time."""
    return in_rounds(lambda: table.commit(manifest, table.version()))


def commit_alone(
    warehouse: Warehouse, manifest: Manifest, base_version: int, checkpoint: Checkpoint, after: After
) -> int:
    """Store, announce and commit a release that stands alone, on `base_version`; returns the new version.

    An intent whose commit is refused is abandoned. One that may be committed stays: `backfill reconcile` finds out.

    Raises:
        TableMovedError: the table is no longer at `base_version`.
        PreconditionError: a precondition fails.
        StorageError: the disk is full, or the log's folder is not writable.
        ReadBackError: it is or may be committed, but the table could not be verified.
    """
    table = warehouse.tables[manifest.dataset]
    table.store_manifest(manifest)
    checkpoint("manifest")
    warehouse.ledger.intend(manifest)
    checkpoint("intend")
    try:
        version = table.commit(manifest, base_version)
    except ReadBackError:
        raise
    except Exception:
        warehouse.ledger.abandon(manifest.release)
        after(())
        raise
    checkpoint("commit")
    return version
