"""Where tables, sources, shadows and reports are stored, and which places can hold a warehouse.

Delta requires that only one of two writers can create a file of a given name ("mutual exclusion"), see
https://docs.delta.io/delta-storage. Folders of local and network file systems guarantee that, and so do the conditional puts by
which delta-rs writes releases. Spark has none: it writes raw, staging and shadows, through one driver per table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

import psutil

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.errors import LayoutError, NoBucketError, PreconditionError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import StoredFile
from backfill_assets.core.text import checked_name
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.storage.disk import stored_file
from backfill_assets.storage.location import Location

OWNER: Final = "_backfill_assets.json"
"""File in the folder of an adopted table that says whose it is."""
ADOPTED: Final = "_adopted"
"""Folder of the warehouse with a note for each adopted table."""
RELEASES: Final = "_releases"
"""Folder of a published table for the manifests of its releases."""
REFERENCES: Final = "_references"
"""Folder of a published table for the versions of references that its days were built with."""
SANDBOXES: Final = "sandbox"
"""Folder of the warehouse for copies that their users may change."""
ORIGIN: Final = "_origin.txt"
"""File in the folder of a sandbox that says what it was copied from."""
SET_ASIDE = "_set_aside"
"""Folder of the warehouse for damaged commits."""
_SHOWN = 200


@dataclass(frozen=True)
class Layout:
    """The folders of a warehouse; every path that it returns is resolved and below its root."""

    warehouse: Location
    sources: Location

    def raw_path(self, dataset: str) -> Location:
        """Folder of the raw table.

        Raises:
            InvalidNameError: the dataset's name is not a safe name.
            LayoutError: the folder is a link that leads out of the warehouse.
        """
        return self._table(Layer.raw, dataset)

    def staging_path(self, dataset: str, shape: str = "") -> Location:
        """Folder of the staging tables, or of the one whose columns have this `shape`; raises like `raw_path`."""
        home = self._table(Layer.staging, dataset)
        return home.below(shape) if shape else home

    def published_path(self, dataset: str) -> Location:
        """Folder of the published table, which is elsewhere for an adopted one; raises like `raw_path`.

        Raises:
            LayoutError: an adopted table is gone, nothing leads to it, or it belongs to another warehouse.
            StorageError: the store refuses to say where it is, or does not answer.
        """
        link, noted = self.link(dataset), self.noted(dataset)
        if (target := link.target()) is not None:
            if noted not in {None, target} and self.is_marked(dataset, noted):
                raise LayoutError(
                    f"{link} leads to {target}, and {noted} is marked as the adopted table of {dataset}, too: one is a copy. Let "
                    f"the link lead to the table, and remove {OWNER} from the copy"
                )
            return self._adopted(dataset, target)
        if noted is not None:
            # Otherwise its releases would begin a new table, or go into a copy that followed the link.
            raise LayoutError(
                f"{link} no longer leads to {noted}, the adopted table of {dataset}; move away what is there, if anything, and let "
                f"it lead there again: backfill adopt {dataset} --from {noted}. If that table is lost: backfill unadopt {dataset}"
            )
        return self._table(Layer.published, dataset)

    def is_adopted(self, dataset: str) -> bool:
        """Whether the published table of a dataset is one that stays where it was before, also if nothing leads to it now."""
        return self.link(dataset).target() is not None or self.noted(dataset) is not None

    def leads_to(self, dataset: str) -> Location:
        """Where the published table of a dataset is or will be, whoever owns what is there; raises like `link`."""
        link = self.link(dataset)
        return link.target() or self.noted(dataset) or link.resolved()

    def is_reachable(self, dataset: str) -> bool:
        """Whether the folder of the published table is there and belongs to this warehouse; a new table has none yet.

        Raises:
            StorageError: the store refuses to say so, or does not answer.
        """
        try:
            self.published_path(dataset)
        except LayoutError:
            return False
        return True

    def link(self, dataset: str) -> Location:
        """The place of the published table in the warehouse; for an adopted table, a link to its folder.

        Raises:
            InvalidNameError: the dataset's name is not a safe name.
        """
        return self.warehouse / Layer.published / checked_name(dataset, "dataset")

    def note(self, dataset: str) -> Location:
        """The file that says where the adopted table of a dataset is: a link is easily lost, or replaced by a copy."""
        return self.warehouse / ADOPTED / checked_name(dataset, "dataset")

    def noted(self, dataset: str) -> Location | None:
        """Where its note says that the adopted table of a dataset is, links followed; None without a note.

        Raises:
            LayoutError: this user may not read the note.
        """
        note = self.note(dataset)
        try:
            return self.warehouse.called(note.text().rstrip("\n")).resolved()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LayoutError(
                f"{note} says where the adopted table of {dataset} is, and cannot be read ({error}): give this user access"
            ) from None

    def is_marked(self, dataset: str, place: Location) -> bool:
        """Whether a place has the mark of this warehouse's table for a dataset; False if it cannot be read."""
        try:
            return (place / OWNER).text() == self.mark(dataset)
        except (OSError, NoBucketError):
            return False

    def adopted(self) -> frozenset[str]:
        """The names of all datasets with a note."""
        return frozenset(note.name for note in (self.warehouse / ADOPTED).fitting("[!.]*"))

    def mark(self, dataset: str) -> str:
        """What the file `OWNER` in an adopted table says, as JSON."""
        return canonical_json({"dataset": dataset, "warehouse": str(self.warehouse.resolved())})

    def shadow_path(self, dataset: str, folder: str) -> Location:
        """Folder of a shadow, inside the folder of the published table; raises like `raw_path`."""
        return self.published_path(dataset).below(folder)

    def kept_reference(self, dataset: str, file: str) -> Location:
        """The copy of a reference that published days see, in the folder of their table; raises like `published_path`."""
        return self.published_path(dataset) / REFERENCES / file

    def data_releases_path(self) -> Location:
        """Folder of the table `data_releases`; raises like `raw_path`."""
        return self.at(DATA_RELEASES)

    def at(self, place: str) -> Location:
        """Folder of the table at a place such as `published/sales`; raises like `published_path`."""
        layer, _, dataset = place.partition("/")
        return self.published_path(dataset) if layer == Layer.published else self.warehouse.below(place)

    def tables(self, log: str) -> Iterator[tuple[str, str, str, Location]]:
        """Place, layer, dataset and folder of every table in order; a table is a folder with a subfolder called `log`."""
        for layer, above in ((DATA_RELEASES, ""), (Layer.published, "*/"), (Layer.raw, "*/"), (Layer.staging, "*/*/")):
            if layer == Layer.published:
                yield from ((f"{layer}/{name}", layer, name, folder) for name, folder in self.published_tables(log))
                continue
            for found in sorted((self.warehouse / layer).fitting(f"{above}{log}")):
                place = found.parent.relative_to(self.warehouse)
                yield place, layer, "".join(place.split("/")[1:2]), found.parent

    def published_tables(self, inside: str) -> Iterator[tuple[str, Location]]:
        """Name and folder of every published table, by name, that has a folder `inside`; none that is out of reach."""
        # In a bucket, a link and files below it may have one name.
        adopted = self.adopted()
        for entry in sorted(set((self.warehouse / Layer.published).listed())):
            target = entry.target()
            if target is None and entry.name in adopted:
                continue  # a copy in place of the link
            try:
                found = ((target or entry) / inside).is_folder()
            except (OSError, StorageError):
                if target is None:
                    raise
                continue  # one adopted table that refuses access must not hide all others
            if found:
                yield entry.name, target or entry

    def aside_path(self, place: str) -> Location:
        """Folder for the damaged commits of the table at a place such as `published/sales`; raises like `published_path`."""
        layer, _, dataset = place.partition("/")
        if layer == Layer.published and self.is_adopted(dataset):
            # Files are moved there, and an adopted table may lie on another disk.
            return self.published_path(dataset).below(SET_ASIDE)
        return self.warehouse.below(f"{SET_ASIDE}/{place}")

    def preview_note(self, dataset: str) -> Location:
        """File that names the unit that the preview of a dataset shows; raises like `raw_path`."""
        return self._table("_previews", dataset)

    def preview_notes(self) -> tuple[Location, ...]:
        """The notes of all previews; each file is named like its dataset."""
        return tuple(sorted((self.warehouse / "_previews").fitting("[!.]*")))

    def sandbox_path(self, name: str) -> Location:
        """Folder of the sandbox of that name.

        Raises:
            InvalidNameError: it is not a safe name.
            LayoutError: the folder is a link that leads out of the warehouse.
        """
        return self.warehouse.below(f"{SANDBOXES}/{checked_name(name, 'sandbox')}")

    def sandboxes(self) -> tuple[Location, ...]:
        """The folders of all sandboxes."""
        return tuple(sorted(note.parent for note in (self.warehouse / SANDBOXES).fitting(f"*/{ORIGIN}")))

    def source(self, relative: str) -> Location:
        """A file or a table below the sources folder.

        Raises:
            LayoutError: the path leads out of the sources folder.
        """
        return self.sources.below(relative)

    def _adopted(self, dataset: str, target: Location) -> Location:
        link = self.link(dataset)
        try:
            found = (target / OWNER).text()
        except (OSError, NoBucketError) as error:
            reason = "not found" if isinstance(error, FileNotFoundError) else error
            raise LayoutError(
                f"{link} leads to {target}, which has no readable {OWNER} ({reason}): mount the folder, give this user access, or "
                f"restore the file; if another table is there now: backfill unadopt {dataset}"
            ) from None
        if found != self.mark(dataset):
            raise LayoutError(
                f"{link} leads to {target}, which is adopted as {found[:_SHOWN]}: one table has one owner. Give it back there "
                f"(backfill unadopt), or remove {target / OWNER} if this warehouse was moved, and adopt it again"
            )
        return target

    def _table(self, layer: str, dataset: str) -> Location:
        return self.warehouse.below(f"{layer}/{checked_name(dataset, 'dataset')}")


