"""Raw → gone: deletes the rows of deliveries that no longer count, and later the files that had them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import EARLIEST, Days, day_range, format_days
from backfill_assets.core.delivery import Deed, Delivery, FileContent
from backfill_assets.core.errors import ArgumentError, SourceError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import number_of
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.delta.opening import is_table, table_at
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.pipeline.deliveries import Chosen, DeliveryCommands, require_reason
from backfill_assets.pipeline.land import delete_from_raw
from backfill_assets.pipeline.raw_table import DELIVERY_DAY, contents_of_file, rows_in_raw
from backfill_assets.pipeline.tables import writing
from backfill_assets.storage.location import Location, remove_all
from backfill_assets.storage.sources import discover

_KEPT: Final = 7 * 24
"""Hours that the files of raw stay after their rows were deleted: a reader of an older version may still need them."""


@dataclass(frozen=True)
class Purged:
    """Deliveries whose rows are gone from raw, the number of these rows, and the days whose staging may still have rows of them."""

    deliveries: tuple[Delivery, ...]
    rows: int
    staged: Days = ()


@dataclass(frozen=True)
class Purge:
    """Deletes deliveries that no longer count from raw, for good.

    What counts is never deleted: withdraw it first, and build the days again that were built from it. Deliveries of days before the
    `start` of the dataset do not count: nothing is built from them any more.
    """

    pipeline: Pipeline

    def plan(self, name: str, chosen: Chosen, before: dt.date | None = None) -> Purged:
        """What `execute` would delete: contents that are not in force, of delivery days `before` this one if it is given.

        Raises:
            ArgumentError: nothing that fits has rows in raw without being in force.
            SourceError: a file is still among the sources, where it would land again; or published days were built from it.
        """
        loaded, ledger = self.pipeline.datasets[name], self.pipeline.ledger
        commands = DeliveryCommands(self.pipeline)
        history, known = frozenset(commands.all_days(name)), self._ever(name)
        force = {one for one in in_force(loaded.dataset, known) if one.day in history}
        fits = [one for one in known if chosen.fits(one) and (before is None or one.day < before)]
        there = self._rows(name, {one.day for one in fits})
        wanted = tuple(one for one in fits if one not in force and (one.rows or there.get(one.content)))
        if not wanted:
            counting = number_of(sum(one in force for one in fits), "file")
            asked = " ".join(filter(None, (str(chosen), f"--before {before}" if before is not None else "")))
            raise ArgumentError(
                f"{name}: nothing that fits {asked} has rows in raw that do not count; {counting} of it in force, to be withdrawn "
                f"first; see: backfill deliveries {name}"
            )
        self._require_gone_from_sources(name, [one for one in wanted if one.day in history])
        self._require_not_published(name, wanted)
        days = {day for one in wanted for day in loaded.dataset.brought_by(one.day)}
        now, staged = self.pipeline.basis.staged_inputs(name, days), ledger.staged(name, days)
        stale = sorted(day for day, one in staged.items() if one.inputs and one.inputs != now[day])
        return Purged(wanted, sum(there.get(one.content, 0) for one in wanted), tuple(stale))

    def execute(
        self, spark: SparkSession, name: str, chosen: Chosen, reason: str, before: dt.date | None = None
    ) -> Purged:
        """Delete the rows from raw in one commit; repeat the call if it was interrupted.

        Raises:
            ArgumentError: there is no reason, or as `plan`.
            SourceError: as `plan`.
            StorageError: raw has other rows than expected afterwards.
        """
        require_reason(reason)
        plan, ledger = self.plan(name, chosen, before), self.pipeline.ledger
        days = {one.day for one in plan.deliveries}
        with writing(spark, ledger, Layer.raw, name):
            # First the ledger: from then on a launch knows that these rows are gone, and they cannot be taken back.
            ledger.change_deliveries(plan.deliveries, Deed.purged, self.pipeline.identity.name(), reason)
            asked = {one.content for one in plan.deliveries}
            gone = [one for one in ledger.deliveries(name, days) if one.content in asked and not one.landings]
            return Purged(tuple(gone), self._delete(spark, name, gone), plan.staged)

    def old_files(self, name: str) -> tuple[str, ...]:
        """Files of raw that only had rows of purged deliveries and of such that raw still has, and left it a week ago.

        All other files that no version needs stay: after a restore, one of them may be the only copy of a delivery.
        """
        loaded, ledger = self.pipeline.datasets[name], self.pipeline.ledger
        path = self.pipeline.layout.raw_path(name)
        if not loaded.dataset.lands_files or not is_table(path):
            return ()
        known = self._ever(name)
        journal = ledger.delivery_journal(name, {one.day for one in known if not one.landings})
        entries = {(entry.day, entry.path, entry.fingerprint) for entry in journal if entry.deed is Deed.purged}
        purged = {one.content: one for one in known if not one.landings and one.content in entries}
        if not purged:
            return ()
        days = {one.day for one in purged.values()}
        rows = self._rows(name, days)
        complete = {one.content for one in known if one.landings and rows.get(one.content, 0) == one.rows > 0}
        return tuple(sorted(_only_of(path, purged.keys(), complete)))

    def delete_files(self, name: str, files: Iterable[str]) -> None:
        """Delete `old_files`."""
        home = self.pipeline.layout.raw_path(name)
        remove_all(home, [home / file for file in files])

    def _ever(self, name: str) -> tuple[Delivery, ...]:
        """All deliveries that ever landed, also of days before the dataset's `start`."""
        return self.pipeline.ledger.deliveries(
            name, day_range(EARLIEST, DeliveryCommands(self.pipeline).all_days(name)[-1])
        )

    def _rows(self, name: str, days: Collection[dt.date]) -> Mapping[FileContent, int]:
        return rows_in_raw(self.pipeline.layout.raw_path(name), days)

    def _require_gone_from_sources(self, name: str, wanted: Sequence[Delivery]) -> None:
        days = {one.day for one in wanted}
        there = {f.content for f in discover(self.pipeline.datasets[name], self.pipeline.layout, days)}
        if still := [one for one in wanted if one.content in there]:
            raise SourceError(
                f"{still[0].path}: still among the sources with this content, and would land again; remove it there, then purge it"
            )

    def _require_not_published(self, name: str, wanted: Sequence[Delivery]) -> None:
        around = DeliveryCommands(self.pipeline).built_from(name, wanted)
        if days := self.pipeline.basis.published_from(name, around, wanted):
            raise SourceError(
                f"{name} {format_days(days)}: published as built from what is to be purged; build these days again first: backfill "
                f"refresh {name}"
            )

    def _delete(self, spark: SparkSession, name: str, gone: Sequence[Delivery]) -> int:
        """Delete the rows of these deliveries, if raw has any; returns their number."""
        days, contents = {one.day for one in gone}, {one.content for one in gone}
        before = self._rows(name, days)
        if not (there := [one for one in gone if before.get(one.content)]):
            return 0
        version = table_at(self.pipeline.layout.raw_path(name)).version()
        delete_from_raw(spark, self.pipeline.datasets[name], self.pipeline.layout, there)
        expected = {content: count for content, count in before.items() if content not in contents}
        if dict(self._rows(name, days)) != expected:
            raise StorageError(
                f"{self.pipeline.layout.raw_path(name)}: raw has other rows after a purge than expected; version {version} has "
                f"those from before: RESTORE TABLE … TO VERSION AS OF {version}, and report this"
            )
        return sum(before[one.content] for one in there)


def _only_of(path: Location, purged: Collection[FileContent], complete: Collection[FileContent]) -> Iterator[str]:
    table = table_at(path)
    # Delta's own list of what is older than this and that no version since has, also of files that are gone.
    for file in table.vacuum(retention_hours=_KEPT, dry_run=True, enforce_retention_duration=False, full=True):
        name, _, rest = file.partition("=")
        day = rest.partition("/")[0]
        if name != DELIVERY_DAY or not file.endswith(".parquet") or day not in {f"{one[0]}" for one in purged}:
            continue
        contents = (
            contents_of_file(path / file, dt.date.fromisoformat(day)) if (path / file).is_there() else frozenset()
        )
        if contents & set(purged) and contents <= {*purged, *complete}:
            yield file
