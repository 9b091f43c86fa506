"""Adopts a table that was there before: names its files as a baseline, where history begins, and gives it back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ArgumentError, PreconditionError
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import ReleaseRecord, UnitState
from backfill_assets.delta.adoptable import FoundTable, look_at, require_adoptable
from backfill_assets.delta.opening import opened
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.known_deliveries import require_another_table
from backfill_assets.release.finish import (
    WAIT,
    After,
    Checkpoint,
    Finisher,
    commit_alone,
    last_swaps,
    no_after,
    no_checkpoint,
    publish_locks,
    require_tables,
)
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.release.sweep import SIGNED_OFF
from backfill_assets.storage.adopted import give_back, require_free, take
from backfill_assets.storage.location import Location
from backfill_assets.storage.owner import take_warehouse
from backfill_assets.warehouse import OnWarehouse

LAST_SWEEP: Final = "before it is given back, run `backfill sweep`: nothing deletes files in _shadow of a plain table"
_Files = Mapping[dt.date, tuple[DataFile, ...]]


@dataclass(frozen=True)
class Adopted:
    """A finished baseline: its release, the version of the table, and the days whose files it names."""

    release: str
    dataset: str
    version: int
    days: tuple[dt.date, ...]
    files: int


def baseline_days(active: _Files, expected: _Files) -> tuple[DaySwap, ...]:
    """The days whose `active` files are not the `expected` ones; none for days that readers see as they were released."""
    days = (DaySwap(day, expected.get(day, ()), active.get(day, ())) for day in sorted({*active, *expected}))
    return tuple(swap for swap in days if {f.identity for f in swap.remove} != {f.identity for f in swap.add})


def changed_days(table: PublishedTable, records: Sequence[ReleaseRecord]) -> tuple[DaySwap, ...]:
    """The days of an adopted table of which readers see other files than its `records` brought."""
    return baseline_days(table.active(), {day: swap.add for day, (_, swap) in last_swaps(records).items()})


def require_sole_writer(dataset: str, table: PublishedTable, records: Sequence[ReleaseRecord]) -> None:
    """Refuse releases of an adopted table while a change of another writer waits for a person.

    The log may no longer have that writer's commits, so the files are compared, too.

    Raises:
        PreconditionError: names the newest commit, or the days.
    """
    foreign, changed = table.foreign(), tuple(swap.day for swap in changed_days(table, records))
    if foreign:
        newest = foreign[0]
        found = (
            f"its adopted table has {number_of(len(foreign), 'commit')} of another writer since its baseline, the newest is "
            f"version {newest.version} ({newest.operation}, {newest.at:%Y-%m-%d %H:%M} UTC)"
        )
    elif changed:
        found = f"readers of its adopted table see other files of {format_days(changed, most=3)} than releases brought"
    else:
        return
    raise PreconditionError(
        f"{dataset}: {found}. End that writer; if its rows are right, accept them: backfill adopt {dataset} --again "
        "--reason TEXT"
    )


def _has_baseline(records: Sequence[ReleaseRecord]) -> bool:
    return any(record.manifest.kind is ReleaseKind.baseline for record in records)


@dataclass(frozen=True)
class Adoption(OnWarehouse):
    """Adopts tables, accepts what another writer did to them, and gives them back; moves and copies no data."""

    wait: dt.timedelta = WAIT
    checkpoint: Checkpoint = no_checkpoint
    after: After = no_after

    def look(self, name: str, table: Location) -> FoundTable:
        """A Delta table that can become the published table of a dataset; changes nothing.

        Raises:
            DatasetError: the dataset is not loaded.
            ArgumentError: it is adopted already.
            PreconditionError: releases cannot be committed to this table, or the dataset had another one.
            SourceError: it is the source of the dataset.
            LayoutError: the dataset has another table, the table has another owner, or it cannot be reached from the warehouse.
        """
        require_tables(self.tables, (name,))
        lost, known = self.is_lost(name), self._finalized(name)
        found = look_at(table) if lost else require_adoptable(table, self.definitions[name])
        require_another_table(self.datasets[name], self.layout, table)
        require_free(self.layout, name, table)
        if lost:
            self._require_newest(name, known[0].manifest.release, table)
            return found
        if self.tables[name].adopted:
            self._require_no_baseline(name)
        if known and not _has_baseline(known) and not self.tables[name].exists():
            raise PreconditionError(
                f"{name} has releases of another table, the newest is {known[0].manifest.release}, and they would count for "
                f"days of {table}; adopt it under another name"
            )
        return found

    def is_lost(self, name: str) -> bool:
        """Whether a dataset has an adopted table with a baseline that the warehouse does not reach: link or mark is gone."""
        require_tables(self.tables, (name,))
        return self.tables[name].adopted and not self.layout.is_reachable(name) and _has_baseline(self._finalized(name))

    def put_back(self, name: str, table: Location) -> None:
        """Let the warehouse lead again to an adopted table that is lost to it; commits nothing, and is safe to repeat.

        Raises:
            Others: as `look`; nothing was written then.
        """
        with publish_locks(self.ledger, (name,), self.wait):
            self.look(name, table)
            take(self.layout, name, table)

    def adopt(self, name: str, table: Location, reason: str) -> Adopted:
        """Make a Delta table the published table of a dataset, where it is; continues what a crash interrupted.

        Raises:
            TableMovedError: its former writer is still at work.
            StorageError: the store of the table does not keep two writers apart.
            Others: as `look`; nothing was written then.
        """
        require_tables(self.tables, (name,))
        with publish_locks(self.ledger, (name,), self.wait):
            self.look(name, table)
            take_warehouse(self.layout, self.ledger)
            take(self.layout, name, table)
        self.checkpoint("take")
        with self._settled(name):
            self._require_no_baseline(name)
            self.tables[name].keep_long_enough()
            done = self._baseline(name, reason)
        self.after((done.release,))
        return done

    def accept(self, name: str, reason: str) -> Adopted:
        """Accept the commits of other writers as a new baseline, so that releases are made again.

        Days that are still as they were released keep their release, which can be rolled back as before.

        Raises:
            DatasetError: the dataset is not loaded.
            ArgumentError: the table is not adopted, or no other writer committed to it.
            PreconditionError: releases can no longer be committed to it, or its log has lost some.
        """
        require_tables(self.tables, (name,))
        with self._settled(name):
            self._require_adopted(name)
            if not self.tables[name].foreign() and not changed_days(self.tables[name], self.ledger.releases(name)):
                raise ArgumentError(f"{name}: no other writer committed to its table; there is nothing to accept")
            require_adoptable(self.layout.published_path(name), self.definitions[name])
            known = self._finalized(name)
            if known and self.tables[name].committed(known[0].manifest.release) is None:
                raise PreconditionError(
                    f"{name}: the log of its table does not have its newest release, {known[0].manifest.release}: it was restored "
                    f"or written again, so nothing is known of its days. Give it back (backfill unadopt {name}), and adopt it"
                )
            self.tables[name].keep_long_enough()
            done = self._baseline(name, reason)
        self.after((done.release,))
        return done

    def give_back(self, name: str) -> Location | None:
        """Give an adopted table back as a plain one, with the rows that readers see now; returns its folder.

        None if nothing led to it: then only its releases stop counting.

        Its releases can no longer be rolled back. Is safe to repeat.

        Raises:
            DatasetError: the dataset is not loaded.
            ArgumentError: the table is not adopted.
            PreconditionError: it is still needed; names everything that needs it.
        """
        require_tables(self.tables, (name,))
        self._require_adopted(name)
        reachable = self.layout.is_reachable(name)
        with self._settled(name) if reachable else publish_locks(self.ledger, (name,), self.wait):
            if needs := self.needs_of(name):
                raise PreconditionError(f"{name} cannot be given back yet: {'; '.join(needs)}; {LAST_SWEEP}")
            self.ledger.returned(name)
            self.checkpoint("returned")
            return give_back(self.layout, name, reachable=reachable)

    def needs_of(self, name: str) -> tuple[str, ...]:
        """What still needs an adopted table, each with its remedy: releases cannot be undone after it is given back.

        Raises:
            DatasetError: the dataset is not loaded.
            ArgumentError: the table is not adopted.
        """
        require_tables(self.tables, (name,))
        self._require_adopted(name)
        link = self.layout.link(name)
        replaced = link.target() is None and link.exists()
        built = sorted(other for other, upstreams in self.catalog.upstreams.items() if name in upstreams)
        found = [
            f"{other} is built from it, and would find no rows: take upstream.{name} out of "
            f"{self.datasets[other].folder / 'dataset.yaml'}"
            for other in built
        ]
        found += [f"{link} is no link but a copy, which would become the table: move it away"] if replaced else []
        found += [
            f"unit {unit.id} is open: publish it (backfill publish {unit.handle}) or give it up (backfill discard {unit.handle})"
            for unit in self.ledger.units(name, {UnitState.open})
        ]
        for campaign in self.ledger.campaigns():
            waits = campaign.unit and campaign.phase not in SIGNED_OFF and name in campaign.plan.targets
            if waits and self.ledger.unit(campaign.unit).state is UnitState.published:
                found.append(
                    f"campaign {campaign.id} is published and not signed off: sign it off (backfill sign-off {campaign.id}) or "
                    "roll it back"
                )
        return tuple(found)

    def _finalized(self, name: str) -> tuple[ReleaseRecord, ...]:
        return self.ledger.releases(name, states={ReleaseState.finalized})

    def _settled(self, name: str) -> AbstractContextManager[None]:
        return Reconcile(self.warehouse, self.after).settled((name,), {name}, self.wait)

    def _require_adopted(self, name: str) -> None:
        if not self.tables[name].adopted:
            raise ArgumentError(f"the table of {name} is not adopted; adopt one: backfill adopt {name} --from PATH")

    def _require_newest(self, name: str, newest: str, table: Location) -> None:
        if opened(table).transaction_version(newest) is None:
            raise PreconditionError(
                f"{name} is adopted, and the log of {table} does not have its newest release, {newest}: name its own table, or "
                f"restore it from a backup of that time; if it is lost for good: backfill unadopt {name}"
            )

    def _require_no_baseline(self, name: str) -> None:
        if _has_baseline(self._finalized(name)):
            raise ArgumentError(
                f"{name} is adopted already; to accept what another writer did to its table: backfill adopt {name} --again"
            )

    def _baseline(self, name: str, reason: str) -> Adopted:
        table = self.tables[name]
        version = table.version()
        manifest = self._manifest(name, changed_days(table, self.ledger.releases(name)), reason)
        committed = commit_alone(self.warehouse, manifest, version, self.checkpoint, self.after)
        Finisher(self.warehouse).baseline(manifest, committed)
        days = tuple(swap.day for swap in manifest.days)
        return Adopted(manifest.release, name, committed, days, len(manifest.added))

    def _manifest(self, name: str, days: tuple[DaySwap, ...], reason: str) -> Manifest:
        release = self.ids.new("r")
        return Manifest(
            release=release,
            kind=ReleaseKind.baseline,
            dataset=name,
            # No unit built these rows; each baseline stands alone.
            unit=release,
            by=self.identity.name(),
            created_at=self.clock.now(),
            evidence="",
            code_version="",
            days=days,
            reason=reason,
        )
