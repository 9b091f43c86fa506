"""Adopted tables: published tables that stay where they were; a link in the warehouse leads to each, and a mark in it back."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.core.release import SHADOW
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.layout import OWNER, RELEASES, Layout, mounts_here, refused_mount
from backfill_assets.storage.location import Location, move_into, overlap, sync
from backfill_assets.storage.owner import require_one_winner

_RETURNED: Final = "_returned_releases"
"""Folder of a table that was given back, for the manifests of its former releases."""
_SHOWN: Final = 200


def require_free(layout: Layout, dataset: str, table: Location) -> None:
    """Refuse a table that cannot become the published table of a dataset because of where it is, or whose; changes nothing.

    Raises:
        LayoutError: the dataset has another table, the place overlaps with the warehouse or is not of its kind, or the table
            belongs to another warehouse or dataset.
    """
    link, target, home = layout.link(dataset), table.resolved(), layout.warehouse.resolved()
    in_bucket = home.storage_options is not None
    if in_bucket is (target.storage_options is None):
        raise LayoutError(
            f"{target} cannot be adopted into the warehouse {home}: a warehouse in a folder adopts tables in folders, and one in a "
            "bucket tables in buckets of its store; name another warehouse (BACKFILL_ASSETS_WAREHOUSE), or copy the table"
        )
    if overlap(home, target):
        raise LayoutError(f"{target}: a table in the warehouse, or around it, cannot be adopted; move it out first")
    known = link.target()
    noted = layout.noted(dataset)
    if noted not in {None, target} and layout.is_marked(dataset, noted):
        raise LayoutError(
            f"{dataset} has an adopted table, {noted}: name that one, or adopt {target} under another name"
        )
    if known not in (None, target) or (known is None and link.exists()):
        raise LayoutError(f"{dataset} has a published table, {known or link}; adopt {target} under another name")
    if not in_bucket and (reason := refused_mount(path_of(target), mounts_here())):
        raise LayoutError(f"{target} cannot be adopted; {reason}")
    if known is None and noted is None and not (target / OWNER).is_there():
        _require_no_owner(target)
    _require_ours(layout, dataset, target / OWNER)


def take(layout: Layout, dataset: str, table: Location) -> None:
    """Make an existing table the published table of a dataset, where it is; is safe to repeat.

    Raises:
        LayoutError: as `require_free`, or the place of the table cannot be written to.
        StorageError: the store of the table does not keep two writers apart, or cannot be written to.
    """
    require_free(layout, dataset, table)
    link, target = layout.link(dataset), table.resolved()
    mark = target / OWNER
    if target.storage_options is not None and not mark.is_there():
        require_one_winner(target)
    try:
        with suppress(FileExistsError):
            mark.create(layout.mark(dataset))
    except StorageError as error:
        raise LayoutError(f"{target} cannot be written to, and a release needs to: {error}") from None
    _require_ours(layout, dataset, mark)
    note = layout.note(dataset)
    for folder in (note.parent, link.parent):
        folder.make_folder()
    layout.warehouse.sync()
    # Before the link: nothing must lead to a table that is not noted.
    if layout.noted(dataset) != target:
        note.write(str(target))
    with suppress(FileExistsError):
        link.link_to(target)
    if link.target() != target:
        raise LayoutError(f"{link} has other files by now; remove them, and adopt {target} again")
    link.parent.sync()


def give_back(layout: Layout, dataset: str, *, reachable: bool) -> Location | None:
    """Remove the mark, the link and the note, and put the manifests aside; returns the table's folder. Is safe to repeat.

    A table that is not `reachable` is gone, or somebody else's by now: only link and note are removed. None if nothing led to it.

    Raises:
        LayoutError: the table of the dataset is not adopted, or is gone by now.
        StorageError: the store refuses, or does not answer.
    """
    link, note = layout.link(dataset), layout.note(dataset)
    if not layout.is_adopted(dataset):
        raise LayoutError(f"the published table of {dataset} was not adopted; there is nothing to give back")
    target = link.target()
    if reachable:
        folder = layout.published_path(dataset)
        # The next owner must not take these releases for its own.
        move_into(folder / _RETURNED, sorted((folder / RELEASES).fitting("*")), sync)
        (folder / RELEASES).remove_folder()
        (folder / OWNER).remove()
    if layout.noted(dataset) is not None:  # an older checkout wrote none
        note.remove()
        note.parent.sync()
    if target is not None:
        link.remove()
        link.parent.sync()
    return target


def _require_ours(layout: Layout, dataset: str, mark: Location) -> None:
    """Refuse a table whose mark names another warehouse or dataset; one without a mark is nobody's."""
    try:
        found = mark.text()
    except FileNotFoundError:
        return
    if found != layout.mark(dataset):
        raise LayoutError(
            f"{mark.parent} is adopted already, as {found[:_SHOWN]}: one table has one owner. Give it back there first: "
            f"backfill unadopt; if this is a copy of that table, remove {OWNER} and rename {RELEASES} in it; if that warehouse was "
            f"moved, and is this one, remove only {OWNER}"
        )


def _require_no_owner(target: Location) -> None:
    """Refuse a table without a mark that another warehouse created, or a folder in which a sweep would delete files of others."""
    shadow = SHADOW if not (target / _RETURNED).is_folder() else ""
    for name in filter(None, (RELEASES, shadow)):
        if (target / name).exists():
            raise LayoutError(
                f"{target} has a folder {name}: it is the published table of another warehouse, and one table has one owner. If "
                f"that warehouse is no longer used, rename {RELEASES} to {_RETURNED}; a folder {SHADOW} of somebody else needs "
                "another name"
            )
