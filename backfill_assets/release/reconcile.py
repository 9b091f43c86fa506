"""Reconciles the ledger with the Delta log: the log says which releases are true, and the ledger is corrected."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from backfill_assets.core.errors import (
    ArgumentError,
    BackfillError,
    LayoutError,
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
    NO_WAIT,
    WAIT,
    After,
    Finisher,
    Settlement,
    SettlementKind,
    is_undo,
    last_swaps,
    no_after,
    publish_locks,
    unit_or_none,
)
from backfill_assets.release.rebuild import Rebuild
from backfill_assets.storage.owner import require_owner
from backfill_assets.warehouse import OnWarehouse

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
        require_owner(self.layout, self.ledger, writes=True)
        names, done = tuple(self.tables if datasets is None else datasets), list[Settlement]()
        done += self._each(self._in_state(names, ReleaseState.intent))
        done += self._each(self._revivable(names))
        rebuild = Rebuild(self.warehouse)
        for name in names:
            done += _left_alone(partial(rebuild.run, (name,)), {"the published table": name})
        # What a restored ledger did not know may be half of a publication.
        seen = {release for one in done for release in (one.release, one.release + UNDO)}
        done += self._each([m for m in self._in_state(names, ReleaseState.intent) if m.release not in seen])
        records = [r for r in self.ledger.releases() if r.state is ReleaseState.finalized]
        repaired = self.after([r.manifest.release for r in reversed(records) if r.manifest.campaign])
        return (*done, *([Settlement(DATA_RELEASES, "all datasets", SettlementKind.projected)] if repaired else []))

    def _each(self, members: Sequence[Manifest]) -> list[Settlement]:
        """Settle each group of these releases that nobody is working on; one that cannot be settled keeps no other back."""
        done = list[Settlement]()
        for group in self._groups(members):
            done += _left_alone(partial(self._settled_groups, [group], NO_WAIT), {m.release: m.dataset for m in group})
        return done

    def settle(self, datasets: Collection[str], wait: dt.timedelta = NO_WAIT) -> tuple[Settlement, ...]:
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
            require_owner(self.layout, self.ledger, writes=True)
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
            PreconditionError: the log of a table lacks a release that the ledger has.
        """
        require_owner(self.layout, self.ledger, writes=True)
        for name in locked:
            self._require_newest(name)
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

        Only the newest ones can be missing, so it is enough to look for the newest release of the log. Of what was committed after
        it was given up, the newest is taken back, too, if it is half of a publication that nobody is working on.
        """
        newest = {name: self._newest_release(self.tables[name]) for name in datasets}
        known = self.ledger.known_releases(newest.values())
        if lost := [name for name, release in newest.items() if release and release not in known]:
            Rebuild(self.warehouse).run(lost, wait)
            self.settle(datasets, wait)
        for name, release in newest.items():
            # What the log begins with needs no second look at the table.
            if self.ledger.newest_release(name) != release:
                self._require_newest(name)
        abandoned = {m.release for m in self._in_state(datasets, ReleaseState.abandoned)}
        late = [name for name, release in newest.items() if release in abandoned]
        self._each([m for m in self._revivable(late) if not self._is_whole(m)])

    def _require_newest(self, name: str) -> None:
        """Refuse a log without the newest release of the ledger: what is published on top of it would be built on old days.

        A log that cannot be read is left to whoever settles it.

        Raises:
            PreconditionError: the place is an older state of the warehouse, or a copy of it, or its table was replaced.
        """
        known, table = self.ledger.newest_release(name), self.tables.get(name)
        # Of an adopted table, whoever works on it says more.
        if not known or table is None or table.adopted:
            return
        try:
            version = table.committed(known)
        except (LayoutError, PreconditionError, StorageError):
            return
        if version is None:
            raise PreconditionError(
                f"{name}: release {known} is in the ledger, but not in the log of {self.layout.published_path(name)}: this place "
                "is an older state of the warehouse, or a copy of it, or its table was replaced. Nothing is released here: look at "
                "BACKFILL_ASSETS_WAREHOUSE, or restore ledger and warehouse of the same time; see: backfill doctor. If the table "
                f"is to go on as it is: backfill reconcile --accept-older {name}"
            )

    def accept_older(self, name: str) -> tuple[str, ...]:
        """Let the releases count no more that the log of a table lacks, so that it goes on as it is; returns them, oldest first.

        Raises:
            ArgumentError: there is no such dataset, or its log lacks none.
            LedgerError: a release of it takes too long.
        """
        require_owner(self.layout, self.ledger, writes=True)
        if name not in self.tables:
            raise ArgumentError(
                f"--accept-older {name}: there is no such dataset; name one of {', '.join(sorted(self.tables))}"
            )
        # Before the lock as well: what is refused changes nothing.
        if self._lost_from_log(name):
            with publish_locks(self.ledger, (name,), WAIT):
                if lost := self._lost_from_log(name):
                    self.ledger.returned(name, lost)
                    return lost
        raise ArgumentError(f"--accept-older {name}: its log has all releases that the ledger has; leave it out")

    def _lost_from_log(self, name: str) -> tuple[str, ...]:
        """The finalized releases that are not in the log of a table, oldest first."""
        known = [r.manifest.release for r in reversed(self.ledger.releases(name, states={ReleaseState.finalized}))]
        there = self.tables[name].committed_among(known)
        return tuple(release for release in known if release not in there)

    def _is_whole(self, manifest: Manifest) -> bool:
        (group,) = self._groups([manifest])
        undone = self.ledger.known_releases([m.release + UNDO for m in group])
        return not undone and all(self._in_log(m) for m in group)

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
        finisher, rebuild = Finisher(self.warehouse), Rebuild(self.warehouse)
        for manifest in manifests:
            if manifest.release in true:
                finisher.keep(manifest, true[manifest.release])
                rebuild.undo_of(manifest)
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


def _left_alone(settle: Callable[[], Iterable[Settlement]], releases: Mapping[str, str]) -> Iterable[Settlement]:
    """What `settle` did, or a problem of each of these releases, by dataset, which must not keep others from being settled."""
    try:
        return settle()
    except (BackfillError, OSError) as error:
        return [Settlement(one, name, SettlementKind.unreadable, str(error)) for one, name in releases.items()]
