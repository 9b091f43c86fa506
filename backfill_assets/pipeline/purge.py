"""Raw → gone: deletes the rows of deliveries that no longer count, and later the files that had them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from backfill_assets.core.days import format_days
from backfill_assets.core.delivery import Deed, Delivery, FileContent
from backfill_assets.core.errors import ArgumentError, BackfillError, SourceError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import in_one_line, number_of
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.delta.opening import DeltaError, is_table, table_at, tables_in
from backfill_assets.delta.reading import held_days
from backfill_assets.evidence.contents import Contents
from backfill_assets.evidence.inputs import origins_ever
from backfill_assets.evidence.known_deliveries import purged_among
from backfill_assets.evidence.raw_contents import DELIVERY_DAY, contents_of_file, rows_in_raw
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.pipeline.deliveries import Chosen, DeliveryCommands, require_reason
from backfill_assets.pipeline.land import delete_from_raw
from backfill_assets.pipeline.raw_table import require_layout
from backfill_assets.pipeline.stage import held_in_staging
from backfill_assets.pipeline.tables import read_table, write_days, writing
from backfill_assets.storage.location import Location, remove_all
from backfill_assets.storage.sources import discover

_READ_AT_MOST: Final = 10
"""How often a delivery is supposed to have been read into raw at most."""
_KEPT: Final = 7 * 24
"""Hours that the files of raw stay after their rows were deleted: a reader of an older version may still need them."""


@dataclass(frozen=True)
class Purged:
    """Deliveries whose rows are gone from raw, or would be, and the number of these rows; none if all were purged before.

    `kept` are those that were wanted as well, and that somebody has taken back meanwhile, or that count again for another reason.
    """

    deliveries: tuple[Delivery, ...] = ()
    rows: int = 0
    kept: tuple[Delivery, ...] = ()


@dataclass(frozen=True)
class Purge:
    """Deletes deliveries that no longer count from raw and from staging, for good.

    What counts is never deleted: withdraw it first, and build the days again that were built from it. Deliveries of days before the
    `start` of the dataset do not count: nothing is built from them any more.
    """

    pipeline: Pipeline

    def plan(self, name: str, chosen: Chosen, before: dt.date | None = None) -> Purged:
        """What `execute` would delete: contents that are not in force, of delivery days `before` this one if it is given.

        Raises:
            ArgumentError: nothing that fits has landed without being in force.
            SourceError: a file is still among the sources, where it would land again, or these are not there; or published days
                were built from it.
        """
        loaded, known = self.pipeline.datasets[name], self._ever(name)
        force = self._counting(name, known)
        fits = [one for one in known if _fits(one, chosen, before)]
        there, purged = self._rows(name, {one.day for one in fits}), self._purged(name, known)
        out = [one for one in fits if one not in force]
        wanted = tuple(one for one in out if one not in purged or there.get(one.content))
        if not out:
            asked = " ".join(filter(None, (str(chosen), f"--before {before}" if before is not None else "")))
            raise ArgumentError(
                f"{name}: nothing that fits {asked} has landed and does not count; {number_of(len(fits), 'file')} of it in force, "
                f"to be withdrawn first; see: backfill deliveries {name}"
            )
        if wanted:
            self._require_gone_from_sources(name, [one for one in wanted if one.day >= loaded.dataset.start])
            self._require_not_published(name, wanted)
        return Purged(wanted, sum(there.get(one.content, 0) for one in wanted))

    def execute(
        self, spark: SparkSession, name: str, chosen: Chosen, reason: str, before: dt.date | None = None
    ) -> Purged:
        """Delete the rows in one commit of each table; repeat the call if it was interrupted.

        Raises:
            ArgumentError: there is no reason, or as `plan`.
            SourceError: as `plan`, or the columns of raw are not those that are declared now.
            StorageError: raw has other rows than expected afterwards.
        """
        require_reason(reason)
        first = self.plan(name, chosen, before).deliveries
        ledger = self.pipeline.ledger
        with writing(spark, ledger, Layer.raw, name):
            # Again: a landing may have been waited for.
            wanted = self.plan(name, chosen, before).deliveries
            path = self.pipeline.layout.raw_path(name)
            if wanted and is_table(path):
                require_layout(self.pipeline.datasets[name].dataset, read_table(spark, path), path)
            # First the ledger: from then on a launch knows that these rows are gone, and they cannot be taken back.
            by = self.pipeline.identity.name()
            ledger.change_deliveries(wanted, Deed.purged, by, reason, partial(self._counting, name))
            asked = {one.content for one in (*first, *wanted)}
            now = [
                one for one in ledger.deliveries(name, {one.day for one in (*first, *wanted)}) if one.content in asked
            ]
            purged = self._purged(name, now)
            gone = tuple(one for one in now if one in purged)
            rows = self._delete(spark, name, gone)
        # Also of those that were purged before, by a call that was interrupted.
        fits = [one for one in self._purged(name, self._ever(name)) if _fits(one, chosen, before)]
        self._delete_staged(spark, name, fits)
        return Purged(gone, rows, tuple(one for one in now if one not in purged))

    def old_files(self, name: str) -> tuple[str, ...]:
        """Files of raw that only had rows of purged deliveries and of such that raw still has, and left it a week ago.

        All other files that no version needs stay: after a restore, one of them may be the only copy of a delivery.
        """
        path = self.pipeline.layout.raw_path(name)
        if not self.pipeline.datasets[name].dataset.lands_files or not is_table(path):
            return ()
        known = self._ever(name)
        if not (purged := self._purged(name, known)):
            return ()
        rows = self._rows(name, {one.day for one in purged})
        complete = {one.content for one in known if one.landings and rows.get(one.content, 0) == one.rows > 0}
        return tuple(sorted(_only_of(path, frozenset(one.content for one in purged), complete)))

    def sweep(self, name: str, *, dry_run: bool = False) -> int:
        """Delete `old_files`, or only find them; returns their number.

        Raises:
            StorageError: the log or a file of raw cannot be read.
        """
        home = self.pipeline.layout.raw_path(name)
        try:
            files = self.old_files(name)
        except (DeltaError, pa.ArrowException) as error:
            raise StorageError(f"{home}: cannot be read: {in_one_line(error)}; see: backfill doctor") from error
        if not dry_run:
            remove_all(home, [home / file for file in files])
        return len(files)

    def sweep_all(self, *, dry_run: bool = False) -> tuple[Mapping[str, int], list[str]]:
        """`sweep` of all datasets: how many files of which, and why the raw tables of others were left alone."""
        found, problems = dict[str, int](), list[str]()
        for name in self.pipeline.datasets:
            try:
                found[name] = self.sweep(name, dry_run=dry_run)
            except (BackfillError, OSError) as error:
                problems.append(f"{name}: old files of raw are left alone: {error}")
        return {name: number for name, number in found.items() if number}, problems

    def _ever(self, name: str) -> tuple[Delivery, ...]:
        """All deliveries that ever landed, also of days before the dataset's `start`."""
        return self.pipeline.ledger.deliveries_since(name, dt.date.min)

    def _counting(self, name: str, known: Iterable[Delivery]) -> frozenset[Delivery]:
        """The deliveries in force among `known`; nothing is built from those of days before `start`."""
        dataset = self.pipeline.datasets[name].dataset
        return frozenset(one for one in in_force(dataset, known) if one.day >= dataset.start)

    def _purged(self, name: str, known: Iterable[Delivery]) -> frozenset[Delivery]:
        return purged_among(self.pipeline.ledger, name, known)

    def _rows(self, name: str, days: Collection[dt.date]) -> Mapping[FileContent, int]:
        return rows_in_raw(self.pipeline.layout.raw_path(name), days)

    def _require_gone_from_sources(self, name: str, wanted: Sequence[Delivery]) -> None:
        self.pipeline.require_sources(name)
        days = {one.day for one in wanted}
        there = {f.content for f in discover(self.pipeline.datasets[name], self.pipeline.layout, days)}
        if still := [one for one in wanted if one.content in there]:
            raise SourceError(
                f"{still[0].path}: still among the sources with this content, and would land again; remove it there, then purge it"
            )

    def _require_not_published(self, name: str, wanted: Sequence[Delivery]) -> None:
        start = self.pipeline.datasets[name].dataset.start
        contents = Contents(self.pipeline.warehouse, self.pipeline.basis.fingerprints)
        # Another writer, such as a compaction, may have written the files.
        contents.of(name, DeliveryCommands(self.pipeline).built_from(name, wanted))
        # All days: when they were built, dataset.yaml may have brought them other deliveries than today.
        days = [day for day in self.pipeline.tables[name].active() if day >= start]
        known = {d: set(c.deliveries or ()) for d, c in contents.supposed_contents(name, days).items()}
        # A delivery that raw has lost no longer says how often it was read, and each time it had another name.
        ever = (replace(one, landings=max(one.landings, _READ_AT_MOST)) for one in wanted if known)
        names = frozenset(name for one in ever for name in origins_ever(one))
        if built := sorted(day for day, own in known.items() if own & names):
            raise SourceError(
                f"{name} {format_days(built)}: published as built from what is to be purged; build these days again first: "
                f"backfill refresh {name}"
            )

    def _delete(self, spark: SparkSession, name: str, gone: Sequence[Delivery]) -> int:
        """Delete the rows of these deliveries from raw, if it has any; returns their number."""
        days, contents = {one.day for one in gone}, {one.content for one in gone}
        before = self._rows(name, days)
        if not (there := [one for one in gone if before.get(one.content)]):
            return 0
        delete_from_raw(spark, self.pipeline.datasets[name], self.pipeline.layout, there)
        after = self._rows(name, days)
        # Other sessions of one Spark server land and purge at the same time: only what the ledger still has must still be there.
        landed = {
            one.content: one.rows for one in self.pipeline.ledger.deliveries(name, days) if one.content not in contents
        }
        if lost := sorted(c for c, rows in landed.items() if after.get(c, 0) < min(rows, before.get(c, 0))):
            day, path, _ = lost[0]
            raise StorageError(
                f"{self.pipeline.layout.raw_path(name)}: while rows were purged, {before[lost[0]]} rows of {path} ({day}) became "
                f"{after.get(lost[0], 0)}: another writer is at work there; see backfill doctor, and repeat the command"
            )
        return sum(before[one.content] for one in there)

    def _delete_staged(self, spark: SparkSession, name: str, gone: Sequence[Delivery]) -> None:
        """Delete all staged days that were staged from other deliveries than count now: they may have rows of these.

        Which days a delivery brought, `dataset.yaml` may have said differently then. What is needed of them is staged again.
        """
        if not gone:
            return
        loaded, layout, ledger = self.pipeline.datasets[name], self.pipeline.layout, self.pipeline.ledger
        with writing(spark, ledger, Layer.staging, name):
            there = {path: _staged_days(path) for path in tables_in(layout.staging_path(name))}
            days = sorted({day for _, own in there.values() for day in own if day >= loaded.dataset.start})
            same = {path.name for path, (partition, _) in there.items() if partition == loaded.dataset.partition_column}
            staged = {day: one for day, one in ledger.staged(name, days).items() if one.place in same}
            inputs = self.pipeline.basis.staged_inputs(name, tuple(staged))
            held = held_in_staging(loaded, layout, staged.values())
            good = {d: one.place for d, one in staged.items() if (one.inputs, one.files) == (inputs[d], held.get(d))}
            for path, (partition, own) in there.items():
                if other := [day for day in own if good.get(day) != path.name]:
                    write_days(read_table(spark, path).where("false"), path, partition, other)


