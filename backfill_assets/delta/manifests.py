"""Manifests of releases, stored beside their table."""

from __future__ import annotations

from contextlib import suppress

from backfill_assets.core.canonical import from_json
from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.core.release import Manifest
from backfill_assets.delta.reading import plain_path
from backfill_assets.storage.layout import RELEASES
from backfill_assets.storage.location import Location


def stored(table: Location) -> tuple[Location, ...]:
    """The files of all manifests, by name of their release."""
    return tuple(sorted((table / RELEASES).fitting("[!.]*.json")))


def read(path: Location) -> Manifest:
    """The manifest in a file.

    Raises:
        PreconditionError: it cannot be read.
    """
    try:
        return from_json(Manifest, path.text())
    except ValueError as error:
        raise PreconditionError(
            f"{path}: the manifest cannot be read ({error}); restore the file from a backup"
        ) from error


def store(table: Location, manifest: Manifest) -> None:
    """Write the manifest of a new release, completely or not at all; safe to repeat.

    Raises:
        StorageError: the release has another manifest there, which is never replaced; or it cannot be written.
    """
    place, text = _place(table, manifest), manifest.to_json()
    try:
        place.create(text)
    except FileExistsError:
        # A store may have written it, and its answer was lost; or refuse it, although there is none.
        with suppress(FileNotFoundError):
            if place.text() == text:
                return
        raise StorageError(
            f"{place}: the manifest of release {manifest.release} cannot be written, because another one is or was there; "
            "find out who else writes there, and repeat the command: it takes another name"
        ) from None


def restore(table: Location, manifest: Manifest) -> None:
    """Write a manifest again, in place of a damaged one or of one that nothing was committed with."""
    _place(table, manifest).write(manifest.to_json())


def _place(table: Location, manifest: Manifest) -> Location:
    return table / RELEASES / plain_path(f"{manifest.release}.json")
