"""Raw: find the deliveries of some delivery days, and land every new one, once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from backfill_assets.core.days import format_days
from backfill_assets.core.delivery import Delivery, FileContent
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import form_of, reading_of
from backfill_assets.delta.reading import files_of_days, is_table, rows_by_day
from backfill_assets.delta.shadows import keep, kept
from backfill_assets.evidence.inputs import lost_days, surplus_days
from backfill_assets.lakehouse.road.files import require_columns
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
from backfill_assets.lakehouse.road.tables import read_table, replace_where
from backfill_assets.storage.files import sha256_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import EPOCH, SourceFile, discover


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
