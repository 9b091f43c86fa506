"""The folder of the backups of one ledger: each file is stored once, by the SHA-256 of its bytes."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from backfill_assets.core.canonical import canonical_json, from_json
from backfill_assets.core.errors import BackupError
from backfill_assets.core.text import number_of
from backfill_assets.delta.opening import LOG
from backfill_assets.storage.location import Copied, Location, parents_up_to, remove_all

_OWNER: Final = "_backups.json"
"""Names the ledger whose backups these are, and the place of its warehouse; folders of older versions lack the place."""
_LEDGER_ID: Final = "ledger"
_WAREHOUSE: Final = "warehouse"
_BACKUPS: Final = "backups"
_FILES: Final = "files"
_LEDGER: Final = "ledger.db"
_LISTED: Final = "files.json"
_SUMMARY: Final = "backup.json"
_NAME: Final = re.compile(r"b_[0-9a-z_]+")
_UNIQUE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}[^/]*$")
_SHOWN: Final = 20
_MOST: Final = 200


@dataclass(frozen=True)
class SavedTable:
    """A table in a backup: its place such as `raw/sales`, and its newest version there; -1 if it has no commit."""

    place: str
    version: int


@dataclass(frozen=True)
class Backup:
    """What a backup is of.

    Attributes:
        id: its name.
        at: the moment that ledger and tables are of, in UTC.
        by: who made it.
        tables: raw and published tables, by place.
        files: the number of files, including those that it shares with others.
        size: their size in bytes.
    """

    id: str
    at: dt.datetime
    by: str
    tables: tuple[SavedTable, ...]
    files: int
    size: int

    def __str__(self) -> str:
        """One line of text."""
        return f"{self.id}, of {self.at:%Y-%m-%d %H:%M:%S} UTC by {self.by}"


@dataclass(frozen=True)
class SavedFiles:
    """The files of a backup, by place and path such as `raw/sales/day=2024-03-01/part-0.parquet`, and its copy of the ledger."""

    files: Mapping[str, Copied]
    ledger: Copied


_Record = TypeVar("_Record", Backup, SavedFiles)


@dataclass(frozen=True)
class BackupFolder:
    """A folder of backups; it does not have to exist."""

    root: Location

    def claim(self, ledger: str, name: str, warehouse: Location) -> None:
        """Make an empty folder that of the backups of a ledger and its warehouse; `name` is the ledger's database, for messages.

        Raises:
            BackupError: it has backups of another ledger, or other files.
        """
        mark = self.root / _OWNER
        if not mark.is_there():
            try:
                taken = self.root.is_there() or next(self.root.listed(), None) is not None
                if not taken:
                    self.root.make_folder()
            except OSError as error:
                raise BackupError(f"{self.root} cannot hold backups ({error}); name another folder") from error
            if taken:
                raise BackupError(f"{self.root} has files, and is no folder of backups; name an empty folder")
            with suppress(FileExistsError):  # another command was faster; whose it is comes next
                mark.create(_owner_mark(ledger, name, warehouse))
        if self.owner() != ledger:
            raise BackupError(
                f"{self.root} has backups of another ledger ({mark.text()}), and this is {name}; name another folder"
            )

    def owner(self) -> str:
        """The id of the ledger whose backups these are; empty if there are none."""
        return self._noted(_LEDGER_ID)

    def other_warehouse(self, warehouse: Location) -> str:
        """The place of the warehouse whose backups these are, if it is not this one; empty if an older version noted none."""
        noted = self._noted(_WAREHOUSE)
        return noted if noted != _place_of(warehouse) else ""

    def _noted(self, key: str) -> str:
        mark = self.root / _OWNER
        try:
            noted = json.loads(mark.text()) if mark.is_there() else {_LEDGER_ID: ""}
            return str({_WAREHOUSE: "", **noted}[key])
        except (ValueError, KeyError, TypeError):
            raise BackupError(
                f"{mark} cannot be read; it names the ledger whose backups these are: write it again, or name another folder"
            ) from None

    def hand_over(self, ledger: str, name: str, warehouse: Location) -> None:
        """Make it the folder of this ledger and warehouse: a backup was restored into it, or its warehouse has moved."""
        mark, wanted = self.root / _OWNER, _owner_mark(ledger, name, warehouse)
        if mark.text() != wanted:
            mark.write(wanted)

    def all(self) -> tuple[Backup, ...]:
        """All complete backups whose description can be read, newest first."""
        found = (_read(place, Backup) for place in (self.root / _BACKUPS).fitting(f"*/{_SUMMARY}"))
        readable = [backup for backup in found if backup is not None]
        return tuple(sorted(readable, key=lambda backup: (backup.at, backup.id), reverse=True))

    def chosen(self, name: str = "") -> Backup:
        """The backup of that name; the newest by default.

        Raises:
            BackupError: there is no such backup; names those that there are.
        """
        known = self.all()
        found = next((backup for backup in known if name in ("", backup.id)), None)
        if found is None:
            there = ", ".join(backup.id for backup in known[:_SHOWN])
            what = f"no backup {name}; it has: {there}" if there else "no complete backup; make one: backfill backup"
            raise BackupError(f"{self.root} has {what}")
        return found

    def files_of(self, backup: str) -> SavedFiles | None:
        """The files of a backup; None if its list cannot be read."""
        return _read(self._of(backup) / _LISTED, SavedFiles)

    def file(self, saved: Copied) -> Location:
        """Where a file with these bytes is."""
        return self.root / _FILES / _path(saved)

    def ledger(self, backup: str) -> Location:
        """Where the ledger of a backup is."""
        return self._of(backup) / _LEDGER

    def known(self) -> Mapping[str, Copied]:
        """The files of all backups by path, those of the newest one first, as far as they are stored."""
        sizes, known = sizes_in(self.root / _FILES), dict[str, Copied]()
        for backup in reversed(self.all()):
            if (saved := self.files_of(backup.id)) is not None:
                known |= saved.files
        return {path: one for path, one in known.items() if sizes.get(_path(one)) == one.size}

    def require_whole(self, backup: str, saved: SavedFiles) -> None:
        """Refuse a backup that has lost files.

        Raises:
            BackupError: names the first file that is missing or has another size.
        """
        sizes = sizes_in(self.root / _FILES)
        lost = sorted(path for path, one in saved.files.items() if sizes.get(_path(one)) != one.size)
        if lost:
            first = saved.files[lost[0]]
            raise BackupError(
                f"{self.root}: backup {backup} is damaged: {self.file(first)}, which is {lost[0]}, should have {first.size:,} "
                f"bytes and has {sizes.get(_path(first), 0):,}; {number_of(len(lost), 'file')} of it are like that. Choose another "
                "backup (--backup), or bring these files back"
            )

    def undescribed(self) -> tuple[Location, ...]:
        """The descriptions of complete backups that cannot be read; such a backup cannot be restored."""
        places = (self.root / _BACKUPS).fitting(f"*/{_SUMMARY}")
        return tuple(sorted(place for place in places if _read(place, Backup) is None))

    def damaged(self, backups: Iterable[Backup]) -> Mapping[str, tuple[Location, ...]]:
        """The files that are gone, cannot be read, or have other bytes than were saved, by the backups that need them.

        Reads every byte; a file of several backups is read once.
        """
        needed: dict[str, dict[Location, Copied | None]] = {}
        for backup in backups:
            saved = None
            with suppress(OSError):
                saved = self.files_of(backup.id)
            if saved is None:
                needed[backup.id] = {self._of(backup.id) / _LISTED: None}
                continue
            files = {self.file(one): one for one in saved.files.values()}
            needed[backup.id] = {**files, self.ledger(backup.id): saved.ledger}
        stored = {place: expected for files in needed.values() for place, expected in files.items()}
        whole = dict(zip(stored, self.root.each(_is_whole, stored.items()), strict=True))
        return {name: tuple(sorted(place for place in files if not whole[place])) for name, files in needed.items()}

    def complete(self, backup: Backup, saved: SavedFiles) -> None:
        """Write the list of files of a backup, and last what makes it count."""
        (self._of(backup.id) / _LISTED).write(canonical_json(saved))
        # A power cut must not lose the folders of what counts.
        for folder in (self.root / _FILES, self._of(backup.id), self.root / _BACKUPS, self.root):
            if folder.is_folder():
                folder.sync()
        (self._of(backup.id) / _SUMMARY).write(canonical_json(backup))

    def keep(self, most: int, made: str) -> tuple[str, ...]:
        """Remove all backups but `made` and the newest others, `most` in all, and files of none; returns those removed.

        Backups that are not complete, or cannot be read, are removed, too.
        """
        saved = {one.id: found for one in self.all() if (found := self.files_of(one.id)) is not None}
        kept = {made, *[name for name in saved if name != made][: most - 1]}
        places = sorted(place for place in (self.root / _BACKUPS).listed() if _NAME.fullmatch(place.name))
        gone = [place for place in places if place.name not in kept and place.is_folder()]
        for place in gone:
            # What makes it count goes first: half a backup is none.
            (place / _SUMMARY).remove()
            self._remove(place, [file.path for file in place.files(place)])
        needed = {_path(one) for name in kept for one in saved[name].files.values()}
        self._remove(self.root / _FILES, sizes_in(self.root / _FILES).keys() - needed)
        return tuple(place.name for place in gone)

    def _remove(self, home: Location, paths: Iterable[str]) -> None:
        places = [home / path for path in paths]
        folders = {folder for place in places for folder in parents_up_to(place, home)}
        remove_all(home, places, folders)

    def _of(self, backup: str) -> Location:
        return self.root / _BACKUPS / backup


def _owner_mark(ledger: str, name: str, warehouse: Location) -> str:
    return canonical_json({"database": name, _LEDGER_ID: ledger, _WAREHOUSE: _place_of(warehouse)})


def _place_of(warehouse: Location) -> str:
    return str(warehouse.resolved())


def _path(saved: Copied) -> str:
    return f"{saved.sha256[:2]}/{saved.sha256}"


def _is_whole(stored: tuple[Location, Copied | None]) -> bool:
    place, expected = stored
    try:
        state, digest = place.content()
    except OSError:
        return False
    return expected == Copied(state.size, digest)


def is_data(path: str) -> bool:
    """Whether this is a data file whose name is never used again, so that path and size tell what it is."""
    return path.endswith(".parquet") and f"/{LOG}/" not in path and _UNIQUE.search(path) is not None


def sizes_in(folder: Location) -> Mapping[str, int]:
    """The size of each file below a folder by path; empty if there is no folder."""
    return {file.path: file.size for file in folder.files(folder)} if folder.is_folder() else {}


def _read(place: Location, kind: type[_Record]) -> _Record | None:
    try:
        return from_json(kind, place.text())
    except (FileNotFoundError, ValueError):
        return None