def _fits(one: Delivery, chosen: Chosen, before: dt.date | None) -> bool:
    return chosen.fits(one) and (before is None or one.day < before)


def _staged_days(path: Location) -> tuple[str, tuple[dt.date, ...]]:
    """The partition column of a staged table, which an older staging model may have called otherwise, and the days that it has."""
    table = table_at(path)
    (partition,) = table.metadata().partition_columns
    return partition, tuple(sorted(day for day in held_days(table, partition) if isinstance(day, dt.date)))


def _only_of(path: Location, purged: Collection[FileContent], complete: Collection[FileContent]) -> Iterator[str]:
    days, good = {f"{one[0]}" for one in purged}, {*purged, *complete}
    # Delta's own list of what is older than this and that no version since has, also of files that are gone.
    for file in table_at(path).vacuum(retention_hours=_KEPT, dry_run=True, enforce_retention_duration=False, full=True):
        name, _, rest = file.partition("=")
        day = rest.partition("/")[0]
        if name != DELIVERY_DAY or not file.endswith(".parquet") or day not in days or not (path / file).is_there():
            continue
        try:
            contents = contents_of_file(path / file, dt.date.fromisoformat(day))
        except (pa.ArrowException, KeyError):
            continue  # of a writer that was killed, or of somebody else: nobody knows what it has
        if not contents.isdisjoint(purged) and contents <= good:
            yield file
