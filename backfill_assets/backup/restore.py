"""Restores a backup: into an empty ledger, and a warehouse that is empty or has lost something."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from backfill_assets.backup.folder import Backup, BackupFolder, SavedFiles, is_data, sizes_in
from backfill_assets.campaign.state import WORKING, Action, JournalEntry, Phase
from backfill_assets.core.errors import BackupError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import SHADOW
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import UnitState, shown_days
from backfill_assets.delta.opening import LOG, newest_commit
from backfill_assets.delta.reading import sealed_path
from backfill_assets.ledger import copies
from backfill_assets.ledger.open import open_ledger
from backfill_assets.release.finish import Checkpoint, no_checkpoint
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location, parents_up_to
from backfill_assets.storage.owner import (
    Restoring,
    begin_restore,
    end_restore,
    given_up,
    is_being_restored,
    is_restored,
)
from backfill_assets.system import Clock, Identity


@dataclass(frozen=True)
class Restored:
    """What was restored: the number of files that were missing in the warehouse, their size in bytes, and warnings."""

    backup: Backup
    files: int
    size: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RestoreBackup:
    """Restores backups into a warehouse and the ledger at a SQLAlchemy URL; only if told so, instead of a warehouse's ledger."""

    layout: Layout
    ledger_url: str
    clock: Clock
    identity: Identity
    checkpoint: Checkpoint = no_checkpoint
    instead_of_its_ledger: bool = False

    def run(self, root: Location, name: str = "") -> Restored:
        """Copy what the warehouse is missing, then fill the ledger; files that are there stay.

        It can be repeated if it is cut off. Until it is complete, nobody else can use the warehouse.

        Raises:
            BackupError: there is no such backup, it is damaged, it has been restored here already, or the warehouse has another
                file in place of one of it.
            LayoutError: the warehouse belongs to another ledger than that of the backups, or nobody said that it is to replace it.
            LedgerError: the ledger is not empty, or cannot be opened, or a newer version of this project saved it.
            StorageError: a place cannot be read or written, or a file of the backup is damaged.
        """
        folder = BackupFolder(root)
        backup = folder.chosen(name)
        saved = folder.files_of(backup.id)
        if saved is None:
            raise BackupError(
                f"{root}: the list of files of backup {backup.id} is damaged; choose another one (--backup)"
            )
        folder.require_whole(backup.id, saved)
        with TemporaryDirectory() as scratch:
            file = Path(scratch) / "ledger.db"
            OnDisk(file).copy_from(folder.ledger(backup.id), saved.ledger)
            copies.migrated(file)
            there = self._there(backup)
            missing, last = self._missing(backup, saved, there), _last_attempt(there)
            newer = self._newer(backup)
            ledger = copies.require_empty(self.ledger_url, backup.id)
            is_filled = ledger.filled_from == backup.id
            if is_filled and not is_being_restored(self.layout, ledger.id):
                self._refuse_again(folder, ledger)
            who = Restoring(ledger.id, ledger.name, backup.id)
            replaced = begin_restore(self.layout, who, folder.owner(), is_agreed=self.instead_of_its_ledger)
            self.checkpoint("begin")
            self._copy(folder, saved, missing)
            self.checkpoint("files")
            mark = ledger.warehouse if is_filled else secrets.token_hex(8)
            if not is_filled:
                copies.restore(file, self.ledger_url, backup.id, backup.at, last, mark, replaced)
            self.checkpoint("ledger")
            warnings = [
                f"decisions after {backup.at:%Y-%m-%d %H:%M:%S} UTC are lost, such as withdrawals, holds and approvals",
                *(f"{place} is newer than the backup: what came after it is new to the ledger" for place in newer),
                *self._at_rest(backup, newer),
            ]
            end_restore(self.layout, ledger.id, ledger.name, mark)
            self.checkpoint("owner")
            self._note_the_end(mark)
            self.checkpoint("noted")
            warnings += self._handed_over(folder, ledger, replaced)
        return Restored(backup, len(missing), sum(saved.files[path].size for path in missing), tuple(warnings))

    def _refuse_again(self, folder: BackupFolder, ledger: copies.TargetLedger) -> NoReturn:
        """Say that this backup is in the ledger; completes what a restore that was cut off at its end has left."""
        warnings: list[str] = []
        if is_restored(self.layout, ledger.id, ledger.warehouse):
            self._note_the_end(ledger.warehouse)
            warnings = self._handed_over(folder, ledger, ledger.replaced)
        elif ledger.restoring:
            raise BackupError(given_up(self.layout.warehouse, ledger.name, ledger.restoring))
        raise BackupError(
            f"backup {ledger.filled_from} has been restored into {ledger.name} already; next: backfill reconcile and doctor"
            + "".join(f"; {text}" for text in warnings)
        )

    def _handed_over(self, folder: BackupFolder, ledger: copies.TargetLedger, replaced: str) -> list[str]:
        """Let the ledger go on with the backups of the one that it replaced, if they are there; returns what speaks against it."""
        if not replaced or folder.owner() != replaced:
            return []
        warehouse = self.layout.warehouse
        if other := folder.other_warehouse(warehouse):
            return [f"the next backups need a new folder: {folder.root} has those of the warehouse {other}"]
        try:
            folder.hand_over(ledger.id, ledger.name, warehouse)
        except StorageError as error:
            return [f"the next backups need a new folder: {folder.root} cannot be written ({error})"]
        return []

    def _note_the_end(self, mark: str) -> None:
        with closing(open_ledger(self.ledger_url, self.clock)) as ledger:
            ledger.note_warehouse(mark)

    def _there(self, backup: Backup) -> Mapping[str, int]:
        """The size of each file of these tables that the warehouse has, by place and path."""
        homes = {table.place: self.layout.at(table.place) for table in backup.tables}
        return {f"{place}/{path}": size for place, home in homes.items() for path, size in sizes_in(home).items()}

    def _missing(self, backup: Backup, saved: SavedFiles, there: Mapping[str, int]) -> list[str]:
        """The files to copy, those of logs last: a log names no file that is not there yet.

        Raises:
            BackupError: the warehouse has another file in place of one of the backup; nothing of it is overwritten.
        """
        found = [path for path in saved.files if path in there]
        other = [
            path
            for path in found
            if there[path] != saved.files[path].size
            or (not is_data(path) and self._at(path).sha256() != saved.files[path].sha256)
        ]
        if other:
            raise BackupError(
                f"{self._at(min(other))} is another file than in backup {backup.id}; {number_of(len(other), 'file')} differ. "
                "Nothing was restored, and nothing is overwritten: restore into an empty warehouse (BACKFILL_ASSETS_WAREHOUSE)"
            )
        # A shadow whose log was sealed since then keeps it sealed.
        wanted = [path for path in saved.files if path not in there and sealed_path(path) not in there]
        return sorted(wanted, key=lambda path: (f"/{LOG}/" in path, path))

    def _copy(self, folder: BackupFolder, saved: SavedFiles, missing: list[str]) -> None:
        def copy(path: str) -> Location:
            target = self._at(path)
            target.copy_from(folder.file(saved.files[path]), saved.files[path])
            return target

        warehouse = self.layout.warehouse
        busy = warehouse if warehouse.storage_options is not None else folder.root
        for part in (False, True):
            written = busy.each(copy, [path for path in missing if (f"/{LOG}/" in path) is part])
            # A power cut must not lose the folders of what the ledger will know.
            for place in {above for one in written for above in (one.parent, *_above(one, warehouse))}:
                place.sync()

    def _newer(self, backup: Backup) -> tuple[str, ...]:
        """The tables that have commits after those of the backup."""
        newest = {table.place: newest_commit(self.layout.at(table.place)) for table in backup.tables}
        return tuple(table.place for table in backup.tables if newest[table.place] > table.version)

    def _at_rest(self, backup: Backup, newer: Collection[str]) -> Iterator[str]:
        """Let nothing continue by itself, and nothing be published that was built before deliveries that only raw knows."""
        reason = f"restored from backup {backup.id}"
        with closing(open_ledger(self.ledger_url, self.clock)) as ledger:
            for campaign in ledger.campaigns():
                if campaign.phase in WORKING:
                    entry = JournalEntry(campaign.id, self.clock.now(), self.identity.name(), Action.paused, reason)
                    ledger.change_campaign(replace(campaign, phase=Phase.paused), WORKING, entry)
                    yield f"campaign {campaign.id} is paused; continue it with: backfill resume {campaign.id}"
            for unit in ledger.units(states={UnitState.open}):
                if any(f"{Layer.raw}/{name}" in newer for name in unit.targets):
                    ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
                    yield f"unit {unit.id} is discarded, since raw has later deliveries; launch again: {shown_days(unit.days)}"

    def _at(self, path: str) -> Location:
        layer, name, below = path.split("/", 2)
        return self.layout.at(f"{layer}/{name}").below(below)


def _above(place: Location, warehouse: Location) -> Iterator[Location]:
    with suppress(ValueError):  # an adopted table is elsewhere
        yield from parents_up_to(place, warehouse)


def _last_attempt(there: Collection[str]) -> int:
    """The highest number of an attempt whose shadow the warehouse has."""
    paths = (path.split("/") for path in there)
    shadows = (parts[4] for parts in paths if len(parts) > 5 and parts[0] == Layer.published and parts[2] == SHADOW)  # noqa: PLR2004
    return max((int(number) for number in shadows if number.isdecimal()), default=0)
