"""Brings back releases that the log has and the ledger does not: it was restored from a backup, or is a new one."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from backfill_assets.core.errors import BackfillError, LedgerError
from backfill_assets.core.release import UNDO, Manifest, ReleaseKind
from backfill_assets.core.unit import UnitState
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.finish import (
    NO_WAIT,
    Finisher,
    Settlement,
    SettlementKind,
    is_undo,
    publish_locks,
    unit_or_none,
)
from backfill_assets.warehouse import OnWarehouse

_Key = tuple[str, dt.datetime]
"""The unit and the time of a publication."""


@dataclass(frozen=True)
class Rebuild(OnWarehouse):
    """Brings back releases that are committed and have a manifest, but are missing from the ledger."""

    def run(self, datasets: Collection[str], wait: dt.timedelta = NO_WAIT) -> tuple[Settlement, ...]:
        """Bring back the lost releases of these tables; skips a table whose lock is not free within `wait`.

        If only a part of a publication counts, its members become intents, which have to be settled, and before that the
        other tables of the publication are rebuilt, too.

        Raises:
            LedgerError: the lock of such another table is not free within `wait`.
            LayoutError, StorageError, PreconditionError: a table cannot be read.
        """
        publications = _Publications(self.tables)
        settlements, halves, names = list[Settlement](), list[Sequence[Manifest]](), list(datasets)
        for name in names:
            lost = self._unknown(name, self.tables[name].manifests())
            if not lost:
                continue
            try:
                with publish_locks(self.ledger, [name], wait):
                    # Look again: the ledger may know a release by now that another process was just making.
                    settled, found = self._rebuilt(name, self._unknown(name, lost), publications)
            except LedgerError:
                if name not in datasets:
                    raise
                settlements += [Settlement(m.release, name, SettlementKind.busy) for m in lost]
                continue
            settlements += settled
            halves += found
            # The loop goes on with them.
            names += sorted({m.dataset for half in found for m in half} - set(names))
        for half in halves:
            known = self.ledger.known_releases([m.release for m in half])
            for manifest in half:
                if manifest.release not in known:
                    self.ledger.intend(manifest)
        return tuple(settlements)

    def undo_of(self, manifest: Manifest) -> None:
        """Bring back the automatic undo of a release if it was committed."""
        table, undo = self.tables[manifest.dataset], manifest.release + UNDO
        if undo not in self.ledger.known_releases([undo]) and table.committed(undo) is not None:
            undos = [m for m in table.manifests() if m.release == undo]
            self._rebuilt(manifest.dataset, undos, _Publications(self.tables))

    def _unknown(self, name: str, manifests: Sequence[Manifest]) -> list[Manifest]:
        known = {r.manifest.release for r in self.ledger.releases(name)} if manifests else set()
        return sorted(
            (m for m in manifests if m.dataset == name and m.release not in known), key=lambda m: m.created_at
        )

    def _rebuilt(
        self, name: str, lost: Sequence[Manifest], publications: _Publications
    ) -> tuple[list[Settlement], list[Sequence[Manifest]]]:
        """What was brought back, and the members of each publication of which only a part counts."""
        table = self.tables[name]
        versions = table.committed_among(m.release for m in lost) if lost else {}
        committed = [m for m in lost if m.release in versions]
        genuine = {m.release: m for m in committed if table.manifest_at(versions[m.release], m.release) in {"", m.hash}}
        # Their new numbers say which release covers which from now on.
        in_order = [genuine[release] for release in sorted(genuine, key=versions.__getitem__)]
        if in_order:
            # Syncing the first one to the disk also syncs all later commits.
            Finisher(self.warehouse).keep(in_order[0], versions[in_order[0].release])
        undone = {m.undoes for m in in_order if is_undo(m)}
        halves = dict[str, Sequence[Manifest]]()
        for number, manifest in enumerate(in_order, 1):
            others = () if manifest.release in undone else self._half(manifest, publications)
            if others and not _covers(in_order[number:], manifest):
                halves[manifest.release] = (manifest, *others)
            else:
                shown = manifest.release not in undone and not others
                self._bring_back(manifest, versions[manifest.release], shown=shown)
        kinds = {True: SettlementKind.rebuilt, False: SettlementKind.forged}
        found = [Settlement(m.release, name, kinds[m.release in genuine]) for m in committed if m.release not in halves]
        return found, list(halves.values())

    def _half(self, manifest: Manifest, publications: _Publications) -> Sequence[Manifest]:
        """The other members of its publication if one of their tables does not show it; empty if all do."""
        unit = unit_or_none(self.ledger, manifest.unit)
        return publications.half(manifest, None if unit is None else unit.targets)

    def _bring_back(self, manifest: Manifest, version: int, *, shown: bool) -> None:
        self.ledger.intend(manifest)
        unit = unit_or_none(self.ledger, manifest.unit)
        state = UnitState.published if unit is None or unit.state is UnitState.open else unit.state
        if manifest.kind is ReleaseKind.rollback:
            Finisher(self.warehouse).rollback(manifest, version)
        else:
            self.ledger.finalize(manifest.release, version, manifest.created_at, state if shown else None)


def _covers(later: Sequence[Manifest], manifest: Manifest) -> bool:
    """Whether later commits changed all days of a release."""
    return {swap.day for swap in manifest.days} <= {swap.day for after in later for swap in after.days}


class _Publications:
    """The publications whose manifests lie beside the tables; reads each table once."""

    def __init__(self, tables: Mapping[str, PublishedTable]) -> None:
        self._tables = tables
        self._stored, self._shown = cache(self._read), cache(self._look)

    def half(self, manifest: Manifest, targets: Collection[str] | None) -> Sequence[Manifest]:
        """The other members of a publication if a table does not show any of its own; else none.

        `targets` are the unit's datasets, if the ledger knows it; else a table that cannot be read counts as none of them.
        """
        if manifest.kind is not ReleaseKind.publish:
            return ()
        names = self._tables.keys() if targets is None else targets & self._tables.keys()
        members = {
            name: self._members(name, manifest, needed=targets is not None) for name in names - {manifest.dataset}
        }
        if all(self._shown(name) & {m.release for m in own} for name, own in members.items() if own):
            return ()
        return tuple(m for own in members.values() for m in own)

    def _members(self, name: str, manifest: Manifest, *, needed: bool) -> Sequence[Manifest]:
        stored = self._stored(name)
        if isinstance(stored, Exception):
            if needed:
                raise stored
            return ()
        return stored.get((manifest.unit, manifest.created_at), ())

    def _read(self, name: str) -> Mapping[_Key, Sequence[Manifest]] | BackfillError | OSError:
        found = defaultdict[_Key, list[Manifest]](list)
        try:
            for manifest in self._tables[name].manifests():
                if manifest.kind is ReleaseKind.publish and manifest.dataset == name:
                    found[manifest.unit, manifest.created_at].append(manifest)
        except (BackfillError, OSError) as error:
            return error
        return found

    def _look(self, name: str) -> frozenset[str]:
        """The publications that were committed in a table, and were not undone by themselves."""
        stored = self._stored(name)
        releases = () if isinstance(stored, Exception) else [m.release for own in stored.values() for m in own]
        found = self._tables[name].committed_among([*releases, *(release + UNDO for release in releases)])
        return frozenset(release for release in releases if release in found and release + UNDO not in found)
