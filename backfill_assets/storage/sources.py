"""Discovers source files: which there are, of which day each is, and what it has in it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets.core.delivery import Delivery, FileContent, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.core.path_template import spelled_out
from backfill_assets.core.text import visible
from backfill_assets.dataset.deliveries import place_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.storage.disk import below, sha256_of
from backfill_assets.storage.layout import Layout


@contextmanager
def read_from(shown: str) -> Iterator[None]:
    """Turn file system errors about a file, called `shown` in messages, into ours: it may vanish after it was listed.

    Raises:
        SourceError: the file is gone, or cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{visible(shown)}: it cannot be read, or is gone ({error.strerror or error}); make its folders readable, "
            "deliver it under a temporary name until it is complete, and launch again"
        ) from error


_MONTHS: Final = 12
_TEMPORARY: Final = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".swp", "~")
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class SourceFile:
    """A file in the sources folder, as one delivery of one delivery day.

    `path` is relative to the sources folder, `file` is the same path with links followed, `fingerprint` is the SHA-256 of
    its bytes, `size` is in bytes, `delivered_at` is the time of its last change.
    """

    day: dt.date
    path: str
    file: Path
    fingerprint: str
    size: int
    delivered_at: dt.datetime

    @property
    def content(self) -> FileContent:
        """Day, path and fingerprint: identifies what was delivered."""
        return self.day, self.path, self.fingerprint


def discover(
    loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date], known: Iterable[Delivery] = ()
) -> tuple[SourceFile, ...]:
    """The source files of these delivery days, in order of day and path; hidden and temporary files are left out.

    A file with the path, size and time of last change of a `known` delivery counts as that delivery and is not read. This is
    for checks that repeat every minute; a landing passes no known deliveries.

    Raises:
        SourceError: it is unclear to which day a file belongs; a file has invisible characters in its name, or vanishes
            meanwhile; a link leads to nothing; or the file system cannot list the files.
        LayoutError: a link leads out of the sources folder.
    """
    found: dict[str, SourceFile] = {}
    template = loaded.dataset.landing.template
    prints = {(d.path, d.size, d.delivered_at): d.fingerprint for d in known}
    for day in sorted({loaded.dataset.due(day) for day in delivery_days}):
        paths = sorted(_paths(layout, template.filled(day)))
        if not paths:
            _require_links(layout, template.filled(day))
        for path, relative in paths:
            if not _is_file(path, relative):
                continue
            if not relative.isprintable():
                raise SourceError(
                    f"{visible(relative)}: its name is not UTF-8 or has invisible characters, shown here as escapes; deliver it "
                    "under another name"
                )
            if doubt := template.doubt(relative):
                raise SourceError(f"{relative}: {doubt}")
            with read_from(relative):
                found[relative] = _source_file(day, relative, below(layout.sources, relative), prints)
    return tuple(found.values())


def require_sources(loaded: LoadedDataset, layout: Layout, known: Callable[[], Iterable[Delivery]]) -> None:
    """Refuse a wrong path of the sources, under which no file can ever be landed.

    `known` returns the deliveries of the dataset; it is called only if no file fits any day.

    Raises:
        SourceError: there is no sources folder; or no file in it fits any day, although deliveries are known and files are not
            removed after landing; month and day may be swapped; or the file system cannot list the files.
    """
    if not layout.sources.is_dir():
        raise SourceError(
            f"{layout.sources}: there is no such folder, so nothing of {loaded.name} can be landed; set BACKFILL_ASSETS_SOURCES "
            "to the folder that files are delivered to, or create it"
        )
    template, kept = loaded.dataset.landing.template, not loaded.dataset.landing.removed_after_landing
    there, ordered = False, not template.has_parts
    for _, relative in _paths(layout, template.of_any_day) if kept or not ordered else ():
        if days := template.days_of(relative):
            there = True
            # A day that is no month shows which is which.
            ordered = ordered or all(day.day > _MONTHS for day in days)
        elif doubt := template.doubt(relative):
            raise SourceError(f"{visible(relative)}: {doubt}")
        if there and ordered:
            return
    if kept and not there and (delivery := next(iter(known()), None)):
        raise SourceError(
            f"{layout.sources}: no file fits {template.text} on any day, although {loaded.name} was landed before, such as from "
            f"{delivery.path}; correct BACKFILL_ASSETS_SOURCES, or source.path in dataset.yaml. If files are removed "
            "after they have landed, set source.removed_after_landing: true there"
        )


def gone_from_sources(layout: Layout, deliveries: Iterable[Delivery]) -> frozenset[Place]:
    """The places of deliveries whose file is gone from the sources, or cannot be checked."""
    return frozenset(place_of(d) for d in deliveries if not os.path.isfile(layout.sources / d.path))  # noqa: PTH113 - raises nothing


def delivered_sizes(loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date]) -> Mapping[dt.date, int]:
    """Total bytes of the source files by delivery day; days without files are left out.

    Lists the sources once, whatever the number of days, and opens no file.

    Raises:
        SourceError: a file vanishes meanwhile, or the file system cannot list the files.
    """
    template, days = loaded.dataset.landing.template, frozenset(delivery_days)
    sizes: dict[dt.date, int] = {}
    for path, relative in list(_paths(layout, template.of_any_day)):
        for day in days.intersection(template.days_of(relative)):
            with read_from(relative):
                if path.is_file():
                    sizes[day] = sizes.get(day, 0) + path.stat().st_size
    return sizes


def _paths(layout: Layout, glob: str) -> Iterator[tuple[Path, str]]:
    """Every path that a glob finds, and the same relative to the sources folder; hidden and temporary ones are left out."""
    with read_from(glob):
        for path in layout.sources.glob(glob):
            relative = path.relative_to(layout.sources).as_posix()
            if not _is_temporary(relative):
                yield path, relative


def _is_temporary(relative: str) -> bool:
    parts = relative.split("/")
    return any(p.startswith(".") for p in parts) or parts[-1].startswith("_") or parts[-1].endswith(_TEMPORARY)


def _is_file(path: Path, relative: str) -> bool:
    """Whether there is a file, and not a folder, socket or device.

    Raises:
        SourceError: it cannot be checked, or is a link to nothing; the file may be on a volume that is not mounted.
    """
    with read_from(relative):
        if path.is_file():
            return True
    _require_target(path, relative)
    return False


def _require_links(layout: Layout, pattern: str) -> None:
    """Refuse links to nothing among the folders and names that a pattern spells out: glob skips them.

    Raises:
        SourceError: there is such a link, or a path cannot be checked.
    """
    for relative in spelled_out(pattern):
        _require_target(layout.sources / relative, relative)


def _require_target(path: Path, relative: str) -> None:
    with read_from(relative):
        to_nothing = path.is_symlink() and not path.exists()
    if to_nothing:
        raise SourceError(
            f"{visible(relative)}: it is a link whose target is missing; put the target back, such as by mounting its volume, "
            "or remove the link"
        )


def _source_file(
    day: dt.date, relative: str, file: Path, prints: Mapping[tuple[str, int, dt.datetime], str]
) -> SourceFile:
    status = file.stat()
    delivered_at = EPOCH + dt.timedelta(microseconds=status.st_mtime_ns // 1000)
    known = prints.get((relative, status.st_size, delivered_at))
    return SourceFile(day, relative, file, known or sha256_of(file), status.st_size, delivered_at)
