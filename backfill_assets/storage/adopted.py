"""Adopted tables: published tables that stay where they were; a link in the warehouse leads to each, and a mark in it back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.core.release import SHADOW
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import OWNER, RELEASES, Layout, mounts_here, refused_mount
from backfill_assets.storage.location import move_into, sync

_RETURNED = "_returned_releases"
"""Folder of a table that was given back, for the manifests of its former releases."""


def take(layout: Layout, dataset: str, folder: Path) -> None:
    """Make an existing table the published table of a dataset, where it is; is safe to repeat.

    Raises:
        LayoutError: the dataset has another table, the folder overlaps with the warehouse or cannot be written to, or its
            table belongs to another warehouse or dataset.
    """
    link, target, home = path_of(layout.link(dataset)), folder.resolve(), path_of(layout.warehouse).resolve()
    if home.is_relative_to(target) or target.is_relative_to(home):
        raise LayoutError(f"{target}: a table in the warehouse, or around it, cannot be adopted; move it out first")
    if os.path.lexists(link) and link.resolve() != target:
        raise LayoutError(f"{dataset} has a published table, {link.resolve()}; adopt {target} under another name")
    if reason := refused_mount(target, mounts_here()):
        raise LayoutError(f"{target} cannot be adopted; {reason}")
    if not os.path.lexists(link) and not (target / OWNER).exists():
        _require_no_owner(target)
    link.parent.mkdir(parents=True, exist_ok=True)
    mark = OnDisk(target / OWNER)
    try:
        mark.create(layout.mark(dataset))
    except FileExistsError:
        if (found := mark.text()) != layout.mark(dataset):
            raise LayoutError(
                f"{target} is adopted already, as {found[:200]}: one table has one owner. Give it back there first: "
                f"backfill unadopt; if this is a copy of that table, remove {OWNER} and rename {RELEASES} in it"
            ) from None
    except StorageError as error:
        raise LayoutError(f"{target} cannot be written to, and a release needs to: {error}") from None
    with suppress(FileExistsError):
        link.symlink_to(target)
    OnDisk(link.parent).sync()


def give_back(layout: Layout, dataset: str) -> Path:
    """Remove the mark and the link, and put the manifests aside; returns the table's folder. Is safe to repeat.

    Raises:
        LayoutError: the table of the dataset is not adopted.
    """
    link = layout.link(dataset)
    if not link.is_link():
        raise LayoutError(f"the published table of {dataset} was not adopted; there is nothing to give back")
    target = path_of(link.resolved())
    with suppress(LayoutError):  # gone, or somebody else's by now
        folder = layout.published_path(dataset)
        # The next owner must not take these releases for its own.
        move_into(folder / _RETURNED, sorted((folder / RELEASES).fitting("*")), sync)
        (folder / RELEASES).remove_folder()
        path_of(folder / OWNER).unlink()
    link.remove()
    link.parent.sync()
    return target


def _require_no_owner(target: Path) -> None:
    """Refuse a table without a mark that another warehouse created, or a folder in which a sweep would delete files of others."""
    shadow = SHADOW if not (target / _RETURNED).exists() else ""
    for name in filter(None, (RELEASES, shadow)):
        if (target / name).exists():
            raise LayoutError(
                f"{target} has a folder {name}: it is the published table of another warehouse, and one table has one owner. If "
                f"that warehouse is no longer used, rename {RELEASES} to {_RETURNED}; a folder {SHADOW} of somebody else needs "
                "another name"
            )
