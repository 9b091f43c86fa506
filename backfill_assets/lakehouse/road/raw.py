"""Raw: find the deliveries of some delivery days, and land every new one, once."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from backfill_assets.core.days import format_days
from backfill_assets.core.delivery import Delivery, FileContent, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.core.fields import days_of, spelled_out
from backfill_assets.core.text import visible
from backfill_assets.dataset.deliveries import in_force, place_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import form_of, reading_of
from backfill_assets.domain.inputs import lost_days, surplus_days
from backfill_assets.lakehouse.layout import Layout, below
from backfill_assets.lakehouse.published.durable import keep, kept
from backfill_assets.lakehouse.road.files import read_from, require_columns, sha256_of
from backfill_assets.lakehouse.road.landing import Found, delivered_rows
from backfill_assets.lakehouse.road.raw_rows import (
    DELIVERY_DAY,
    NOTHING_READ,
    Counts,
    measured_rows,
    require_layout,
    rows_in_raw,
    times_in_raw,
)
from backfill_assets.lakehouse.road.spark_sql import (
    days_condition,
    literal,
    renamed,
)
from backfill_assets.lakehouse.road.tables import (
    files_of_days,
    is_table,
    read_table,
    replace_where,
    rows_by_day,
)

_TEMPORARY: Final = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".swp", "~")
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class SourceFile:
    """A file in the sources folder, as one delivery of one delivery day.

    `path` is relative to the sources folder, `file` the same with links followed, `fingerprint` the SHA-256 of its
    bytes, `size` in bytes, `delivered_at` the time of its last change.
    """

    day: dt.date
    path: str
    file: Path
    fingerprint: str
    size: int
    delivered_at: dt.datetime

    @property
    def content(self) -> FileContent:
        """What was delivered."""
        return self.day, self.path, self.fingerprint


def discover(
    loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date], known: Iterable[Delivery] = ()
) -> tuple[SourceFile, ...]:
    """The files that are there for these delivery days, in order of day and path; hidden and temporary ones are not.

    A file that has path, size and time of last change of a `known` delivery is taken for it and not read: for a look that
    is repeated every minute. Whoever lands files passes none.

    Raises:
        SourceError: a file fits two days, has a name with characters that one cannot see, or vanishes meanwhile; a link leads
            to nothing; or the file system does not say what is there.
        LayoutError: a link leads out of the sources folder.
    """
    found: dict[str, SourceFile] = {}
    prints = {(d.path, d.size, d.delivered_at): d.fingerprint for d in known}
    for day in sorted(set(delivery_days)):
        pattern = loaded.dataset.landing.path.replace("{day}", day.isoformat())
        with read_from(pattern):
            paths = sorted(layout.sources.glob(pattern))
        if not paths:
            _require_links(layout, pattern)
        for path in paths:
            relative = path.relative_to(layout.sources).as_posix()
            if _is_temporary(relative) or not _is_file(path, relative):
                continue
            if not relative.isprintable():
                raise SourceError(
                    f"{visible(relative)}: its name is no UTF-8 or holds characters that one cannot see, here written as "
                    "escapes; deliver it under another name"
                )
            if len(several := days_of(loaded.dataset.landing.path, relative)) > 1:
                raise SourceError(
                    f"{relative}: fits the delivery days {several[0]} and {several[1]}; "
                    f"make source.path in dataset.yaml ({loaded.dataset.landing.path}) tell them apart"
                )
            with read_from(relative):
                found[relative] = _source_file(day, relative, below(layout.sources, relative), prints)
    return tuple(found.values())


def require_sources(loaded: LoadedDataset, layout: Layout, known: Callable[[], Iterable[Delivery]]) -> None:
    """Refuse a wrong path of the sources, under which there is never anything to be landed.

    `known` gives the deliveries of the dataset; it is asked only where no file fits any day.

    Raises:
        SourceError: there is no sources folder; or no file in it fits any day, although deliveries are known and nobody takes
            files away; or the file system does not say what is there.
    """
    if not layout.sources.is_dir():
        raise SourceError(
            f"{layout.sources}: there is no such folder, so nothing of {loaded.name} can be landed; let BACKFILL_ASSETS_SOURCES "
            "name the folder that files are delivered to, or create it"
        )
    if loaded.dataset.landing.removed_after_landing:
        return
    pattern = loaded.dataset.landing.path
    with read_from(pattern):
        for path in layout.sources.glob(pattern.replace("{day}", "????-??-??")):
            if not _is_temporary(path.relative_to(layout.sources).as_posix()):
                return
    if delivery := next(iter(known()), None):
        raise SourceError(
            f"{layout.sources}: no file fits {pattern} on any day, although {loaded.name} was landed before, such as from "
            f"{delivery.path}; correct BACKFILL_ASSETS_SOURCES, or source.path in dataset.yaml. If files are taken away "
            "once they have landed, set source.removed_after_landing: true there"
        )


def gone_from_sources(layout: Layout, deliveries: Iterable[Delivery]) -> frozenset[Place]:
    """The places of deliveries at whose path there is no file any more, or none that can be looked at."""
    return frozenset(place_of(d) for d in deliveries if not os.path.isfile(layout.sources / d.path))  # noqa: PTH113 - raises nothing


def delivered_sizes(loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date]) -> Mapping[dt.date, int]:
    """Bytes of the files that are there for each of these delivery days; days without any lack.

    Looks through the sources once, whatever the number of days, and opens no file.

    Raises:
        SourceError: a file vanishes meanwhile, or the file system does not say what is there.
    """
    pattern, days = loaded.dataset.landing.path, frozenset(delivery_days)
    sizes: dict[dt.date, int] = {}
    with read_from(pattern):
        paths = list(layout.sources.glob(pattern.replace("{day}", "????-??-??")))
    for path in paths:
        relative = path.relative_to(layout.sources).as_posix()
        for day in days.intersection(days_of(pattern, relative)):
            with read_from(relative):
                if not _is_temporary(relative) and path.is_file():
                    sizes[day] = sizes.get(day, 0) + path.stat().st_size
    return sizes


def land(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    files: Sequence[SourceFile],
    now: dt.datetime,
    rows: Mapping[FileContent, int] | None = None,
) -> tuple[Delivery, ...]:
    """Append files to raw in one commit and say what each held; those that are in it already are only counted.

    `rows` is how many rows a content had when it was landed before; where raw has another number now, it is landed again.

    Raises:
        SourceError: a file cannot be read as the dataset declares it, or changes while it is read; nothing of the batch stays then.
        StorageError: the disk is full, and raw is what it was; or the disk does not confirm what was landed.
    """
    source = loaded.dataset.landing
    for file in files:
        require_columns(file.file, file.path, source)
    path = layout.raw_path(loaded.name)
    days = sorted({f.day for f in files})
    if is_table(path):
        require_layout(loaded.dataset, read_table(spark, path), path)
    counts, before = rows_in_raw(path, days, form_of(reading_of(source))), rows or {}
    if any(f.content in counts for f in files):
        # Whoever landed them may have died before they were on the disk.
        keep(path, files_of_days(DeltaTable(path), DELIVERY_DAY, days))
    missing = {f for f in files if f.content not in counts}
    short = missing | {f for f in files if f.content in before and counts.get(f.content) != before[f.content]}
    fresh = [f for f in files if f in short and f.size]
    if fresh:
        found = [Found(f.day, f.path, f.file, f.fingerprint, f.delivered_at) for f in fresh]
        remedy = "nothing of this batch was landed: deliver the file again, whole and as dataset.yaml declares it"
        with renamed(SourceError, loaded.name, also=("FAILED_READ_FILE", "CANNOT_READ_FILE"), remedy=remedy):
            read = delivered_rows(spark, source, found, now)
            # On the disk for good: the ledger will say that these deliveries are there.
            with kept(path):
                replace_where(read, path, DELIVERY_DAY, _exactly(fresh))
    _require_still(spark, loaded, path, [f for f in files if f in short], fresh)
    measured = measured_rows(spark, loaded, layout, [f.content for f in files])
    return tuple(_delivery(loaded, f, measured.get(f.content, NOTHING_READ), now) for f in files)


def _require_still(
    spark: SparkSession, loaded: LoadedDataset, path: Path, seen: Sequence[SourceFile], landed: Sequence[SourceFile]
) -> None:
    """Take out of raw again what was just landed, if one of the files has changed while they were read.

    What the ledger will know of a file is what was seen of it: also that it was empty.
    """
    moved = [file for file in seen if not _is_still(file)]
    if not moved:
        return
    if landed:
        with kept(path):
            none = delivered_rows(spark, loaded.dataset.landing, [], EPOCH)
            replace_where(none, path, DELIVERY_DAY, _exactly(landed))
    more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
    raise SourceError(
        f"{moved[0].path}{more} changed or vanished while it was read; nothing of this batch was landed. Let files be delivered "
        "under another name, such as with .part at its end, and renamed when they are whole; then launch again"
    )


def _is_still(file: SourceFile) -> bool:
    try:
        return file.file.stat().st_size == file.size and sha256_of(file.file) == file.fingerprint
    except OSError:
        return False


def lost_from_raw(loaded: LoadedDataset, layout: Layout, known: Iterable[Delivery]) -> frozenset[dt.date]:
    """The delivery days of which raw has fewer rows than were landed, by its log alone."""
    deliveries, path = tuple(known), layout.raw_path(loaded.name)
    days = {delivery.day for delivery in deliveries if delivery.rows}
    return lost_days(deliveries, rows_by_day(path, DELIVERY_DAY, days) if days and is_table(path) else {})


def require_raw(loaded: LoadedDataset, layout: Layout, known: Iterable[Delivery]) -> None:
    """Refuse to read raw where it has fewer rows than were landed.

    Raises:
        SourceError: names the days, and the files that are not among the sources any more.
    """
    deliveries = tuple(known)
    lost = lost_from_raw(loaded, layout, deliveries)
    if not lost:
        return
    there = {f.content for f in discover(loaded, layout, lost)}
    # What does not count, nobody needs; the next landing gives it up.
    needed = (d for d in in_force(loaded.dataset, deliveries) if d.day in lost)
    gone = sorted({d.path for d in needed if d.content not in there})
    what = f"{layout.raw_path(loaded.name)}: raw has fewer rows of {format_days(lost)} than were landed"
    if not gone:
        raise SourceError(
            f"{what}; launch raw of these days: the files are still there, and are landed again. If that was done, they are read "
            "otherwise by now: set source in dataset.yaml back to what it was, or restore raw from a backup"
        )
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    raise SourceError(
        f"{what}, and {gone[0]}{more} {'are' if more else 'is'} not among the sources any more as landed then; "
        "restore raw from a backup that has them, or put the files back and launch raw of these days"
    )


def require_known(
    loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date], known: Iterable[Delivery]
) -> None:
    """Refuse to read raw where the ledger does not know what came last at a path, and no file is there: nobody can land it.

    A file at the same path, whatever its content is by now, is what counts there, and a landing tells the ledger of it. So one
    that is at work, or has died before it told the ledger, is no reason to refuse; nor is content that other has superseded since.

    Raises:
        SourceError: names a file, and the first digits of the fingerprint of what came last there.
    """
    deliveries, path = tuple(known), layout.raw_path(loaded.name)
    over = surplus_days(deliveries, rows_by_day(path, DELIVERY_DAY, delivery_days) if is_table(path) else {})
    if not over:
        return
    contents, there = {d.content for d in deliveries}, {(f.day, f.path) for f in discover(loaded, layout, over)}
    times = times_in_raw(path, over)
    last = {one[:2]: one for one in sorted(times, key=lambda one: times[one])}
    unknown = sorted(one for place, one in last.items() if one not in contents and place not in there)
    if unknown:
        day, file, fingerprint = unknown[0]
        more = f" and of {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise SourceError(
            f"{path}: raw has rows of {file} ({fingerprint[:8]}){more} that the ledger does not know as landed, and this file "
            "is not among the sources any more: the ledger may be older than raw. Restore a newer one, or put the file back with "
            f"this content, which came last there, and launch raw of {day}. If its rows must not count, delete them from raw as "
            "docs/deliveries.md says"
        )


def _is_temporary(relative: str) -> bool:
    parts = relative.split("/")
    return any(p.startswith(".") for p in parts) or parts[-1].startswith("_") or parts[-1].endswith(_TEMPORARY)


def _is_file(path: Path, relative: str) -> bool:
    """Whether there is a file, and no folder, socket or device.

    Raises:
        SourceError: it cannot be looked at, or is a link to nothing; the file may be on a volume that is not mounted.
    """
    with read_from(relative):
        if path.is_file():
            return True
    _require_target(path, relative)
    return False


def _require_links(layout: Layout, pattern: str) -> None:
    """Refuse links to nothing among the folders and names that a pattern spells out: glob passes over them.

    Raises:
        SourceError: there is such a link, or one of them cannot be looked at.
    """
    for relative in spelled_out(pattern):
        _require_target(layout.sources / relative, relative)


def _require_target(path: Path, relative: str) -> None:
    with read_from(relative):
        to_nothing = path.is_symlink() and not path.exists()
    if to_nothing:
        raise SourceError(
            f"{visible(relative)}: it is a link, and what it leads to is not there; put that back, such as by mounting its volume, "
            "or remove the link"
        )


def _source_file(
    day: dt.date, relative: str, file: Path, prints: Mapping[tuple[str, int, dt.datetime], str]
) -> SourceFile:
    status = file.stat()
    delivered_at = EPOCH + dt.timedelta(microseconds=status.st_mtime_ns // 1000)
    known = prints.get((relative, status.st_size, delivered_at))
    return SourceFile(day, relative, file, known or sha256_of(file), status.st_size, delivered_at)


def _exactly(files: Iterable[SourceFile]) -> str:
    """SQL that holds for the rows of these very deliveries.

    Replacing them makes landing idempotent, and lets Delta see that two runs land the same file at once: two
    appends would both succeed. Both conditions on the fingerprint are needed, the bare one to skip files by.
    """
    known = list(files)
    prints = ", ".join(sorted({literal(f.fingerprint) for f in known}))
    both = ", ".join(sorted(literal(f"{f.fingerprint} {f.path}") for f in known))
    return (
        f"({days_condition(DELIVERY_DAY, {f.day for f in known})}) AND _fingerprint IN ({prints}) "
        f"AND concat(_fingerprint, ' ', _source_file) IN ({both})"
    )


def _delivery(loaded: LoadedDataset, file: SourceFile, counts: Counts, now: dt.datetime) -> Delivery:
    return Delivery(
        dataset=loaded.name,
        day=file.day,
        path=file.path,
        fingerprint=file.fingerprint,
        size=file.size,
        delivered_at=file.delivered_at,
        landed_at=now,
        rows=counts.rows,
        corrupt_rows=counts.corrupt,
        reading=reading_of(loaded.dataset.landing),
    )
