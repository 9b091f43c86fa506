"""Whose a warehouse is: one ledger's, which the file `_owner` names; and whether its place keeps two writers apart."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.storage.layout import RELEASES, Layout
from backfill_assets.storage.location import Location, remove_all

OWNER_FILE: Final = "_owner"
_LEDGER: Final = "ledger"
_RESTORING: Final = "restoring"
_BACKUP: Final = "backup"
_INSTEAD: Final = "instead"
_WRITERS: Final = 16
_RACES: Final = 8
_TRIES: Final = 3
_SHOWN: Final = 200
_LOG: Final = "_delta_log"
_WAREHOUSE: Final = "warehouse"
_MARK: Final = re.compile(rf'"{_WAREHOUSE}":"([0-9a-f]+)"')
_ELSEWHERE: Final = (
    "look at BACKFILL_ASSETS_WAREHOUSE and AWS_ENDPOINT_URL, which all processes need alike, and whether its folder is mounted; "
    "a warehouse is moved with its file _owner, and a new one needs a new ledger"
)


class Owner(Protocol):
    """A ledger, as far as its warehouse is concerned."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """The place of its database, for messages."""
        ...

    @property
    def warehouse(self) -> str:
        """The mark in the file `_owner` of the warehouse that it has taken; empty if it has none yet."""
        ...

    @property
    def restoring(self) -> str:
        """The backup that it was filled from, as long as that restore has not ended; else empty."""
        ...

    def note_warehouse(self, mark: str) -> str:
        """Note which warehouse it has taken, unless it has one, and that no restore goes on; returns the mark that counts."""
        ...

    def knows_releases(self) -> bool:
        """Whether it has any release, finished or not."""
        ...


def require_owner(layout: Layout, ledger: Owner, *, writes: bool = False) -> None:
    """Refuse a warehouse of another ledger, and one that is not the one that this ledger has taken.

    Whoever only reads may look at a place where nothing is: the doctor says what is missing. Whoever `writes` may not.

    Raises:
        LayoutError: names the other ledger, and the file to remove if that is gone; or says that the ledger has another warehouse.
    """
    if (found := _owner(layout.warehouse)) is not None:
        _compare(layout.warehouse, found, ledger)
        return
    # Of all commands, also those that only read: a sweep is one of them, and would delete what the earlier ledger needs.
    _require_no_restore(layout.warehouse, ledger)
    if writes:
        _require_same_place(layout.warehouse, ledger)


@dataclass(frozen=True)
class Restoring:
    """Who is restoring what: the id of a ledger, its place for messages, the name of a backup."""

    ledger: str
    name: str
    backup: str


def begin_restore(layout: Layout, restoring: Restoring, instead: str, *, is_agreed: bool) -> str:
    """Keep everybody out of a warehouse until `end_restore`; returns the id of the ledger that is replaced, or empty.

    It may be nobody's, this ledger's, one whose restore of the same backup was cut off, or, if somebody agreed to that, that of the
    ledger that it is restored `instead` of.

    Raises:
        LayoutError: it belongs to another ledger, or another backup is being restored into it, or nobody agreed.
        StorageError: its place does not keep two writers apart, cannot be reached, or may not be written to.
    """
    warehouse = layout.warehouse
    known = _known(warehouse)
    if _RESTORING in known:
        if known.get(_BACKUP) != restoring.backup:
            _refuse_half(warehouse, known)
    elif known.get(_LEDGER, restoring.ledger) not in {restoring.ledger, instead}:
        _require_ledger(warehouse, canonical_json(known), restoring.ledger, restoring.name)
    elif known.get(_LEDGER, restoring.ledger) != restoring.ledger and not is_agreed:
        raise LayoutError(
            f"{warehouse} belongs to {known.get('database', 'another ledger')}, as its file {OWNER_FILE} says. If that ledger is "
            f"lost, or {restoring.name} is to replace it: --instead-of-its-ledger, and the warehouse refuses that ledger from then "
            "on. To restore beside it, set BACKFILL_ASSETS_WAREHOUSE to an empty place"
        )
    if not known:
        warehouse.make_folder()
        if warehouse.storage_options is not None:
            require_one_winner(warehouse)
    replaced = known.get(_INSTEAD, known.get(_LEDGER, ""))
    mark = {"database": restoring.name, _RESTORING: restoring.ledger, _BACKUP: restoring.backup, _INSTEAD: replaced}
    (warehouse / OWNER_FILE).write(canonical_json(mark))
    return replaced if replaced != restoring.ledger else ""


def is_being_restored(layout: Layout, ledger: str) -> bool:
    """Whether a restore into this ledger has begun and not ended."""
    return _known(layout.warehouse).get(_RESTORING) == ledger


def is_restored(layout: Layout, ledger: str, mark: str) -> bool:
    """Whether the warehouse is that of this ledger, under this mark."""
    known = _known(layout.warehouse)
    return (known.get(_LEDGER), known.get(_WAREHOUSE, "")) == (ledger, mark)


def end_restore(layout: Layout, ledger: str, name: str, mark: str) -> None:
    """Let the ledger that was restored use the warehouse, which is another one than before and has a mark of its own.

    Raises:
        LayoutError: somebody has ended the restore meanwhile, by removing its mark.
    """
    if not is_being_restored(layout, ledger):
        raise LayoutError(
            f"{layout.warehouse}: somebody has ended this restore, the file {OWNER_FILE} is no longer ours; nothing of it counts"
        )
    (layout.warehouse / OWNER_FILE).write(owner_mark(ledger, name, mark))


def take_warehouse(layout: Layout, ledger: Owner) -> None:
    """Make a warehouse without an owner the ledger's own; the first of two ledgers wins, and a ledger has one warehouse.

    A ledger that knows no release does not get a warehouse with releases, nor one that knows some an empty one.

    Raises:
        LayoutError: it belongs to another ledger, or is that of a ledger that is lost or elsewhere, or this ledger has another one.
        StorageError: its place does not keep two writers apart, cannot be reached, or may not be written to.
    """
    warehouse = layout.warehouse
    found = _owner(warehouse)
    if found is None:
        _require_no_restore(warehouse, ledger)
        if _has_releases(warehouse) and not ledger.knows_releases():
            raise LayoutError(
                f"{warehouse} has releases, and {ledger.name} knows none: if another ledger has them, name it in "
                "BACKFILL_ASSETS_LEDGER_URL; if that one is lost or was moved: backfill reconcile"
            )
        _require_same_place(warehouse, ledger)
        warehouse.make_folder()
        if warehouse.storage_options is not None:
            require_one_winner(warehouse)
        with suppress(FileExistsError):
            (warehouse / OWNER_FILE).create(
                owner_mark(ledger.id, ledger.name, ledger.warehouse or secrets.token_hex(8))
            )
        if (found := _owner(warehouse)) is None:
            raise StorageError(
                f"{warehouse / OWNER_FILE}: the store refused to create it, and it is not there; repeat the command"
            )
    _compare(warehouse, found, ledger)
    mark = _mark_in(found)
    if not mark and not _may_be_its_place(warehouse, ledger):
        raise LayoutError(f"{warehouse} is another warehouse (without a mark) than that of {ledger.name}: {_ELSEWHERE}")
    noted = ledger.note_warehouse(mark or secrets.token_hex(8))
    if mark:
        _require_mark(warehouse, mark, noted, ledger.name)
    else:
        # An older version of this project took it.
        (warehouse / OWNER_FILE).write(owner_mark(ledger.id, ledger.name, noted))


def _require_no_restore(warehouse: Location, ledger: Owner) -> None:
    """Refuse, in a warehouse without an owner, a ledger whose restore somebody has ended: that of before may go on."""
    if backup := ledger.restoring:
        raise LayoutError(given_up(warehouse, ledger.name, backup))


def given_up(warehouse: Location, name: str, backup: str) -> str:
    """Why a ledger of that name does not get the warehouse: its restore did not end, and the warehouse does not know of it."""
    return (
        f"the restore of backup {backup} into {name} was cut off, and {warehouse / OWNER_FILE} no longer tells of it: another "
        "ledger may go on with this warehouse, so give that database up. Use the warehouse's ledger, or restore into an empty "
        "one (BACKFILL_ASSETS_LEDGER_URL); or look at BACKFILL_ASSETS_WAREHOUSE"
    )


def _require_same_place(warehouse: Location, ledger: Owner) -> None:
    """Refuse a place where nothing is, if the ledger has a warehouse: its releases would be in two places."""
    # Another process may have taken it since somebody looked.
    if not _may_be_its_place(warehouse, ledger) and _owner(warehouse) is None:
        mark = owner_mark(ledger.id, ledger.name, ledger.warehouse)
        raise LayoutError(
            f"{warehouse} is nobody's and empty, and {ledger.name} already has a warehouse: {_ELSEWHERE}. If it is lost, restore "
            f"it from a backup, with its ledger; if this is to be its place, write {mark} into {warehouse / OWNER_FILE}"
        )


def _may_be_its_place(warehouse: Location, ledger: Owner) -> bool:
    if ledger.knows_releases():
        return _has_releases(warehouse)
    return not ledger.warehouse or _has_tables(warehouse)


def _require_mark(warehouse: Location, found: str, own: str, name: str) -> None:
    if own and found != own:
        raise LayoutError(
            f"{warehouse} is another warehouse (mark {found}) than that of {name} (mark {own}): {_ELSEWHERE}"
        )


def _mark_in(found: str) -> str:
    """The mark in the text of an owner; empty if it has none."""
    match = _MARK.search(found)
    return match[1] if match else ""


def _has_tables(warehouse: Location) -> bool:
    """Whether anything was landed there."""
    return any((table / _LOG).is_folder() for table in (warehouse / Layer.raw).listed())


def _has_releases(warehouse: Location) -> bool:
    """Whether any table was released to; an adopted one was, also if it is out of reach."""
    tables = (warehouse / Layer.published).listed()
    return any(table.target() is not None or (table / RELEASES).is_folder() for table in tables)


def require_one_winner(warehouse: Location) -> None:
    """Let threads race to create the same files; of each, one may succeed, as commits and manifests need it.

    Raises:
        StorageError: two succeeded, or none.
    """
    for _ in range(_TRIES):
        places = [warehouse / f"_probe_{secrets.token_hex(8)}" for _ in range(_RACES)]
        try:
            with ThreadPoolExecutor(_WRITERS) as pool:
                won = [sum(pool.map(_creates, [place] * _WRITERS)) for place in places]
            listed = {place.name for place in warehouse.listed()}
        finally:
            remove_all(warehouse, places)
        if (most := max(won)) > 1:
            raise StorageError(
                f"{warehouse}: {_WRITERS} writers created the same file at the same time, and {most} of them were told that "
                "they had: releases would be lost there. Use a store with conditional puts (docs/storage.md), or a folder"
            )
        if not {place.name for place, number in zip(places, won, strict=True) if number} <= listed:
            raise StorageError(
                f"{warehouse}: the store does not list files that were just created there, and commits would be missed. Use a "
                "store whose lists are complete at once, or a folder"
            )
        # An answer that is lost on its way leaves a race without a winner.
        if min(won):
            return
    raise StorageError(
        f"{warehouse}: {_WRITERS} writers created the same file {_TRIES} times, and none of them was told that it had: the "
        "store's answers are lost, or it refuses conditional puts. Look at AWS_ENDPOINT_URL and what is between; repeat it"
    )


def _creates(place: Location) -> bool:
    try:
        place.create("")
    except FileExistsError:
        return False
    return True


def _owner(warehouse: Location) -> str | None:
    try:
        return (warehouse / OWNER_FILE).text()
    except FileNotFoundError:
        return None


def _known(warehouse: Location) -> Mapping[str, str]:
    found = _owner(warehouse)
    if found is None:
        return {}
    try:
        return {str(key): str(value) for key, value in json.loads(found).items()}
    except (ValueError, AttributeError):
        raise LayoutError(
            f"{warehouse / OWNER_FILE} cannot be read ({found[:_SHOWN]!r}); if you know that no other ledger uses this warehouse, "
            "remove it"
        ) from None


def _refuse_half(warehouse: Location, known: Mapping[str, str]) -> NoReturn:
    backup = known.get(_BACKUP, "")
    raise LayoutError(
        f"{warehouse} is being restored from backup {backup}, or that was cut off: repeat it (backfill restore FROM --backup "
        f"{backup}). If the ledger that it had before is still there and is to go on, remove {warehouse / OWNER_FILE} instead, "
        f"and give {known.get('database', 'the new one')} up"
    )


def owner_mark(ledger: str, name: str, mark: str = "") -> str:
    """What the file says that names the ledger to which a folder belongs, with the mark of a warehouse."""
    return canonical_json({"database": name, _LEDGER: ledger, **({_WAREHOUSE: mark} if mark else {})})


def _compare(warehouse: Location, found: str, ledger: Owner) -> None:
    _require_ledger(warehouse, found, ledger.id, ledger.name)
    if mark := _mark_in(found):
        _require_mark(warehouse, mark, ledger.warehouse, ledger.name)


def _require_ledger(warehouse: Location, found: str, ledger: str, name: str) -> None:
    if f'"{_RESTORING}"' in found:
        raise LayoutError(
            f"{warehouse} is being restored, or its restore was cut off ({found[:_SHOWN]}): repeat backfill restore"
        )
    if f'"{_LEDGER}":"{ledger}"' not in found:
        raise LayoutError(
            f"{warehouse} belongs to another ledger ({found[:_SHOWN]}), and this is {name}: two ledgers would not know of each "
            "other's releases. Use that ledger (BACKFILL_ASSETS_LEDGER_URL), or another warehouse (BACKFILL_ASSETS_WAREHOUSE); if "
            f"that ledger is gone for good, remove {warehouse / OWNER_FILE}, and: backfill reconcile"
        )
