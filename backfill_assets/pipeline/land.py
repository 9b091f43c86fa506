"""Source files → raw: decides which files to land or to read again, and lands each new file once."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import Days, day_range, format_days
from backfill_assets.core.delivery import Deed, Delivery, FileContent, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.core.layers import Layer
from backfill_assets.dataset.deliveries import (
    heads,
    in_force,
    in_order,
    outdated,
    require_in_path,
    require_known_decision,
    require_months,
    require_packed_once,
    to_land_again,
)
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.reading import form_of, reading_of
from backfill_assets.delta.opening import LOG, MarkedCommit, actions, commits, is_table, table_at
from backfill_assets.delta.reading import files_of_days
from backfill_assets.delta.shadows import kept
from backfill_assets.evidence.raw_contents import DELIVERY_DAY, rows_in_raw
from backfill_assets.extracts.take import Extracts
from backfill_assets.pipeline.formats import Found, delivered_rows, require_columns
from backfill_assets.pipeline.raw_table import (
    NOTHING_READ,
    Counts,
    lost_from_raw,
    measured_rows,
    read_again,
    require_known,
    require_layout,
)
from backfill_assets.pipeline.sql_text import literal
from backfill_assets.pipeline.tables import days_condition, read_table, renamed, replace_where, writing
from backfill_assets.storage.disk import EPOCH
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import SourceFile, discover, require_sources
from backfill_assets.warehouse import OnWarehouse


def land(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    files: Sequence[SourceFile],
    now: dt.datetime,
    rows: Mapping[FileContent, int] | None = None,
) -> tuple[Delivery, ...]:
    """Append files to raw in one commit and return a delivery for each; those that raw has and the ledger knows are counted.

    `rows` is how many rows each known content had when it was landed. If raw has another number now, the content is landed again;
    so is one that raw has and nobody knows: the run that landed it died before it compared the file with what it had read.

    Raises:
        SourceError: a file cannot be read as the dataset declares it, or changes while it is read; nothing of the batch is kept.
        StorageError: the disk is full, and raw is unchanged; or the disk does not confirm what was landed.
    """
    source = loaded.dataset.landing
    stamps = layout.sources.each(_stamp, files)
    layout.sources.each(lambda file: require_columns(file.file, file.path, source), files)
    path, commit = layout.raw_path(loaded.name), None
    days = tuple(sorted({f.day for f in files}))
    if is_table(path):
        require_layout(loaded.dataset, read_table(spark, path), path)
    counts, before = rows_in_raw(path, days, form_of(reading_of(source))), rows or {}
    short = [f for f in files if f.content not in before or counts.get(f.content) != before[f.content]]
    fresh = [f for f in short if f.size]
    if fresh:
        found = [Found(f.day, f.path, f.file, f.fingerprint, f.delivered_at) for f in fresh]
        remedy = "nothing of this batch was landed: deliver the file again, complete and as dataset.yaml declares it"
        with renamed(SourceError, loaded.name, also=("FAILED_READ_FILE", "CANNOT_READ_FILE"), remedy=remedy):
            read = delivered_rows(spark, source, found, now)
            # Durable first: the ledger will say that these deliveries have landed.
            with kept(path):
                commit = replace_where(read, path, DELIVERY_DAY, _exactly(fresh))
    _require_still(spark, loaded, layout, dict(zip(files, stamps, strict=True)), short, fresh)
    measured = measured_rows(spark, loaded, layout, [f.content for f in files])
    if commit is not None:
        _require_shown(commit, days)  # without it these rows were not counted, and the file would look empty
    return tuple(_delivery(loaded, f, measured.get(f.content, NOTHING_READ), now) for f in files)


def _require_shown(commit: MarkedCommit, days: Days) -> None:
    """Refuse a commit that is in the log and does not count: a checkpoint of another driver has the one that was written over."""
    added = {add["path"] for add in commit.read_back()}
    lost = added - files_of_days(table_at(commit.table), DELIVERY_DAY, days).keys()
    # A session of our own driver that lands the same file replaces its rows by the same.
    later = (file for version, file in commits(commit.table / LOG) if version > commit.version) if lost else ()
    if lost - {one["path"] for file in later for one in actions(file, "remove")}:
        raise commit.replaced()


def _require_still(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, stamps: Mapping[SourceFile, tuple[object, ...]],
    seen: Sequence[SourceFile], landed: Sequence[SourceFile],
) -> None:  # fmt: skip
    """Remove what was just landed from raw, if one of the files changed while they were read.

    All `seen` files are checked, also empty ones: the ledger records each as it was seen. `stamps` are from before any was read.
    """
    still = layout.sources.each(lambda file: _is_still(file, stamps[file]), seen)
    moved = [file for file, same in zip(seen, still, strict=True) if not same]
    if not moved:
        return
    if landed:
        delete_from_raw(spark, loaded, layout, landed)
    more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
    raise SourceError(
        f"{moved[0].path}{more} changed or vanished while it was read, or was touched (chmod, chown, a hard link); nothing of this "
        "batch was landed. Deliver files under a temporary name, such as with .part at its end, rename them when they are complete "
        "and leave them alone; then launch again"
    )


def delete_from_raw(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, files: Iterable[SourceFile | Delivery]
) -> None:
    """Delete the rows of exactly these deliveries, in one commit."""
    path = layout.raw_path(loaded.name)
    with kept(path):
        none = delivered_rows(spark, loaded.dataset.landing, [], EPOCH)
        replace_where(none, path, DELIVERY_DAY, _exactly(files))


def _is_still(file: SourceFile, stamp: tuple[object, ...]) -> bool:
    try:
        state, fingerprint = file.file.content()
    except OSError:
        return False
    return _stamp(file) == stamp and (state.size, fingerprint) == (file.size, file.fingerprint)


def _stamp(file: SourceFile) -> tuple[object, ...]:
    try:
        return file.file.stamp()
    except OSError:
        return ()


def require_raw(loaded: LoadedDataset, layout: Layout, known: Iterable[Delivery]) -> None:
    """Refuse to read raw if it has fewer rows than were landed.

    Raises:
        SourceError: names the days, and a file that is no longer among the sources.
    """
    deliveries = tuple(known)
    lost = lost_from_raw(loaded, layout, deliveries)
    if not lost:
        return
    there = {f.content for f in discover(loaded, layout, lost)}
    # Deliveries not in force are not needed; the next landing marks them as lost.
    needed = (d for d in in_force(loaded.dataset, deliveries) if d.day in lost)
    gone = sorted({d.path for d in needed if d.content not in there})
    what = f"{layout.raw_path(loaded.name)}: raw has fewer rows of {format_days(lost)} than were landed"
    if not gone:
        raise SourceError(
            f"{what}; launch raw of these days: their files are still there and land again. If you did that already, dataset.yaml "
            "now reads them differently: set source back to what it was, or restore raw from a backup"
        )
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    raise SourceError(
        f"{what}, and {gone[0]}{more} {'are' if more else 'is'} no longer among the sources as landed then; "
        "restore raw from a backup that has them, or put the files back and launch raw of these days"
    )


def _exactly(files: Iterable[SourceFile | Delivery]) -> str:
    """SQL that is true for the rows of exactly these deliveries.

    Replacing them makes landing idempotent and lets Delta detect two runs that land the same file at the same time: two
    appends would both succeed. The bare conditions on day and fingerprint let Delta skip files.
    """
    known = list(files)
    prints = ", ".join(sorted({literal(f.fingerprint) for f in known}))
    those = ", ".join(sorted(literal(f"{f.day} {f.fingerprint} {f.path}") for f in known))
    return (
        f"({days_condition(DELIVERY_DAY, {f.day for f in known})}) AND _fingerprint IN ({prints}) "
        f"AND concat({DELIVERY_DAY}, ' ', _fingerprint, ' ', _source_file) IN ({those})"
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


_AHEAD: Final = dt.timedelta(days=366)
"""How far into the future known deliveries are searched."""


@dataclass(frozen=True)
class Landed:
    """The result of a landing: deliveries that are now the newest at their path, and all known deliveries of the days."""

    new: tuple[Delivery, ...]
    known: tuple[Delivery, ...]


@dataclass(frozen=True)
class Landing(OnWarehouse):
    """Lands files into raw and checks raw, before a batch of days is staged."""

    def land(self, spark: SparkSession, name: str, days: Days, *, live: bool = False) -> Landed:
        """Land the deliveries from which these business days, and the other days of their windows, are built.

        A file that is already the newest at its path is skipped, unless raw has lost rows of its day. Content that is delivered
        again becomes the newest again, and is in raw already. Deliveries read under an older declaration are read again: from
        raw, which keeps the lines of text files, or from the sources if raw does not keep enough. An extract first writes the
        files of days that need one, also `again`, and those of a `live` run first.

        Raises:
            SourceError: no file fits any day, a file cannot be read as declared, or an extract fails; nothing of the batch is
                written to raw then.
        """
        self.require_sources(name)
        return self.land_what_is_there(spark, name, days, again=True, live=live)

    def land_what_is_there(
        self, spark: SparkSession, name: str, days: Days, *, again: bool = False, extracted: Days = (), live: bool = False
    ) -> Landed:  # fmt: skip
        """Like `land`, but accepts that no file of the dataset is among the sources any more: raw has what was landed.

        The caller has just `extracted` these delivery days; others are extracted if they need it, also `again` if that is set.

        Raises:
            SourceError: a file cannot be read as declared, raw does not have what is declared now, or an extract fails.
        """
        loaded = self.datasets[name]
        window = loaded.dataset.fact_delivery_days(days)
        if loaded.dataset.extract is not None:
            due = self._due(loaded, window, again=again, live=live)
            self.extract(name, tuple(day for day in due if day not in extracted), live=live)
        known = self.ledger.deliveries(name, window)
        last, lost = heads(known), lost_from_raw(loaded, self.layout, known)
        found = discover(loaded, self.layout, window)
        once_more = to_land_again(loaded.dataset, known, lost)
        files = [_as_known(f, last) for f in found if _to_land(f, last, once_more)]
        seen = {place: one.order for place, one in last.items()}
        if files:
            with writing(spark, self.ledger, Layer.raw, name):
                # Asked again: another driver may have landed some of them during the wait. Lost ones are landed in full.
                counted = self.ledger.deliveries(name, window)
                rows = {d.content: d.rows if d.landings else sys.maxsize for d in counted}
                landed = land(spark, loaded, self.layout, files, self.clock.now(), rows)
                self.ledger.add_deliveries(in_order(loaded.dataset, landed), seen)
        self._give_up(loaded, lost)
        if outdated := self.outdated_readings(name, window):
            counted = read_again(spark, loaded, self.layout, outdated)
            self.ledger.change_deliveries(counted, Deed.read, reason="source in dataset.yaml reads it differently now")
        now = self.ledger.deliveries(name, window)
        return Landed(tuple(one for place, one in heads(now).items() if seen.get(place) != one.order), now)

    def extract(self, name: str, delivery_days: Days, *, live: bool = False) -> None:
        """Write the files of these delivery days, if the dataset has an extract; raises like `Extracts.take`."""
        Extracts(self.warehouse).take(name, delivery_days, live=live)

    def _due(self, loaded: LoadedDataset, window: Days, *, again: bool, live: bool) -> Days:
        """The delivery days to extract, see `Extracts.due`; also those with a file that has not landed.

        A launch that failed may have left that file, from another query, or from another database of the same variable.
        """
        known = self.ledger.deliveries(loaded.name, window)
        last = heads(known)
        new = {f.day for f in discover(loaded, self.layout, window) if _to_land(f, last, frozenset())}
        landed = [one for one in known if one.day not in new]
        return Extracts(self.warehouse).due(loaded.dataset, window, landed, again=again, live=live)

    def _give_up(self, loaded: LoadedDataset, lost: frozenset[dt.date]) -> None:
        """Record as lost the deliveries of these days that are not in force and no longer complete in raw: none is needed."""
        known = self.ledger.deliveries(loaded.name, lost) if lost else ()
        force = set(in_force(loaded.dataset, known))
        idle = [d for d in known if d not in force and d.landings]
        counts = rows_in_raw(self.layout.raw_path(loaded.name), lost) if idle else {}
        gone = [d for d in idle if counts.get(d.content, 0) < d.rows]
        self.ledger.change_deliveries(gone, Deed.lost)

    def require_sources(self, name: str) -> None:
        """Refuse a wrong path of the sources, under which no file fits any day; an extract writes its files itself.

        Raises:
            SourceError: names the folder, and a file that was landed before.
        """
        loaded = self.datasets[name]
        if loaded.dataset.extract is not None:
            return

        def known() -> tuple[Delivery, ...]:
            ever = day_range(loaded.dataset.start, self.clock.now().date() + _AHEAD)
            return self.ledger.deliveries(name, ever)

        require_sources(loaded, self.layout, known)

    def require_known(self, name: str, days: Days) -> None:
        """Refuse to stage days while raw has rows of files that are gone and unknown to the ledger.

        Raises:
            SourceError: names a file, and says what to do.
        """
        loaded = self.datasets[name]
        if not loaded.dataset.lands_files:
            return
        window = loaded.dataset.delivery_days(days)
        require_known(loaded, self.layout, window, self.ledger.deliveries(name, window))

    def require_raw(self, name: str, days: Days, force: Sequence[Delivery]) -> None:
        """Refuse to stage days while raw has lost rows of them, or deliveries in `force` were read under an older declaration.

        Days are also refused if files that `source.path` no longer matches would count beside files that it matches, or a file
        would count plain and compressed.

        Raises:
            SourceError: names the days, or a file, and says what to do.
        """
        loaded = self.datasets[name]
        if not loaded.dataset.lands_files:
            return
        window = set(loaded.dataset.delivery_days(days))
        around = self.ledger.deliveries(name, window.union(*map(loaded.dataset.brought_by, window)))
        require_months(loaded.dataset, around)
        known = [one for one in around if one.day in window]
        require_in_path(loaded.dataset, known)
        require_packed_once(loaded.dataset, known)
        if any(one.withdrawn for one in known):
            require_known_decision(loaded.dataset, known, self.ledger.delivery_journal(name, window))
        require_raw(loaded, self.layout, known)
        if lost := [one for one in force if not one.landings]:
            raise SourceError(
                f"{lost[0].path}: it counts again, and raw has lost its rows; put the file back and launch raw of "
                f"{lost[0].day}, or withdraw it"
            )
        if any(one.reading != reading_of(loaded.dataset.landing) for one in force):
            raise SourceError(
                f"{name} {format_days(days)}: another launch has read deliveries differently meanwhile; let other launches of "
                "these days end, and launch raw of these days again"
            )

    def days_to_land(self, name: str, days: Days, *, again: bool = False) -> Days:
        """The days that need an extract, files landed or deliveries read again.

        These are days with new content, content that came back, rows that raw has lost, or deliveries read under an older
        declaration. Files are read in full: a corrected file may keep its size and its time of last change. `again` is that
        of `Extracts.due`.

        Raises:
            SourceError: a file fits two days, or is a link to nothing.
            LayoutError: a link leads out of the sources folder.
        """
        loaded = self.datasets[name]
        if not loaded.dataset.lands_files:
            return ()
        window = loaded.dataset.fact_delivery_days(days)
        known = self.ledger.deliveries(name, window)
        last, lost = heads(known), lost_from_raw(loaded, self.layout, known)
        once_more = to_land_again(loaded.dataset, known, lost)
        new = {f.day for f in discover(loaded, self.layout, window) if _to_land(f, last, once_more)}
        new |= {d.day for d in outdated(loaded.dataset, known)}
        new.update(Extracts(self.warehouse).due(loaded.dataset, window, known, again=again))
        return tuple(day for day in days if new.intersection(loaded.dataset.fact_delivery_days((day,))))

    def outdated_readings(self, name: str, window: Days) -> tuple[Delivery, ...]:
        """The deliveries in force of these delivery days that were not read as `dataset.yaml` declares them now."""
        dataset = self.datasets[name].dataset
        return outdated(dataset, self.ledger.deliveries(name, window)) if dataset.lands_files else ()


def _to_land(file: SourceFile, last: Mapping[Place, Delivery], again: frozenset[Place]) -> bool:
    """Whether a file is not the newest delivery at its path, or its place is among those to land `again`."""
    place = (file.day, file.path)
    head = last.get(place)
    return head is None or head.fingerprint != file.fingerprint or not head.landings or place in again


def _as_known(file: SourceFile, last: Mapping[Place, Delivery]) -> SourceFile:
    """The file, with its old delivery time if its content is already the newest at its path."""
    head = last.get((file.day, file.path))
    if head is None or head.fingerprint != file.fingerprint:
        return file
    return replace(file, delivered_at=head.delivered_at)
