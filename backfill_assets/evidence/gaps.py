"""Finds gaps: due days that are not published, and why they cannot be built now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.days import ONE_DAY, Days, day_range
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.evidence.contents import published_among
from backfill_assets.evidence.known_deliveries import KnownDeliveries, new_files
from backfill_assets.storage.sources import delivered_sizes
from backfill_assets.warehouse import OnWarehouse

_PATIENCE: Final = dt.timedelta(minutes=10)
"""How long after `live.at` a day is left to the daily schedule."""


def gaps_of(dataset: Dataset, days: Collection[dt.date], now: dt.datetime) -> Days:
    """The due days that are missing among these published days, from the first one on.

    For a growing history, up to the newest day that the daily pipeline takes at `now` (aware). For a closed history, up
    to the newest published day, because it is not specified how far to fill it. With `live.catch_up`, from `start` on, also if
    nothing is published, and up to `end` if that is over. A draft has none: nothing of it is due.
    """
    if dataset.is_draft:
        return ()
    if dataset.live.catch_up is not None:
        first, newest = dataset.start, dataset.newest_due(now)
    elif days:
        first = max(min(days), dataset.start)
        newest = max(days) if dataset.end is not None else max(*days, dataset.live_day(now))
    else:
        return ()
    return tuple(sorted(set(day_range(first, newest)) - set(days)))


def last_schedule(members: Collection[Dataset], now: dt.datetime) -> dt.datetime:
    """A moment of the newest day whose daily run of a release group has begun, if there is a daily schedule."""
    at = dt.time.fromisoformat(max(member.live.at for member in members))
    moment = (now - _PATIENCE).astimezone(next(iter(members)).zone)
    return moment - (ONE_DAY if moment.time() < at else dt.timedelta(0))


def newest_due(members: Collection[Dataset], now: dt.datetime) -> dt.date:
    """The newest day that a release group should have published at an aware moment; before `start` if there is none."""
    one = next(iter(members))
    return one.newest_due(last_schedule(members, now))


@dataclass(frozen=True)
class Gap:
    """A due day that these members of a release group have not published.

    `waits_for` says why it cannot be built now, and is empty if it can; `delivered` is False if that is because a delivery is
    missing. `unit` is the open unit of a live run that has claimed the day in some of these datasets and nothing else, such as one
    that failed.
    """

    day: dt.date
    datasets: tuple[str, ...]
    waits_for: str = ""
    delivered: bool = True
    unit: str = ""


@dataclass(frozen=True)
class Gaps(OnWarehouse):
    """Finds the gaps of release groups; lists the sources and writes nothing."""

    def of(self, group: Sequence[str]) -> tuple[Gap, ...]:
        """All gaps of a release group from `start` on, by day.

        Raises:
            SourceError: the sources cannot be listed, or a source table cannot be read.
            LayoutError: a link leads out of the sources folder.
            StorageError: a store fails.
        """
        members = {name: self.definitions[name] for name in group}
        first, newest = min(one.start for one in members.values()), newest_due(members.values(), self.clock.now())
        every_day = day_range(first, newest) if newest >= first else ()
        lacking: dict[dt.date, list[str]] = {}
        undelivered: dict[dt.date, str] = {}
        waits: dict[dt.date, str] = {}
        live: dict[dt.date, str] = {}
        for name in group:
            due = members[name].from_start(every_day)
            shown = published_among(self.ledger, self.tables[name], name, due)
            days = tuple(day for day in due if day not in shown)
            for day in days:
                lacking.setdefault(day, []).append(name)
            undelivered |= self._undelivered(name, days, due)
        for name in group:
            # A member that has published the day already may be claimed or held: no other one needs it.
            days = tuple(day for day, names in lacking.items() if name in names)
            claims = self.ledger.claims(name, days)
            units = {unit: self.ledger.unit(unit) for unit in set(claims.values())}
            for day, unit in claims.items():
                # A live run that failed may have been of fewer datasets: one that was a draft then has come since.
                within = set(units[unit].days) <= {(member, day) for member in lacking[day]}
                if units[unit].live and within and live.get(day, unit) == unit:
                    live[day] = unit
                else:
                    waits[day] = f"{name} is claimed by open unit {units[unit].handle}"
            waits |= {hold.target[1]: f"{name} is on hold: {hold.reason}" for hold in self.ledger.holds(name, days)}
        return tuple(
            Gap(
                day,
                tuple(lacking[day]),
                waits.get(day) or undelivered.get(day, ""),
                day not in undelivered,
                live.get(day, ""),
            )
            for day in sorted(lacking)
        )

    def _undelivered(self, name: str, days: Days, due: Days) -> Mapping[dt.date, str]:
        """The days without a delivery among those that need one, or without one for another day of their window.

        Where days may be empty, those before the first delivered one among the `due` days: their files may be on their way.
        """
        dataset = self.definitions[name]
        if dataset.source is None or dataset.extract is not None or not days:
            return {}
        if dataset.feed.on_missing is OnMissing.pass_ and not dataset.is_monthly:
            first = min(self._there(name, due), default=dt.date.max)
            return {day: f"{name} has no delivery yet" for day in days if day < first}
        wanted = tuple(sorted({dataset.due(day) for day in dataset.with_window(days)}))
        there = self._there(name, wanted)
        found = {}
        for day in days:
            # A provisional day is built without those that it looks ahead to.
            needed = [d for d in dataset.with_window((day,)) if d <= day or dataset.provisional is None]
            if absent := [d for d in needed if dataset.due(d) not in there]:
                looks = "looks back at" if absent[-1] < day else "looks ahead to"
                found[day] = f"{name} has no delivery{'' if day in absent else f' for {absent[-1]}, which it {looks}'}"
        return found

    def _there(self, name: str, days: Days) -> set[dt.date]:
        """The delivery days among these with rows in the source table, or with files that count or that a launch would land."""
        loaded, known = self.datasets[name], self.ledger.deliveries(name, days)
        if not loaded.dataset.lands_files:
            return set(KnownDeliveries(self.warehouse).files(name, days))
        there = {one.day for one in in_force(loaded.dataset, known)}
        # The file of a delivery that was withdrawn may still be there: only another one counts.
        withdrawn = {one.day for one in known} - there
        if missing := [day for day in days if day not in there and day not in withdrawn]:
            there |= delivered_sizes(loaded, self.layout, missing).keys()
        return there | (new_files(loaded, self.layout, withdrawn, known).keys() if withdrawn else set())
