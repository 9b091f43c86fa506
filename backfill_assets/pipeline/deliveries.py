"""User commands on deliveries: show which count and why, withdraw and restore wrong ones, read sources again."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import ONE_DAY, Days, day_range, format_days
from backfill_assets.core.delivery import Deed, Delivery, Place
from backfill_assets.core.errors import ArgumentError, SourceError
from backfill_assets.core.layers import Layer
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import DeliveryStanding, heads, place_of, standings
from backfill_assets.evidence.contents import published_among
from backfill_assets.evidence.known_deliveries import purged_among
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.pipeline.land import land
from backfill_assets.pipeline.tables import writing
from backfill_assets.storage.sources import SourceFile, discover

_READ_AGAIN: Final = sys.maxsize
"""More rows than a file in raw can have, so `land` reads it again."""


@dataclass(frozen=True)
class Chosen:
    """Selects deliveries by path, by prefix, or by delivery days; a delivery must fit all that are given.

    A prefix is a folder or a file, compared by complete parts of a path: `shop_1` does not select `shop_10/`.
    """

    path: str = ""
    prefix: str = ""
    days: Days = ()

    def fits(self, delivery: Delivery) -> bool:
        """Whether a delivery is selected."""
        return (
            (not self.path or delivery.path == self.path)
            and (not self.prefix or f"{delivery.path}/".startswith(f"{self.prefix.rstrip('/')}/"))
            and (not self.days or delivery.day in self.days)
        )

    def __str__(self) -> str:
        """The selection as readable text."""
        prefix = f"--prefix {self.prefix} (a folder or a file, by its full name)" if self.prefix else ""
        days = format_days(self.days) if self.days else ""
        return " ".join(filter(None, (self.path, prefix, days)))


@dataclass(frozen=True)
class ShownDelivery:
    """The state of a delivery, and what the sources have at its place now; `standing` is None for a file that has not landed."""

    day: dt.date
    path: str
    standing: DeliveryStanding | None
    source: str


@dataclass(frozen=True)
class Done:
    """The changed deliveries, the days that are built from them, and which of these days are published."""

    deliveries: tuple[Delivery, ...]
    days: Days
    published: Days


@dataclass(frozen=True)
class DeliveryCommands:
    """Commands about deliveries; each change goes into the journal of deliveries and makes the touched days stale."""

    pipeline: Pipeline

    def shown(self, name: str, days: Days = ()) -> tuple[ShownDelivery, ...]:
        """The deliveries of these delivery days, or of all, and files that have not landed; by day and path.

        Raises:
            SourceError: a file fits two days, or is a link to nothing.
        """
        loaded, ledger = self.pipeline.datasets[name], self.pipeline.ledger
        asked = self._due(name, days) or self._all_days(name)
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
        """Withdraw the newest delivery at each of these paths; it does not count until it is restored or other content arrives.

        Raises:
            ArgumentError: there is no reason, or nothing that fits has landed.
        """
        known = self._known(name)
        wanted = [one for one in heads(known).values() if chosen.fits(one)]
        return self._changed(name, chosen, wanted, Deed.withdrawn, reason)

    def restore(self, name: str, chosen: Chosen, reason: str) -> Done:
        """Restore what was withdrawn at these paths, with its old number.

        Raises:
            SourceError: raw has lost it since.
            ArgumentError: there is no reason, or nothing that fits was withdrawn.
        """
        wanted = [one for one in self._known(name) if one.withdrawn and chosen.fits(one)]
        purged = purged_among(self.pipeline.ledger, name, wanted)
        there = [one for one in wanted if one not in purged] or wanted
        _require_rows(there)
        done = self._changed(name, chosen, there, Deed.restored, reason)
        # Again: a purge may have been faster.
        asked, now = {one.content for one in there}, self.pipeline.ledger.deliveries(name, {one.day for one in there})
        _require_rows(one for one in now if one.content in asked)
        return done

    def reland(self, spark: SparkSession, name: str, chosen: Chosen, reason: str, *, force: bool = False) -> Done:
        """Read the sources of deliveries again, and replace their rows in raw.

        New and changed files land as usual. With `force`, deliveries whose file is gone are skipped: raw keeps their rows. An
        extract writes the files again, and only those that changed land.

        Raises:
            SourceError: a file is gone, or cannot be read as declared; nothing is read again then.
            ArgumentError: there is no reason, or no delivery in force is selected.
        """
        require_reason(reason)
        loaded, ledger = self.pipeline.datasets[name], self.pipeline.ledger
        chosen = replace(chosen, days=self._due(name, chosen.days))
        wanted = [one for one in heads(self._known(name)).values() if chosen.fits(one) and not one.withdrawn]
        days = tuple(sorted({one.day for one in wanted}))
        if not wanted:
            raise ArgumentError(f"{name}: no delivery in force fits {chosen}; see: backfill deliveries {name}")
        if loaded.dataset.extract is not None:
            # What comes back the same is in raw already, and no day that was built from it is stale.
            self.pipeline.extract(name, days)
            return self._done(name, self.pipeline.land_what_is_there(spark, name, days, extracted=days).new)
        there = {(f.day, f.path): f for f in discover(loaded, self.pipeline.layout, days)}
        gone = [one for one in wanted if place_of(one) not in there]
        if gone and not force:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise SourceError(
                f"{gone[0].path}{more}: no longer among the sources; put it back, or keep what raw has of missing files: --force"
            )
        self.pipeline.land(spark, name, days)
        same = [one for one in wanted if (f := there.get(place_of(one))) and f.fingerprint == one.fingerprint]
        files = [replace(there[place_of(one)], delivered_at=one.delivered_at) for one in same]
        # Before and after: days staged in between become stale, whichever rows they read.
        who = (Deed.read, self.pipeline.identity.name(), reason)
        ledger.change_deliveries(same, *who)
        read_again = {f.content: _READ_AGAIN for f in files}
        read: tuple[Delivery, ...] = ()
        if files:
            with writing(spark, ledger, Layer.raw, name):
                read = land(spark, loaded, self.pipeline.layout, files, self.pipeline.clock.now(), read_again)
                read = ledger.change_deliveries(read, *who)
        return self._done(name, read)

    def _changed(self, name: str, chosen: Chosen, wanted: Sequence[Delivery], deed: Deed, reason: str) -> Done:
        require_reason(reason)
        if not wanted:
            what = "was withdrawn" if deed is Deed.restored else "has landed"
            raise ArgumentError(f"{name}: nothing that fits {chosen} {what}; see: backfill deliveries {name}")
        return self._done(
            name, self.pipeline.ledger.change_deliveries(wanted, deed, self.pipeline.identity.name(), reason)
        )

    def _done(self, name: str, changed: tuple[Delivery, ...]) -> Done:
        days = self.built_from(name, changed)
        published = published_among(self.pipeline.ledger, self.pipeline.tables[name], name, days)
        return Done(changed, days, tuple(sorted(published)))

    def built_from(self, name: str, changed: Iterable[Delivery]) -> Days:
        """The days that are built from these deliveries, or would be if they counted."""
        dataset = self.pipeline.datasets[name].dataset
        back, ahead = dataset.lookback_days * ONE_DAY, dataset.lookahead_days * ONE_DAY
        last = dataset.end or dt.date.max
        brought = [own for one in changed if (own := dataset.brought_by(one.day))]
        days = {
            day for own in brought for day in day_range(max(dataset.start, own[0] - ahead), min(last, own[-1] + back))
        }
        return tuple(sorted(days))

    def _known(self, name: str) -> tuple[Delivery, ...]:
        return self.pipeline.ledger.deliveries_since(name, self.pipeline.datasets[name].dataset.start)

    def _due(self, name: str, days: Days) -> Days:
        dataset = self.pipeline.datasets[name].dataset
        return tuple(sorted({dataset.due(day) for day in days}))

    def _all_days(self, name: str) -> Days:
        dataset = self.pipeline.datasets[name].dataset
        newest = max(dataset.start, dataset.newest_day(self.pipeline.clock.now()))
        return dataset.fact_delivery_days(day_range(dataset.start, newest))


def _source(dataset: Dataset, one: Delivery, last: Mapping[Place, Delivery], files: Mapping[Place, SourceFile]) -> str:
    if last.get(place_of(one)) is not one:
        return ""
    file = files.get(place_of(one))
    if file is None:
        return "gone" if dataset.landing.template.fits(*place_of(one)) else "no longer fits source.path"
    return "as landed" if file.fingerprint == one.fingerprint else "other content, not landed yet"


def _require_rows(wanted: Iterable[Delivery]) -> None:
    if lost := [one for one in wanted if not one.landings]:
        raise SourceError(
            f"{lost[0].path}: raw no longer has its rows, which were lost or purged; put the file back as it was "
            f"(SHA-256 {lost[0].fingerprint}), launch raw of {lost[0].day}, then restore it"
        )


def require_reason(reason: str) -> None:
    """Refuse to change deliveries without a reason.

    Raises:
        ArgumentError: there is none.
    """
    if not reason.strip():
        raise ArgumentError("say why: --reason TEXT; the journal of deliveries keeps it")
