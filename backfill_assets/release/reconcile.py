"""Reconciles the ledger with the Delta log: the log says which releases are true, and the ledger is corrected."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from backfill_assets.core.errors import (
    BackfillError,
    LayoutError,
    LedgerError,
    LockHeldError,
    PreconditionError,
    StorageError,
    TakenBackError,
)
from backfill_assets.core.release import UNDO, Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import ReleaseRecord, Unit, UnitState
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.finish import (
    WAIT,
    After,
    Finisher,
    is_undo,
    last_swaps,
    no_after,
    publish_locks,
    unit_or_none,
)
from backfill_assets.storage.owner import require_owner
from backfill_assets.warehouse import OnWarehouse


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


_NO_WAIT = dt.timedelta(0)
_LOOK = 8
"""How many commits the search for the newest release reads first; each further round reads this many times more."""


@dataclass(frozen=True)
class Reconcile(OnWarehouse):
    """Finishes or abandons releases that a crash left unfinished; running it again changes nothing.

    It takes a downstream back before its upstream, as a publication does.
    """

    after: After = no_after

    def run(self, datasets: Collection[str] | None = None) -> tuple[Settlement, ...]:
        """Settle unfinished releases and rebuild those that the ledger lost; for all datasets unless some are named.

        Reports the releases that a crash left unreported, and repairs the table `data_releases`. A table that cannot be
        read is left alone.

        Raises:
            LayoutError: the tables belong to another ledger.
        """
        require_owner(self.layout, self.ledger.id, self.ledger.name)
        names, done = tuple(self.tables if datasets is None else datasets), list[Settlement]()
        for found in (partial(self._in_state, state=ReleaseState.intent), self._revivable):
            for group in self._groups(found(names)):
                done += _left_alone(
                    partial(self._settled_groups, [group], _NO_WAIT), {m.release: m.dataset for m in group}
                )
        for name in names:
            done += _left_alone(partial(self.rebuild, (name,)), {"the published table": name})
        records = [r for r in self.ledger.releases() if r.state is ReleaseState.finalized]
        repaired = self.after([r.manifest.release for r in reversed(records) if r.manifest.campaign])
        return (*done, *([Settlement(DATA_RELEASES, "all datasets", SettlementKind.projected)] if repaired else []))

    def settle(self, datasets: Collection[str], wait: dt.timedelta = _NO_WAIT) -> tuple[Settlement, ...]:
        """Settle every intent: finalized if it is in the log, undone if only half of its unit is, else abandoned.

        If its lock is not free within `wait`, another process is working on the intent.
        """
        return self._settled_groups(self._groups(self._in_state(datasets, ReleaseState.intent)), wait)

    def discard(self, unit_id: str, wait: dt.timedelta = WAIT) -> Unit:
        """Give up an open unit. A release of it that is under way ends first; what is found of one later is taken back.

        Raises:
            UnitError: there is no such unit, or it is not open (any more), such as after that release.
            LedgerError: that release takes longer than `wait`.
        """
        unit = self.ledger.unit(unit_id)
        names = unit.targets.keys() & self.tables.keys()
        # What cannot be settled, such as a table that cannot be read, must not keep a unit open that nobody can release.
        with suppress(BackfillError, OSError):
            require_owner(self.layout, self.ledger.id, self.ledger.name)
            self.settle(names, wait)
            self._catch_up(names, wait)
        with publish_locks(self.ledger, unit.targets, wait):
            return self.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)

    @contextmanager
    def settled(self, datasets: Collection[str], locked: Collection[str], wait: dt.timedelta) -> Iterator[None]:
        """Settle all intents of `datasets`, then hold the publish locks of `locked`.

        Raises:
            LedgerError: a lock is not free within `wait`; names its holder.
            LayoutError: the tables belong to another ledger by now.
        """
        require_owner(self.layout, self.ledger.id, self.ledger.name)
        self.settle(datasets, wait)
        self._catch_up(datasets, wait)
        with publish_locks(self.ledger, locked, wait):
            if not self._in_state(datasets, ReleaseState.intent):
                yield
                return
        # The earlier holder of the locks died and left an intent, or it cannot be settled: the next step finds out.
        self.settle(datasets, wait)
        with publish_locks(self.ledger, locked, wait):
            yield

    def _catch_up(self, datasets: Collection[str], wait: dt.timedelta) -> None:
        """Rebuild what a ledger restored from a backup has lost, before new releases follow: numbers order releases.

        Only the newest ones can be missing, so it is enough to look for the newest release of the log.
        """
        newest = {name: self._newest_release(self.tables[name]) for name in datasets}
        known = self.ledger.known_releases(newest.values())
        self.rebuild([name for name, release in newest.items() if release and release not in known], wait)

    def _newest_release(self, table: PublishedTable) -> str:
        """The newest release in a table's log; empty if there is none."""
        looked, commits = _LOOK, table.history(_LOOK)
        while not (found := next((c.release for c in commits if c.release), "")) and len(commits) == looked:
            looked *= _LOOK
            commits = table.history(looked)
        return found

    def _revivable(self, datasets: Collection[str]) -> list[Manifest]:
        """The releases that were abandoned although they are in the log: the log wins."""
        records = [r for name in datasets for r in self.ledger.releases(name, states={ReleaseState.abandoned})]
        return [*self._committed_anyway(records), *self._given_up(records)]

    def _committed_anyway(self, records: Sequence[ReleaseRecord]) -> list[Manifest]:
        return [r.manifest for r in records if r.state is ReleaseState.abandoned and self._in_log(r.manifest)]

    def _given_up(self, records: Sequence[ReleaseRecord]) -> list[Manifest]:
        """Undos that an earlier version abandoned before they were committed."""
        undos = [r.manifest for r in records if r.state is ReleaseState.abandoned and is_undo(r.manifest)]
        return [m for m in undos if self._state_of(m) in {UnitState.open, UnitState.discarded} and self._has_to_go(m)]

    def _has_to_go(self, undo: Manifest) -> bool:
        """Whether what it undoes is committed, and not all of its days were released again since."""
        undone = self.ledger.release(undo.undoes).manifest
        return not self._is_covered(undone) and self._in_log(undone)

    def _is_covered(self, manifest: Manifest) -> bool:
        """Whether all days of a finalized release were released again since."""
        last, own = last_swaps(self.ledger.releases(manifest.dataset)), {manifest.release, manifest.release + UNDO}
        return all(s.day in last and last[s.day][0].manifest.release not in own for s in manifest.days)

    def _state_of(self, manifest: Manifest) -> UnitState | None:
        unit = unit_or_none(self.ledger, manifest.unit)
        return None if unit is None else unit.state

    def _in_log(self, manifest: Manifest) -> bool:
        try:
            return self.tables[manifest.dataset].committed(manifest.release) is not None
        except (LayoutError, PreconditionError, StorageError):
            return False  # the doctor reports an unreadable log; it must not stop the repair of other tables

    def _settled_groups(self, groups: Sequence[Sequence[Manifest]], wait: dt.timedelta) -> tuple[Settlement, ...]:
        settlements: list[Settlement] = []
        for members in groups:
            names = {m.dataset for m in members}
            if not names <= set(self.tables):
                continue
            try:
                with publish_locks(self.ledger, names, wait):
                    found = self._settle_group([self.ledger.release(m.release) for m in members])
            except LockHeldError:
                found = [Settlement(m.release, m.dataset, SettlementKind.busy) for m in members]
            else:
                self.after([r.release for r in found if r.kind is SettlementKind.finalized])
            settlements += found
        return tuple(settlements)

    def rebuild(self, datasets: Collection[str], wait: dt.timedelta = _NO_WAIT) -> tuple[Settlement, ...]:
        """Rebuild releases that are committed and have a manifest, but are missing from the ledger.

        Skips a table whose lock is not free within `wait`.
        """
        settlements: list[Settlement] = []
        for name in datasets:
            lost = self._unknown(name, self.tables[name].manifests())
            if not lost:
                continue
            try:
                with publish_locks(self.ledger, [name], wait):
                    # Look again: the ledger may know a release by now that another process was just making.
                    settlements += self._rebuilt(name, self._unknown(name, lost))
            except LedgerError:
                settlements += [Settlement(m.release, name, SettlementKind.busy) for m in lost]
        return tuple(settlements)

    def _unknown(self, name: str, manifests: Sequence[Manifest]) -> list[Manifest]:
        known = {r.manifest.release for r in self.ledger.releases(name)} if manifests else set()
        return sorted((m for m in manifests if m.release not in known), key=lambda m: m.created_at)

    def _rebuilt(self, name: str, lost: Sequence[Manifest]) -> list[Settlement]:
        table = self.tables[name]
        versions = table.committed_among(m.release for m in lost) if lost else {}
        committed = [m for m in lost if m.release in versions]
        genuine = {m.release: m for m in committed if table.manifest_at(versions[m.release], m.release) in {"", m.hash}}
        if genuine:
            # Syncing the first one to the disk also syncs all later commits.
            first = min(genuine, key=versions.__getitem__)
            self._keep(genuine[first], versions[first])
        # Their new numbers say which release covers which from now on.
        undone = {m.undoes for m in genuine.values() if is_undo(m)}
        for release in sorted(genuine, key=versions.__getitem__):
            self._bring_back(genuine[release], versions[release], undone=release in undone)
        kinds = {True: SettlementKind.rebuilt, False: SettlementKind.forged}
        return [Settlement(m.release, name, kinds[m.release in genuine]) for m in committed]

    def _in_state(self, datasets: Collection[str], state: ReleaseState) -> list[Manifest]:
        return [r.manifest for name in datasets for r in self.ledger.releases(name, states={state})]

    def _groups(self, members: Sequence[Manifest]) -> list[list[Manifest]]:
        """The members grouped with the releases that succeed or fail with them: those of one publication of a unit."""
        groups: dict[tuple[str, dt.datetime, str], list[Manifest]] = {}
        # Publications first, whatever the clocks say: taking half of one back also completes its unfinished rollback.
        oldest_first = list(reversed(members))
        for manifest in sorted(oldest_first, key=lambda m: m.kind is ReleaseKind.rollback):
            alone = "" if manifest.kind is ReleaseKind.publish else manifest.release
            key = (manifest.unit, manifest.created_at, alone)
            if key not in groups:
                siblings = [manifest] if alone else [r.manifest for r in self.ledger.releases(unit=manifest.unit)]
                own = [m for m in siblings if (m.created_at, m.kind) == (manifest.created_at, manifest.kind)]
                rank = self.catalog.upstream_first({m.dataset for m in own})
                groups[key] = sorted(own, key=lambda m: rank.index(m.dataset))
        return list(groups.values())

    def _settle_group(self, records: Sequence[ReleaseRecord]) -> list[Settlement]:
        manifests, begun = [r.manifest for r in records], any(r.state is ReleaseState.intent for r in records)
        if not (begun or self._committed_anyway(records) or self._given_up(records)):
            return []
        for manifest in manifests:
            # Half a commit file, left by a power cut, makes the entire table unreadable.
            self.tables[manifest.dataset].set_aside_torn()
        versions = {m.release: self.tables[m.dataset].committed(m.release) for m in manifests}
        true = {release: version for release, version in versions.items() if version is not None}
        for manifest in manifests:
            if manifest.release in true:
                self._keep(manifest, true[manifest.release])
                self._remember_undo(manifest)
        finisher = Finisher(self.warehouse)
        if len(true) == len(manifests) and self._finished(finisher, manifests, true):
            return [Settlement(m.release, m.dataset, SettlementKind.finalized) for m in manifests]
        state = self._state_of(manifests[0])
        if state is UnitState.published:
            return self._noted(records, true)
        if is_undo(manifests[0]) and self._has_to_go(manifests[0]):
            return self._undone(finisher, manifests[0])
        finalized = [r.manifest for r in records if r.state is ReleaseState.finalized]
        # Nothing of them is left to take back.
        over = {m.release for m in finalized if m.release not in true or self._is_covered(m)}
        left = [m for m in manifests if m.release not in over]
        try:
            finisher.take_back([m for m in left if m.release in true], left)
        except PreconditionError:
            return [Settlement(m.release, m.dataset, SettlementKind.stuck) for m in manifests]
        kinds = {True: SettlementKind.undone, False: SettlementKind.abandoned}
        return [Settlement(m.release, m.dataset, kinds[m.release in true]) for m in manifests]

    def _remember_undo(self, manifest: Manifest) -> None:
        """Rebuild the undo of a release if a ledger that was restored from a backup does not know it."""
        table, undo = self.tables[manifest.dataset], manifest.release + UNDO
        if undo not in self.ledger.known_releases([undo]) and table.committed(undo) is not None:
            self._rebuilt(manifest.dataset, [m for m in table.manifests() if m.release == undo])

    def _noted(self, records: Sequence[ReleaseRecord], true: Mapping[str, int]) -> list[Settlement]:
        """Note what is in the log of a release whose unit was released again since, whole, and give the rest up."""
        kinds = {True: SettlementKind.finalized, False: SettlementKind.abandoned}
        left = [r.manifest for r in records if r.state is not ReleaseState.finalized]
        for manifest in left:
            if manifest.release in true:
                self.ledger.finalize(manifest.release, true[manifest.release], manifest.created_at, None)
            else:
                self.ledger.abandon(manifest.release)
        return [Settlement(m.release, m.dataset, kinds[m.release in true]) for m in left]

    def _undone(self, finisher: Finisher, undo: Manifest) -> list[Settlement]:
        """Complete what a process began to take back before it died."""
        kind = SettlementKind.undone
        try:
            finisher.undo(self.ledger.release(undo.undoes).manifest)
        except PreconditionError:
            kind = SettlementKind.stuck
        return [Settlement(undo.undoes, undo.dataset, kind)]

    def _finished(self, finisher: Finisher, manifests: Sequence[Manifest], versions: Mapping[str, int]) -> bool:
        """Finalize what is committed; False if it has to be taken back, since a part of it was, or its unit was discarded."""
        if manifests[0].kind is ReleaseKind.publish:
            try:
                finisher.publish(versions, manifests)
            except TakenBackError:
                return False
            finisher.seal(manifests)
            return True
        for manifest in manifests:
            finish = finisher.rollback if manifest.kind is ReleaseKind.rollback else finisher.baseline
            finish(manifest, versions[manifest.release])
        return True

    def _keep(self, manifest: Manifest, version: int) -> None:
        # A release that counts must be on the disk: the process that committed it may have died before it synced.
        self.tables[manifest.dataset].commit(manifest, version - 1)

    def _bring_back(self, manifest: Manifest, version: int, *, undone: bool) -> None:
        self.ledger.intend(manifest)
        unit = unit_or_none(self.ledger, manifest.unit)
        state = UnitState.published if unit is None or unit.state is UnitState.open else unit.state
        if manifest.kind is ReleaseKind.rollback:
            Finisher(self.warehouse).rollback(manifest, version)
        else:
            self.ledger.finalize(manifest.release, version, manifest.created_at, None if undone else state)


def _left_alone(settle: Callable[[], Iterable[Settlement]], releases: Mapping[str, str]) -> Iterable[Settlement]:
    """What `settle` did, or a problem of each of these releases, by dataset, which must not keep others from being settled."""
    try:
        return settle()
    except (BackfillError, OSError) as error:
        return [Settlement(one, name, SettlementKind.unreadable, str(error)) for one, name in releases.items()]
