"""Whose a warehouse is: one ledger's, which the file `_owner` names; and whether its place keeps two writers apart."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

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
_SHOWN: Final = 200


def require_owner(layout: Layout, ledger: str, name: str) -> None:
    """Refuse a warehouse of another ledger; `ledger` is the id of ours, and `name` the place of its database for messages.

    Raises:
        LayoutError: names the other ledger, and the file to remove if that is gone.
    """
    if (found := _owner(layout.warehouse)) is not None:
        _compare(layout.warehouse, found, ledger, name)


@dataclass(frozen=True)
class Restoring:
    """Who is restoring what: the id of a ledger, its place for messages, the name of a backup."""

    ledger: str
    name: str
    backup: str


def begin_restore(layout: Layout, restoring: Restoring, instead: str) -> str:
    """Keep everybody out of a warehouse until `end_restore`; returns the id of the ledger that is replaced, or empty.

    It may be nobody's, this ledger's, that of the ledger that it is restored `instead` of, or one whose restore of the same backup
    was cut off.

    Raises:
        LayoutError: it belongs to another ledger, or another backup is being restored into it.
        StorageError: its place does not keep two writers apart, cannot be reached, or may not be written to.
    """
    warehouse = layout.warehouse
    known = _known(warehouse)
    if _RESTORING in known:
        if known.get(_BACKUP) != restoring.backup:
            _refuse_half(warehouse, known)
    elif known.get(_LEDGER, restoring.ledger) not in {restoring.ledger, instead}:
        _compare(warehouse, canonical_json(known), restoring.ledger, restoring.name)
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


def end_restore(layout: Layout, ledger: str, name: str) -> None:
    """Let the ledger that was restored use the warehouse."""
    (layout.warehouse / OWNER_FILE).write(owner_mark(ledger, name))


def take_warehouse(layout: Layout, ledger: str, name: str, knows_releases: Callable[[], bool] = lambda: True) -> None:
    """Make a warehouse without an owner the ledger's own; the first of two ledgers wins.

    A ledger that knows no release does not get a warehouse with releases; it is only asked if there is no owner.

    Raises:
        LayoutError: it belongs to another ledger, or is that of a ledger that is lost or elsewhere.
        StorageError: its place does not keep two writers apart, cannot be reached, or may not be written to.
    """
    warehouse = layout.warehouse
    found = _owner(warehouse)
    if found is None:
        if _has_releases(warehouse) and not knows_releases():
            raise LayoutError(
                f"{warehouse} has releases, and {name} knows none: if another ledger has them, name it in "
                "BACKFILL_ASSETS_LEDGER_URL; if that one is lost or was moved: backfill reconcile"
            )
        warehouse.make_folder()
        if warehouse.storage_options is not None:
            require_one_winner(warehouse)
        with suppress(FileExistsError):
            (warehouse / OWNER_FILE).create(owner_mark(ledger, name))
        found = _owner(warehouse) or ""
    _compare(warehouse, found, ledger, name)


def _has_releases(warehouse: Location) -> bool:
    """Whether any table was released to; an adopted one was, also if it is out of reach."""
    tables = (warehouse / Layer.published).listed()
    return any(table.target() is not None or (table / RELEASES).is_folder() for table in tables)


def require_one_winner(warehouse: Location) -> None:
    """Let threads race to create the same files; of each, one may succeed, as commits and manifests need it.

    Raises:
        StorageError: two succeeded, or none.
    """
    places = [warehouse / f"_probe_{secrets.token_hex(8)}" for _ in range(_RACES)]
    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            won = [sum(pool.map(_creates, [place] * _WRITERS)) for place in places]
    finally:
        remove_all(warehouse, places)
    if set(won) != {1}:
        raise StorageError(
            f"{warehouse}: {_WRITERS} writers created the same file at the same time, and {_winners(won)} of them were told that "
            "they had: releases would be lost there. Use a store with conditional puts (docs/storage.md), or a folder"
        )


def _winners(won: Sequence[int]) -> int:
    return next(number for number in won if number != 1)


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
        f"{backup}). If its ledger of before is still there and is to go on, remove {warehouse / OWNER_FILE} instead"
    )


def owner_mark(ledger: str, name: str) -> str:
    """What the file says that names the ledger to which a folder belongs."""
    return canonical_json({"database": name, _LEDGER: ledger})


def _compare(warehouse: Location, found: str, ledger: str, name: str) -> None:
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
