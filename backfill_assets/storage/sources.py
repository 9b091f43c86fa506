"""Discovers source files: which there are, of which day each is, and what it has in it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.delivery import Delivery, FileContent, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.core.path_template import PathTemplate, spelled_out
from backfill_assets.core.text import visible
from backfill_assets.dataset.deliveries import place_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location, State


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
_MOST_REMEMBERED: Final = 20_000
_remembered: dict[tuple[Location, tuple[object, ...]], tuple[State, str]] = {}
"""State and SHA-256 of versions of files that this process has read for checks that repeat."""
_TEMPORARY: Final = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".swp", "~")


@dataclass(frozen=True)
class SourceFile:
    """A file in the sources folder, as one delivery of one delivery day.

    `path` is relative to the sources folder, `file` is the same path, with links followed if it was read, `fingerprint` is the
    SHA-256 of its bytes, `size` is in bytes, `delivered_at` is the time of its last change.
    """

    day: dt.date
    path: str
    file: Location
    fingerprint: str
    size: int
    delivered_at: dt.datetime

    @property
    def content(self) -> FileContent:
        """Day, path and fingerprint: identifies what was delivered."""
        return self.day, self.path, self.fingerprint


def discover(
    loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date], known: Iterable[Delivery] | None = None
) -> tuple[SourceFile, ...]:
    """The source files of these delivery days, in order of day and path; hidden and temporary files are left out.

    A file with the path, size and time of last change of a `known` delivery counts as that delivery and is not read, and no other
    file is read twice. This is for checks that repeat every minute; a landing passes no known deliveries.

    Raises:
        SourceError: it is unclear to which day a file belongs; a file has invisible characters in its name, or vanishes
            meanwhile; a link leads to nothing; or the file system cannot list the files.
        LayoutError: a link leads out of the sources folder.
    """
    template, found = loaded.dataset.landing.template, dict[str, tuple[dt.date, Location, State]]()
    prints = {(d.path, State(d.size, d.delivered_at)): d.fingerprint for d in known or ()}

    def read(relative: str) -> SourceFile:
        day, file, state = found[relative]
        with read_from(relative):
            if (fingerprint := prints.get((relative, state))) is None:
                file = layout.sources.below(relative)
                require_no_folder(file, relative)
                state, fingerprint = file.content() if known is None else _content_once(file)
        return SourceFile(day, relative, file, fingerprint, state.size, state.at)

    days = {loaded.dataset.due(day) for day in delivery_days}
    for day, relative, place in sorted(_of_days(layout, template, days)):
        if (state := _state_of(place, relative)) is None:
            continue
        if not relative.isprintable():
            raise SourceError(
                f"{visible(relative)}: its name is not UTF-8 or has invisible characters, shown here as escapes; deliver it "
                "under another name"
            )
        if doubt := template.doubt(relative):
            raise SourceError(f"{relative}: {doubt}")
        found[relative] = day, place, state
    empty = sorted(days.difference(day for day, _, _ in found.values()))
    _require_links(layout, (template.filled(day) for day in empty))
    return tuple(layout.sources.each(read, found))


def _content_once(file: Location) -> tuple[State, str]:
    stamp = file.stamp()
    if (known := _remembered.get((file, stamp))) is not None:
        return known
    found = file.content()
    # If it was replaced meanwhile, it is unknown which version was read.
    if file.stamp() == stamp:
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[file, stamp] = found
    return found


def require_no_folder(file: Location, shown: str) -> None:
    """Refuse a file in a bucket that is also a folder: Spark would read what is below it instead.

    Raises:
        SourceError: there is an object below its name.
    """
    if file.is_folder():
        raise SourceError(
            f"{visible(shown)}: there are objects below it, as if it were a folder; remove or rename them"
        )


def require_sources(loaded: LoadedDataset, layout: Layout, known: Callable[[], Iterable[Delivery]]) -> None:
    """Refuse a wrong path of the sources, under which no file can ever be landed.

    `known` returns the deliveries of the dataset; it is called only if no file fits any day.

    Raises:
        SourceError: there is no sources folder; or no file in it fits any day, although deliveries are known and files are not
            removed after landing; month and day may be swapped; or the file system cannot list the files.
    """
    template, kept = loaded.dataset.landing.template, not loaded.dataset.landing.removed_after_landing
    # A folder of a bucket is gone with its last file.
    if not layout.sources.is_folder() and (kept or isinstance(layout.sources, OnDisk)):
        raise SourceError(
            f"{layout.sources}: there is no such folder, so nothing of {loaded.name} can be landed; set BACKFILL_ASSETS_SOURCES "
            "to the folder that files are delivered to, or create it; in a bucket, deliver the first file"
        )
    there, ordered = False, not template.has_parts
    for relative, _ in _found(layout, template.of_any_day) if kept or not ordered else ():
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
    """The places of deliveries whose file is gone from the sources, or cannot be checked; raises StorageError if a store fails."""

    def is_there(delivery: Delivery) -> bool:
        with suppress(OSError):
            return (layout.sources / delivery.path).is_there()
        return False

    asked = tuple(deliveries)
    if asked:
        # Asked for an object, a store says the same if that is gone and if the bucket is; a listing fails in the latter case.
        layout.sources.is_folder()
    found = layout.sources.each(is_there, asked)
    return frozenset(place_of(one) for one, there in zip(asked, found, strict=True) if not there)


def delivered_sizes(loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date]) -> Mapping[dt.date, int]:
    """Total bytes of the source files by delivery day; days without files are left out.

    Lists the sources once, whatever the number of days, and opens no file.

    Raises:
        SourceError: a file vanishes meanwhile, or the file system cannot list the files.
    """
    template, days = loaded.dataset.landing.template, frozenset(delivery_days)
    sizes: dict[dt.date, int] = {}
    for relative, place in _found(layout, template.of_any_day):
        for day in days.intersection(template.days_of(relative)):
            with read_from(relative):
                if (state := place.state()) is not None:
                    sizes[day] = sizes.get(day, 0) + state.size
    return sizes


def _of_days(
    layout: Layout, template: PathTemplate, days: Collection[dt.date]
) -> Iterator[tuple[dt.date, str, Location]]:
    """Everything that is found for these days: the day, the path below the sources folder, and the place."""
    if isinstance(layout.sources, OnDisk) or len(days) == 1:
        yield from ((day, *one) for day in days for one in _found(layout, template.filled(day)))
        return
    # A bucket is listed once: each time costs a request per thousand files.
    for relative, place in _found(layout, template.of_any_day):
        yield from ((day, relative, place) for day in template.days_of(relative) if day in days)


def _found(layout: Layout, glob: str) -> Iterator[tuple[str, Location]]:
    """What a glob finds, by its path below the sources folder; what is hidden or temporary is left out."""
    with read_from(glob):
        for place in layout.sources.glob(glob):
            relative = place.relative_to(layout.sources)
            if not _is_temporary(relative):
                yield relative, place


def _is_temporary(relative: str) -> bool:
    parts = relative.split("/")
    return any(p.startswith(".") for p in parts) or parts[-1].startswith("_") or parts[-1].endswith(_TEMPORARY)


def _state_of(place: Location, relative: str) -> State | None:
    """The state of a file; None for a folder, socket or device.

    Raises:
        SourceError: it cannot be checked, or is a link to nothing; the file may be on a volume that is not mounted.
    """
    with read_from(relative):
        if (state := place.state()) is not None:
            return state
    _require_target(place, relative)
    return None


def _require_links(layout: Layout, patterns: Iterable[str]) -> None:
    """Refuse links to nothing among the folders and names that patterns spell out: glob skips them.

    Raises:
        SourceError: there is such a link, or a path cannot be checked.
    """
    for relative in dict.fromkeys(path for pattern in patterns for path in spelled_out(pattern)):
        _require_target(layout.sources / relative, relative)


def _require_target(place: Location, relative: str) -> None:
    with read_from(relative):
        to_nothing = place.is_broken_link()
    if to_nothing:
        raise SourceError(
            f"{visible(relative)}: it is a link whose target is missing; put the target back, such as by mounting its volume, "
            "or remove the link"
        )
