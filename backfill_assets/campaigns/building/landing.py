"""Raw of one batch: which files are landed, and which deliveries are read again."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import day_range, format_days
from backfill_assets.core.delivery import Deed, Delivery, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.core.ports import Clock
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import heads, in_force, in_order, out_of_path, place_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import form_of, reading_of
from backfill_assets.lakehouse.road.raw import land, lost_from_raw, require_known, require_raw
from backfill_assets.lakehouse.road.raw_rows import read_again, rows_in_raw
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import SourceFile, discover, require_sources

Days = tuple[dt.date, ...]
_AHEAD: Final = dt.timedelta(days=366)
"""For so long ahead deliveries are looked for among the known ones."""


@dataclass(frozen=True)
class Landed:
    """What a landing brought: deliveries that are the newest at their path now, and all known deliveries of the days."""

    new: tuple[Delivery, ...]
    known: tuple[Delivery, ...]


@dataclass(frozen=True)
class Landing:
    """Everything that raw needs before a batch of days is staged."""

    ledger: Ledger
    datasets: Mapping[str, LoadedDataset]
    layout: Layout
    clock: Clock

    def land(self, spark: SparkSession, name: str, days: Days) -> Landed:
        """Land the deliveries from which these business days are built, those of the days that they look back at included.

        What came last at its path is skipped, but for days of which raw has lost rows. Content that comes again is the newest
        again, and in raw already. What was read otherwise than declared now is read again: from raw, which keeps the lines of
        text files, and where it does not keep enough from the sources.

        Raises:
            SourceError: no file fits any day, or a file cannot be read as declared; nothing of the batch is written then.
        """
        self.require_sources(name)
        return self.land_what_is_there(spark, name, days)

    def land_what_is_there(self, spark: SparkSession, name: str, days: Days) -> Landed:
        """The same, also where no file of the dataset is among the sources any more: raw has what was landed.

        Raises:
            SourceError: a file cannot be read as declared, or raw does not have what is declared now.
        """
        loaded = self.datasets[name]
        window = loaded.dataset.fact_delivery_days(days)
        known = self.ledger.deliveries(name, window)
        last, lost = heads(known), lost_from_raw(loaded, self.layout, known)
        found = discover(loaded, self.layout, window)
        lacking = _lacking(loaded.dataset, known, lost)
        files = [_as_known(f, last) for f in found if _to_land(f, last, lacking)]
        # What raw has lost for good is read whole, whatever is left of it.
        rows = {d.content: d.rows if d.landings else sys.maxsize for d in known}
        landed = land(spark, loaded, self.layout, files, self.clock.now(), rows) if files else ()
        seen = {place: one.order for place, one in last.items()}
        self.ledger.add_deliveries(in_order(loaded.dataset, landed), seen)
        self._give_up(loaded, lost)
        if otherwise := self.read_otherwise(name, window):
            again = read_again(spark, loaded, self.layout, otherwise)
            self.ledger.change_deliveries(again, Deed.read, reason="source in dataset.yaml reads it otherwise now")
        now = self.ledger.deliveries(name, window)
        return Landed(tuple(one for place, one in heads(now).items() if seen.get(place) != one.order), now)

    def _give_up(self, loaded: LoadedDataset, lost: frozenset[dt.date]) -> None:
        """Write down what of these days does not count and is not in raw any more: nobody can land it again, or needs it."""
        known = self.ledger.deliveries(loaded.name, lost) if lost else ()
        force = set(in_force(loaded.dataset, known))
        idle = [d for d in known if d not in force and d.landings]
        counts = rows_in_raw(self.layout.raw_path(loaded.name), lost) if idle else {}
        gone = [d for d in idle if counts.get(d.content, 0) < d.rows]
        self.ledger.change_deliveries(gone, Deed.lost)

    def require_sources(self, name: str) -> None:
        """Refuse a mistyped path of the sources, under which there is no file for any day.

        Raises:
            SourceError: names the folder, and a file that was landed before.
        """
        loaded = self.datasets[name]

        def known() -> tuple[Delivery, ...]:
            ever = day_range(loaded.dataset.start, self.clock.now().date() + _AHEAD)
            return self.ledger.deliveries(name, ever)

        require_sources(loaded, self.layout, known)

    def require_known(self, name: str, days: Days) -> None:
        """Refuse to stage days while raw has rows of files that the ledger does not know and that are gone.

        Raises:
            SourceError: names a file, and says what to do.
        """
        loaded = self.datasets[name]
        window = loaded.dataset.delivery_days(days)
        require_known(loaded, self.layout, window, self.ledger.deliveries(name, window))

    def require_raw(self, name: str, days: Days, force: Sequence[Delivery]) -> None:
        """Refuse to stage days while raw lacks rows of them, or has the deliveries in `force` otherwise than they are declared now.

        Nor are days staged of which files count that `source.path` finds no more, beside those that it finds.

        Raises:
            SourceError: names the days, or a file, and says what to do.
        """
        loaded = self.datasets[name]
        known = self.ledger.deliveries(name, loaded.dataset.delivery_days(days))
        if astray := out_of_path(loaded.dataset, known):
            raise SourceError(_astray(loaded.dataset, astray))
        require_raw(loaded, self.layout, known)
        if lacking := [one for one in force if not one.landings]:
            raise SourceError(
                f"{lacking[0].path}: it counts again, and raw has lost its rows; put the file back and launch raw of "
                f"{lacking[0].day}, or withdraw it"
            )
        if any(one.reading != reading_of(loaded.dataset.landing) for one in force):
            raise SourceError(
                f"{name} {format_days(days)}: deliveries were read otherwise meanwhile; let other launches of these days end, "
                "and launch raw of these days again"
            )

    def days_to_land(self, name: str, days: Days) -> Days:
        """The days with files to land or deliveries to read again behind them.

        That is new content, content that came back, what raw has lost, and what was read otherwise than declared now. The files
        are read: a corrected one may have the size and the time of last change of before.

        Raises:
            SourceError: a file fits two days, or is a link to nothing.
            LayoutError: a link leads out of the sources folder.
        """
        loaded = self.datasets[name]
        window = loaded.dataset.fact_delivery_days(days)
        known = self.ledger.deliveries(name, window)
        last, lost = heads(known), lost_from_raw(loaded, self.layout, known)
        lacking = _lacking(loaded.dataset, known, lost)
        new = {f.day for f in discover(loaded, self.layout, window) if _to_land(f, last, lacking)}
        new |= {d.day for d in _read_otherwise(loaded.dataset, known)}
        return tuple(day for day in days if new.intersection(loaded.dataset.fact_delivery_days((day,))))

    def read_otherwise(self, name: str, window: Days) -> tuple[Delivery, ...]:
        """The deliveries in force of these delivery days that were read otherwise than `dataset.yaml` declares them now."""
        dataset = self.datasets[name].dataset
        return () if dataset.source is None else _read_otherwise(dataset, self.ledger.deliveries(name, window))


def _astray(dataset: Dataset, deliveries: Sequence[Delivery]) -> str:
    one, more = deliveries[0], f" and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
    return (
        f"{dataset.name} {one.day}: {one.path}{more} landed under another source.path than {dataset.landing.path} and would count "
        f"beside the files that this one finds; take it out: backfill withdraw {dataset.name} {one.path} --reason TEXT, "
        "or set source.path in dataset.yaml back"
    )


def _read_otherwise(dataset: Dataset, known: Sequence[Delivery]) -> tuple[Delivery, ...]:
    reading = reading_of(dataset.landing)
    return tuple(d for d in in_force(dataset, known) if d.landings and d.reading != reading)


def _lacking(dataset: Dataset, known: Sequence[Delivery], lost: frozenset[dt.date]) -> frozenset[Place]:
    """The places of deliveries of which raw may have lost rows, and of those in force that raw keeps in another form."""
    form = form_of(reading_of(dataset.landing))
    otherwise = {place_of(d) for d in in_force(dataset, known) if form_of(d.reading) != form}
    return frozenset(otherwise | {place_of(d) for d in known if d.day in lost})


def _to_land(file: SourceFile, last: Mapping[Place, Delivery], lacking: frozenset[Place]) -> bool:
    """Whether a file is not what came last at its path, or raw lacks what it holds."""
    place = (file.day, file.path)
    head = last.get(place)
    return head is None or head.fingerprint != file.fingerprint or not head.landings or place in lacking


def _as_known(file: SourceFile, last: Mapping[Place, Delivery]) -> SourceFile:
    """What raw had lost is landed with the time that it had."""
    head = last.get((file.day, file.path))
    if head is None or head.fingerprint != file.fingerprint:
        return file
    return replace(file, delivered_at=head.delivered_at)