UNFINISHED: Final = ".part"
"""Suffix of the name of a page until it is complete."""
JSON: Final = "review.json"


@dataclass(frozen=True)
class ReportFolder:
    """The folder of reports; it does not have to exist."""

    folder: Path

    def units(self) -> tuple[str, ...]:
        """The units that have a report."""
        return tuple(sorted(file.parent.name for file in self.folder.glob(f"*/{JSON}")))

    def unfinished(self) -> tuple[StoredFile, ...]:
        """Files that an interrupted write left behind, their paths relative to the folder."""
        found = []
        for path in sorted((*self.folder.glob(f"*{UNFINISHED}"), *self.folder.glob(f"*/*{UNFINISHED}"))):
            with suppress(FileNotFoundError):  # its writer has finished it
                found.append(stored_file(path, self.folder))
        return tuple(found)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove unfinished files; files that are already gone are ignored.

        Raises:
            PreconditionError: a path is no unfinished page; nothing is removed then.
        """
        targets = list(paths)
        for path in targets:
            if not path.endswith(UNFINISHED) or ".." in Path(path).parts or Path(path).is_absolute():
                raise PreconditionError(f"{path!r} is no unfinished page below {self.folder}; nothing was removed")
        for path in targets:
            (self.folder / path).unlink(missing_ok=True)


_NOT_TRIED: Final = {"gs", "gcs", "abfs", "abfss", "az", "azure", "adl", "wasb", "wasbs", "oss", "r2"}
_REMEDY: Final = (
    "use a folder on a local disk or on NFS, or an S3-compatible store as s3://bucket/prefix (docs/storage.md)"
)

OBJECT_STORE_MOUNTS: Final = (
    "blobfuse", "blobfuse2", "gcsfuse", "geesefs", "goofys", "mount-s3", "mountpoint-s3", "rclone", "s3fs",
)  # fmt: skip
"""Programs that mount an object store as a folder, by their names in the list of mounts."""


@dataclass(frozen=True)
class Mount:
    """One mounted file system: mount point, device, and type such as `fuse.s3fs`."""

    point: PurePath
    device: str
    kind: str


def refused_url(url: str) -> str:
    """Why a URL cannot hold a warehouse and what to do; empty for s3:// and for what is no URL of an object store."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in {"s3a", "s3n"}:
        return "write s3://: Spark's own name for it is known here"
    return f"nobody has tried that kind of store yet; {_REMEDY}" if scheme in _NOT_TRIED else ""


def mounts_here() -> tuple[Mount, ...]:
    """The file systems that are mounted on this host, the later of two at one point last."""
    return tuple(Mount(Path(p.mountpoint), p.device, p.fstype) for p in psutil.disk_partitions(all=True))


def refused_mount(folder: PurePath, mounts: Iterable[Mount]) -> str:
    """Why a folder cannot hold a warehouse and what to do, or nothing; `folder` is absolute, links followed."""
    above = [mount for mount in mounts if folder.is_relative_to(mount.point)]
    # Of two file systems mounted at one point, the later hides the earlier.
    nearest = max(reversed(above), key=lambda mount: len(mount.point.parts), default=None)
    if nearest is None:
        return ""
    names = {nearest.device.lower(), *nearest.kind.lower().split(".")}
    program = next((name for name in OBJECT_STORE_MOUNTS if name in names), "")
    if not program:
        return ""
    return (
        f"{nearest.point} shows an object store as a folder ({program}), and commits would be lost: its renames are copies, "
        f"so one of two writers overwrites the other's commit. Name the store itself instead: {_REMEDY}"
    )
