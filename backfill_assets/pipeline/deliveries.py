"""What a person does with deliveries: look which count and why, take wrong ones out and back, read sources again."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import ONE_DAY, day_range, format_days
from backfill_assets.core.delivery import Deed, Delivery, Place
from backfill_assets.core.errors import ArgumentError, SourceError
from backfill_assets.core.fields import fits
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import DeliveryStanding, heads, place_of, standings
from backfill_assets.evidence.basis import published_among
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.pipeline.land import land
from backfill_assets.storage.files import SourceFile, discover

Days = tuple[dt.date, ...]

_READ_AGAIN: Final = sys.maxsize
"""More rows than raw can have of a file: `land` reads it again."""


@dataclass(frozen=True)
class Chosen:
    """Which deliveries are meant: a path, or all below a prefix, or delivery days; all that are given count.

    A prefix is a folder, or a file: whole parts of a path, so that `shop_1` does not mean `shop_10/` as well.
    """

    path: str = ""
    prefix: str = ""
    days: Days = ()

    def fits(self, delivery: Delivery) -> bool:
        """Whether a delivery is meant."""
        return (
            (not self.path or delivery.path == self.path)
            and (not self.prefix or f"{delivery.path}/".startswith(f"{self.prefix.rstrip('/')}/"))
            and (not self.days or delivery.day in self.days)
        )

    def __str__(self) -> str:
        """What is meant, for people."""
        prefix = f"--prefix {self.prefix} (a folder or a file, by its whole name)" if self.prefix else ""
        days = format_days(self.days) if self.days else ""
        return " ".join(filter(None, (self.path, prefix, days)))


@dataclass(frozen=True)
class ShownDelivery:
    """How a delivery stands, and what the sources have in its place now; `standing` is none for a file that has not landed."""

    day: dt.date
    path: str
    standing: DeliveryStanding | None
    source: str


@dataclass(frozen=True)
class Done:
    """Deliveries that were changed, the days that are built from them, and those of these days that are published."""

    deliveries: tuple[Delivery, ...]
    days: Days
    published: Days


@dataclass(frozen=True)
class DeliveryCommands:
    """Commands about deliveries; each change is in the journal of deliveries and makes the touched days stale."""

    pipeline: Pipeline

    def shown(self, name: str, days: Days = ()) -> tuple[ShownDelivery, ...]:
        """The deliveries of these delivery days, or of all, and files that have not landed; by day and path.

        Raises:
            SourceError: a file fits two days, or is a link to nothing.
        """
        loaded, ledger = self.pipeline.datasets[name], self.pipeline.ledger
        asked = days or self._all_days(name)
        known = ledger.deliveries(name, asked)
        files = {(f.day, f.path): f for f in discover(loaded, self.pipeline.layout, asked)}
        last, journal = heads(known), ledger.delivery_journal(name, asked)
        found = [
            ShownDelivery(*place_of(one.delivery), one, _source(loaded.dataset, one.delivery, last, files))
            for one in standings(loaded.dataset, known, journal)
        ]
        landed = {place_of(one) for one in known}
        found += [ShownDelivery(day, path, None, "not landed yet") for day, path in files if (day, path) not in landed]
        return tuple(sorted(found, key=lambda one: (one.day, one.path)))

    def withdraw(self, name: str, chosen: Chosen, reason: str) -> Done:
        """Take out what came last at these paths; it counts no more until it is taken back, or other content comes.

        Raises:
            ArgumentError: there is no reason, or nothing of that name has landed.
        """
        known = self._known(name)
        wanted = [one for one in heads(known).values() if chosen.fits(one)]
        return self._changed(name, chosen, wanted, (Deed.withdrawn, reason))

    def restore(self, name: str, chosen: Chosen, reason: str) -> Done:
        """Take back what was withdrawn at these paths, with its old number.

        Raises:
            SourceError: raw has lost it since.
            ArgumentError: there is no reason, or nothing of that name was withdrawn.
        """
        wanted = [one for one in self._known(name) if one.withdrawn and chosen.fits(one)]
        if lost := [one for one in wanted if not one.landings]:
            raise SourceError(
                f"{lost[0].path}: raw has lost its rows since it was withdrawn; put the file back as it was "
                f"(SHA-256 {lost[0].fingerprint}), launch raw of {lost[0].day}, and take it back then"
            )
        return self._changed(name, chosen, wanted, (Deed.restored, reason))

    def reland(self, spark: SparkSession, name: str, chosen: Chosen, reason: str, *, force: bool = False) -> Done:
        """Read the sources of deliveries again, and put what is read in the place of their rows in raw.

        Files that have come or changed land as ever. With `force` deliveries whose file is gone are left out: raw stands for them.

        Raises:
            SourceError: a file is gone, or cannot be read as declared; nothing is read again then.
            ArgumentError: there is no reason, or nothing in force is meant.
        """
        _require(reason)
        loaded, ledger = self.pipeline.datasets[name], self.pipeline.ledger
        wanted = [one for one in heads(self._known(name)).values() if chosen.fits(one) and not one.withdrawn]
        days = tuple(sorted({one.day for one in wanted}))
        if not wanted:
            raise ArgumentError(f"{name}: no delivery in force fits {chosen}; see: backfill deliveries {name}")
        there = {(f.day, f.path): f for f in discover(loaded, self.pipeline.layout, days)}
        gone = [one for one in wanted if place_of(one) not in there]
        if gone and not force:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise SourceError(
                f"{gone[0].path}{more}: not among the sources any more; put it back, or leave what is gone as raw has it: --force"
            )
        self.pipeline.land(spark, name, days)
        same = [one for one in wanted if (f := there.get(place_of(one))) and f.fingerprint == one.fingerprint]
        files = [replace(there[place_of(one)], delivered_at=one.delivered_at) for one in same]
        # Before and after: what is staged in between is stale, whichever rows it took.
        who = (Deed.read, self.pipeline.identity.name(), reason)
        ledger.change_deliveries(same, *who)
        read_again = {f.content: _READ_AGAIN for f in files}
        read = land(spark, loaded, self.pipeline.layout, files, self.pipeline.clock.now(), read_again) if files else ()
        return self._done(name, ledger.change_deliveries(read, *who))

    def _changed(self, name: str, chosen: Chosen, wanted: Sequence[Delivery], how: tuple[Deed, str]) -> Done:
        deed, reason = how
        _require(reason)
        if not wanted:
            what = "was withdrawn" if deed is Deed.restored else "has landed"
            raise ArgumentError(f"{name}: nothing that fits {chosen} {what}; see: backfill deliveries {name}")
        return self._done(
            name, self.pipeline.ledger.change_deliveries(wanted, deed, self.pipeline.identity.name(), reason)
        )

    def _done(self, name: str, changed: tuple[Delivery, ...]) -> Done:
        dataset = self.pipeline.datasets[name].dataset
        late, back = dataset.landing.late_days * ONE_DAY, dataset.lookback_days * ONE_DAY
        last = dataset.end or dt.date.max
        days = {
            day for one in changed for day in day_range(max(dataset.start, one.day - late), min(last, one.day + back))
        }
        published = published_among(self.pipeline.ledger, self.pipeline.tables[name], name, days)
        return Done(changed, tuple(sorted(days)), tuple(sorted(published)))

    def _known(self, name: str) -> tuple[Delivery, ...]:
        return self.pipeline.ledger.deliveries(name, self._all_days(name))

    def _all_days(self, name: str) -> Days:
        dataset = self.pipeline.datasets[name].dataset
        newest = max(dataset.start, dataset.newest_day(self.pipeline.clock.now()))
        return dataset.delivery_days(day_range(dataset.start, newest))


def _source(dataset: Dataset, one: Delivery, last: Mapping[Place, Delivery], files: Mapping[Place, SourceFile]) -> str:
    if last.get(place_of(one)) is not one:
        return ""
    file = files.get(place_of(one))
    if file is None:
        return "gone" if fits(dataset.landing.path, *place_of(one)) else "fits source.path no more"
    return "as landed" if file.fingerprint == one.fingerprint else "other content, not landed yet"


def _require(reason: str) -> None:
    if not reason.strip():
        raise ArgumentError("say why: --reason TEXT; the journal of deliveries keeps it")
