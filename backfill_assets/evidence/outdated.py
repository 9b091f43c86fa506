"""Published days that an upstream has left behind, and what is launched again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.days import ONE_DAY, day_range, format_days
from backfill_assets.core.errors import EvidenceError, SourceError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import UNKNOWN_ORIGIN, Content, Hold, Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.basis import PUBLISHED, CurrentBasis, UpstreamDays, published_among
from backfill_assets.ledger.open import Ledger
from backfill_assets.warehouse import OnWarehouse

Days = tuple[dt.date, ...]
_EMPTY: Final = layout_digest(())


@dataclass(frozen=True)
class UpstreamPlaces(OnWarehouse):
    """Finds where upstream days stand: in the shadow of the unit that holds them, otherwise as published.

    A published table that waits for the very unit is never read: that would show the days as they were.
    """

    def of(self, unit: Unit | None, name: str, days: Days) -> tuple[UpstreamDays, ...]:
        """All upstream days behind these days of a dataset; without a unit, all as they are published.

        Raises:
            EvidenceError: an upstream day that the unit holds has not passed its checks.
        """
        dataset = self.datasets[name].dataset
        return tuple(self._places(unit, name, above, dataset.upstream_days(above, days)) for above in dataset.upstream)

    def _places(self, unit: Unit | None, name: str, upstream: str, days: Days) -> UpstreamDays:
        if unit is None:
            return UpstreamDays(self.datasets[upstream], {PUBLISHED: days})
        held = frozenset(unit.targets.get(upstream, ()))
        own = tuple(day for day in days if day in held)
        evidence = self.ledger.evidence(unit.id, upstream, own) if own else {}
        good = {day: e for (_, day), e in evidence.items() if e.verdicts and e.passed}
        if missing := [day for day in own if day not in good]:
            raise EvidenceError(
                f"{name} cannot be built yet: {upstream} {format_days(missing)} belongs to the same unit {unit.id} and has "
                f"not passed its checks. Materialize {upstream} first, or go on with: backfill resume {unit.handle}"
            )
        places: dict[str, list[dt.date]] = {PUBLISHED: [day for day in days if day not in good]}
        for day, found in good.items():
            if found.shadow_files:
                places.setdefault(found.folder, []).append(day)
        return UpstreamDays(self.datasets[upstream], {place: tuple(found) for place, found in places.items()})


def absent_before(
    ledger: Ledger,
    tables: Mapping[str, PublishedTable],
    dataset: Dataset,
    days: Days,
    upstreams: Collection[UpstreamDays],
) -> Mapping[dt.date, Mapping[str, Days]]:
    """By day and upstream, the days that it looks back at and that neither its unit holds nor readers see.

    `upstreams` say where the days stand. A day that was released without a row is published; one that nobody released is not.
    """
    found: dict[dt.date, dict[str, Days]] = {day: {} for day in days}
    for upstream in upstreams:
        name = upstream.loaded.name
        before = {day: [d for d in dataset.upstream_days(name, (day,)) if d != day] for day in days}
        read = frozenset(upstream.places.get(PUBLISHED, ())) & {d for own in before.values() for d in own}
        absent = read - published_among(ledger, tables[name], name, read)
        for day, own in before.items():
            if missing := tuple(d for d in own if d in absent):
                found[day][name] = missing
    return found


@dataclass(frozen=True)
class Outdated:
    """Published days of a dataset that were built from other upstream content than what is published now, or other references.

    Of the `days`, `references` are those that only their reference files, or golden sources, have left behind.
    """

    dataset: str
    days: Days
    upstream: tuple[str, ...]
    references: Days = ()

    @property
    def causes(self) -> str:
        """What has moved, for people: upstreams, the reference files, or both."""
        above = self.upstream if len(self.days) > len(self.references) else ()
        return ", ".join([*above, *(["reference file or reading of the source"] if self.references else [])])


@dataclass(frozen=True)
class OutdatedDays(OnWarehouse):
    """Finds published days that their upstreams or references have left behind; reads logs, the ledger and reference files only."""

    basis: CurrentBasis

    def of(self, name: str, days: Sequence[dt.date] | None = None) -> Outdated:
        """The outdated days of one dataset, among `days` or all that are published.

        Days whose files nobody of this project built are left out: nothing is known of what they came from. Rows are not
        read: an upstream whose files somebody else wrote counts as changed if it has another number of rows.
        """
        dataset = self.datasets[name].dataset
        upstream = tuple(dataset.upstream)
        if not (upstream or dataset.references) or not self.tables[name].exists():
            return Outdated(name, (), upstream)
        active = self.tables[name].active(days)
        filled = {day: layout_digest(files) for day, files in active.items() if files}
        asked = self._history(name, filled) if days is None else days
        empty = dict.fromkeys((day for day in asked if day not in filled), _EMPTY)
        built = self.ledger.contents(name, {**filled, **empty})
        now = self.basis.supposed_upstream(name, tuple(built))
        behind = {day for day, content in built.items() if content.upstream not in {now[day], UNKNOWN_ORIGIN}}
        referring = self._referring(name, built) - behind
        behind |= referring
        # Also an attempt that never was released may have built no row of a day.
        behind &= filled.keys() | published_among(self.ledger, self.tables[name], name, behind - filled.keys())
        return Outdated(name, tuple(sorted(behind)), upstream, tuple(sorted(behind & referring)))

    def _referring(self, name: str, built: Mapping[dt.date, Content]) -> set[dt.date]:
        """The days with the deliveries that they were built from, and with other inputs: references are all that is left."""
        known = {day: one for day, one in built.items() if one.inputs is not None and one.deliveries is not None}
        if not known or not self.datasets[name].dataset.references:
            return set()
        try:
            inputs, deliveries = self.basis.inputs(name, known), self.basis.deliveries(name, known)
        except SourceError:
            # A file is missing: whoever builds a day is told so.
            return set()
        same = {day for day, one in known.items() if one.deliveries == deliveries[day]}
        return {day for day in same if known[day].inputs != inputs[day]}

    def _history(self, name: str, filled: Collection[dt.date]) -> Days:
        """The days that may have been released without a row: up to the newest that the dataset or an upstream has."""
        dataset = self.datasets[name].dataset
        tables = (self.tables[above] for above in dataset.upstream)
        newest = (max(table.active(), default=dataset.start) for table in tables if table.exists())
        return day_range(dataset.start, max([*newest, *filled], default=dataset.start))

    def all(self) -> tuple[Outdated, ...]:
        """The outdated days of every dataset that has some."""
        found = (self.of(name) for name in self.datasets)
        return tuple(one for one in found if one.days)


_Need = dict[str, set[dt.date]]


@dataclass(frozen=True)
class Relaunch:
    """One launch: these datasets, upstream first, all of them over these days."""

    datasets: tuple[str, ...]
    days: tuple[dt.date, ...]


@dataclass(frozen=True)
class Refresh:
    """What brings outdated days up to date, and the holds on those of them that are left alone."""

    launches: tuple[Relaunch, ...]
    left_out: tuple[Hold, ...]


@dataclass(frozen=True)
class Relaunches(OnWarehouse):
    """Plans launches; launches nothing."""

    def of_unit(self, unit: Unit, missing: Collection[DatasetDay]) -> tuple[Relaunch, ...]:
        """What brings a unit the days that it lacks, and those of its days that are built from them.

        One launch, whose runs leave out what needs no work; several only if the datasets of the unit differ in their days.
        """
        need: _Need = {}
        for name, day in missing:
            need.setdefault(name, set()).add(day)
        for name in self.catalog.upstream_first(unit.targets):
            for above in self.catalog.upstreams.get(name, ()):
                behind = self._behind(name, above, need.get(above, ())) & set(unit.targets[name])
                if behind:
                    need.setdefault(name, set()).update(behind)
        days = set().union(*need.values())
        return self._rectangles({name: days & set(unit.targets[name]) for name in need})

    def of_outdated(self, outdated: Iterable[Outdated]) -> Refresh:
        """What brings outdated days up to date, together with the published days of the same date that are built from them.

        Days that only look back at them are outdated once they are released, and not before. Days on hold are left out, and
        whatever would be launched only because it is built from them.
        """
        upstreams = self.catalog.upstreams
        found: _Need = {}
        for one in outdated:
            found.setdefault(one.dataset, set()).update(one.days)
        plans: list[Relaunch] = []
        left_out: list[Hold] = []
        for group in self.catalog.groups:
            need: _Need = {}
            reached: _Need = {}
            for name in group:
                own = found.get(name, set())
                above = set().union(*(reached[upstream] for upstream in upstreams.get(name, ())))
                wanted = own | published_among(self.ledger, self.tables[name], name, above)
                held = {hold.target[1]: hold for hold in self.ledger.holds(name, own | above)}
                left_out += [hold for day, hold in held.items() if day in wanted]
                reached[name] = (own | above) - held.keys()
                need[name] = wanted - held.keys()
            plans += self._rectangles(need)
        return Refresh(tuple(plans), tuple(left_out))

    def _behind(self, name: str, above: str, days: Iterable[dt.date]) -> set[dt.date]:
        reach = self.definitions[name].upstream[above].lookback_days
        return {day + i * ONE_DAY for day in days for i in range(reach + 1)}

    def _rectangles(self, need: Mapping[str, Collection[dt.date]]) -> tuple[Relaunch, ...]:
        """Dagster launches the same days of all assets: one launch for each set of datasets that share days."""
        by_day: dict[dt.date, set[str]] = {}
        for name, days in need.items():
            for day in days:
                by_day.setdefault(day, set()).add(name)
        together: dict[tuple[str, ...], list[dt.date]] = {}
        for day in sorted(by_day):
            together.setdefault(tuple(sorted(by_day[day])), []).append(day)
        return tuple(Relaunch(self.catalog.upstream_first(names), tuple(days)) for names, days in together.items())
