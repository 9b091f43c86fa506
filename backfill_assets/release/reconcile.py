"""Reconciling: the Delta log says which releases are true, and the ledger is made to agree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from backfill_assets.core.errors import LedgerError, PreconditionError
from backfill_assets.core.release import Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import ReleaseRecord, UnitState
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.finish import After, Finisher, no_after, publish_locks, unit_or_none
from backfill_assets.warehouse import OnWarehouse


class SettlementKind(StrEnum):
    """What was done about a release."""

    finalized = "finalized: its commit is in the Delta log"
    abandoned = "abandoned: it was never committed"
    undone = "undone: another dataset of its unit was never committed"
    rebuilt = "rebuilt from its manifest: the ledger had lost it"
    stuck = "left alone: half of its unit is committed, and that half was rewritten since; publish or discard the unit"
    busy = "left alone: somebody is releasing right now"
    projected = "written again: it was not what the ledger says"
    forged = "left alone: its manifest is not the one that was committed"

    @property
    def left(self) -> bool:
        """Whether nothing was done, and somebody has to look at it."""
        return self in {SettlementKind.stuck, SettlementKind.busy, SettlementKind.forged}


@dataclass(frozen=True)
class Settlement:
    """One thing that reconciling did, or left alone."""

    release: str
    dataset: str
    kind: SettlementKind

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.release} ({self.dataset}) {self.kind.value}"


_NO_WAIT = dt.timedelta(0)
_LOOK = 8
"""How many commits to look at first for the newest release; each further look takes this many times as many."""


@dataclass(frozen=True)
class Reconcile(OnWarehouse):
    """Finishes or gives up what a crash left half-way; running it again changes nothing.

    A downstream is taken back before its upstream, as a publication does it.
    """

    after: After = no_after

    def run(self, datasets: Collection[str] | None = None) -> tuple[Settlement, ...]:
        """Settle what is left over and rebuild what the ledger has lost; for all datasets unless some are named.

        What a crash kept from being told of releases is told now, and the table `data_releases` is mended.
        """
        names = tuple(self.tables if datasets is None else datasets)
        done = (*self.settle(names), *self._revive(names), *self.rebuild(names))
        records = [r for r in self.ledger.releases() if r.state is ReleaseState.finalized]
        mended = self.after([r.manifest.release for r in reversed(records) if r.manifest.campaign])
        return (*done, *([Settlement(DATA_RELEASES, "all datasets", SettlementKind.projected)] if mended else []))

    def settle(self, datasets: Collection[str], wait: dt.timedelta = _NO_WAIT) -> tuple[Settlement, ...]:
        """Bring every intent to its end: finalized if it is in the log, undone if only half of its unit is, else abandoned.

        An intent whose lock cannot be had within `wait` belongs to somebody who is at work.
        """
        return self._brought_to_an_end(self._groups(self._in_state(datasets, ReleaseState.intent)), wait)

    @contextmanager
    def settled(self, datasets: Collection[str], locked: Collection[str], wait: dt.timedelta) -> Iterator[None]:
        """Hold the publish locks of `locked` once all intents of `datasets` have come to their end.

        Raises:
            LedgerError: a lock cannot be had within `wait`; names its holder.
        """
        self.settle(datasets, wait)
        self._catch_up(datasets, wait)
        with publish_locks(self.ledger, locked, wait):
            if not self._in_state(datasets, ReleaseState.intent):
                yield
                return
        # Whoever held the locks died and left something, or nobody can settle it: what is done next will find out.
        self.settle(datasets, wait)
        with publish_locks(self.ledger, locked, wait):
            yield

    def _catch_up(self, datasets: Collection[str], wait: dt.timedelta) -> None:
        """Bring back what a ledger from a backup has lost, before anything comes after it: numbers order releases.

        That is always the newest ones, so the newest release in the log tells. A history of thousands is not read each time.
        """
        newest = {name: self._newest_release(self.tables[name]) for name in datasets}
        known = self.ledger.heads()
        self.rebuild([name for name, release in newest.items() if release and release not in known], wait)

    def _newest_release(self, table: PublishedTable) -> str:
        """The newest release in a table's log; empty where it has none."""
        looked, commits = _LOOK, table.history(_LOOK)
        while not (found := next((c.release for c in commits if c.release), "")) and len(commits) == looked:
            looked *= _LOOK
            commits = table.history(looked)
        return found

    def _revive(self, datasets: Collection[str]) -> tuple[Settlement, ...]:
        """Bring releases to their end that were given up, although they are in the log: of those the log is right."""
        records = [r for name in datasets for r in self.ledger.releases(name, states={ReleaseState.abandoned})]
        return self._brought_to_an_end(self._groups(self._given_up_in_vain(records)), _NO_WAIT)

    def _given_up_in_vain(self, records: Sequence[ReleaseRecord]) -> list[Manifest]:
        return [r.manifest for r in records if r.state is ReleaseState.abandoned and self._in_log(r.manifest)]

    def _in_log(self, manifest: Manifest) -> bool:
        try:
            return self.tables[manifest.dataset].committed(manifest.release) is not None
        except PreconditionError:
            return False  # a log that cannot be read is for the doctor, and keeps no other table from being mended

    def _brought_to_an_end(self, groups: Sequence[Sequence[Manifest]], wait: dt.timedelta) -> tuple[Settlement, ...]:
        settlements: list[Settlement] = []
        for members in groups:
            names = {m.dataset for m in members}
            if not names <= set(self.tables):
                continue
            try:
                with publish_locks(self.ledger, names, wait):
                    found = self._settle_group([self.ledger.release(m.release) for m in members])
            except LedgerError:
                found = [Settlement(m.release, m.dataset, SettlementKind.busy) for m in members]
            else:
                self.after([r.release for r in found if r.kind is SettlementKind.finalized])
            settlements += found
        return tuple(settlements)

    def rebuild(self, datasets: Collection[str], wait: dt.timedelta = _NO_WAIT) -> tuple[Settlement, ...]:
        """Bring releases back that are committed and have a manifest, but that the ledger does not know.

        Of a table whose lock cannot be had within `wait` none is brought back.
        """
        settlements: list[Settlement] = []
        for name in datasets:
            lost = self._unknown(name, self.tables[name].manifests())
            if not lost:
                continue
            try:
                with publish_locks(self.ledger, [name], wait):
                    # Once more: what somebody was releasing just now has become known since.
                    settlements += self._rebuilt(name, self._unknown(name, lost))
            except LedgerError:
                settlements += [Settlement(m.release, name, SettlementKind.busy) for m in lost]
        return tuple(settlements)

    def _unknown(self, name: str, manifests: Sequence[Manifest]) -> list[Manifest]:
        known = {r.manifest.release for r in self.ledger.releases(name)} if manifests else set()
        return sorted((m for m in manifests if m.release not in known), key=lambda m: m.created_at)

    def _rebuilt(self, name: str, lost: Sequence[Manifest]) -> list[Settlement]:
        table = self.tables[name]
        hashes = {c.release: c.manifest for c in table.history() if c.release} if lost else {}
        versions = {m.release: version for m in lost if (version := table.committed(m.release)) is not None}
        committed = [m for m in lost if m.release in versions]
        genuine = {m.release: m for m in committed if hashes.get(m.release, m.hash) == m.hash}
        if genuine:
            # With the first one all later commits are brought to the disk.
            first = min(genuine, key=versions.__getitem__)
            self._keep(genuine[first], versions[first])
        # Their numbers say what lies upon what from now on.
        for release in sorted(genuine, key=versions.__getitem__):
            self._bring_back(genuine[release], versions[release])
        fates = {True: SettlementKind.rebuilt, False: SettlementKind.forged}
        return [Settlement(m.release, name, fates[m.release in genuine]) for m in committed]

    def _in_state(self, datasets: Collection[str], state: ReleaseState) -> list[Manifest]:
        return [r.manifest for name in datasets for r in self.ledger.releases(name, states={state})]

    def _groups(self, members: Sequence[Manifest]) -> list[list[Manifest]]:
        """Releases that stand and fall together, one publication of a unit, with at least one of the members in it."""
        groups: dict[tuple[str, dt.datetime, ReleaseKind], list[Manifest]] = {}
        # Publications first, whatever the clocks say: taking half of one back completes the rollback that a crash left of it.
        oldest_first = list(reversed(members))
        for manifest in sorted(oldest_first, key=lambda m: m.kind is ReleaseKind.rollback):
            key = (manifest.unit, manifest.created_at, manifest.kind)
            if key not in groups:
                whole = self.ledger.releases(unit=manifest.unit)
                own = [r.manifest for r in whole if (r.manifest.unit, r.manifest.created_at, r.manifest.kind) == key]
                rank = self.catalog.upstream_first({m.dataset for m in own})
                groups[key] = sorted(own, key=lambda m: rank.index(m.dataset))
        return list(groups.values())

    def _settle_group(self, records: Sequence[ReleaseRecord]) -> list[Settlement]:
        manifests, begun = [r.manifest for r in records], any(r.state is ReleaseState.intent for r in records)
        if not begun and not self._given_up_in_vain(records):
            return []
        for manifest in manifests:
            # What a power cut has left of a commit keeps the whole table from being read.
            self.tables[manifest.dataset].set_aside_torn()
        versions = {m.release: self.tables[m.dataset].committed(m.release) for m in manifests}
        true = {release: version for release, version in versions.items() if version is not None}
        for manifest in manifests:
            if manifest.release in true:
                self._keep(manifest, true[manifest.release])
        finisher = Finisher(self.warehouse)
        if len(true) == len(manifests):
            self._finish(finisher, manifests, true)
            return [Settlement(m.release, m.dataset, SettlementKind.finalized) for m in manifests]
        unit = unit_or_none(self.ledger, manifests[0].unit)
        if not begun and unit is not None and unit.state is not UnitState.open:
            # It has been released anew since: what is left of the first time is for somebody to look at.
            return [Settlement(m.release, m.dataset, SettlementKind.stuck) for m in manifests]
        try:
            finisher.take_back([m for m in manifests if m.release in true], manifests)
        except PreconditionError:
            return [Settlement(m.release, m.dataset, SettlementKind.stuck) for m in manifests]
        fates = {True: SettlementKind.undone, False: SettlementKind.abandoned}
        return [Settlement(m.release, m.dataset, fates[m.release in true]) for m in manifests]

    def _finish(self, finisher: Finisher, manifests: Sequence[Manifest], versions: Mapping[str, int]) -> None:
        if manifests[0].kind is ReleaseKind.publish:
            finisher.publish(versions, manifests)
            finisher.seal(manifests)
            return
        for manifest in manifests:
            finisher.rollback(manifest, versions[manifest.release])

    def _keep(self, manifest: Manifest, version: int) -> None:
        # What counts from now on must be on the disk: whoever committed it may have died before.
        self.tables[manifest.dataset].commit(manifest, version - 1)

    def _bring_back(self, manifest: Manifest, version: int) -> None:
        self.ledger.intend(manifest)
        unit = unit_or_none(self.ledger, manifest.unit)
        state = UnitState.published if unit is None or unit.state is UnitState.open else unit.state
        if manifest.kind is ReleaseKind.rollback:
            Finisher(self.warehouse).rollback(manifest, version)
        else:
            self.ledger.finalize(manifest.release, version, manifest.created_at, state)
