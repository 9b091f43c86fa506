"""Finds where upstream days are, and plans the launches that build missing or stale days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from backfill_assets.core.days import ONE_DAY, Days, format_days
from backfill_assets.core.errors import EvidenceError, UnitError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.basis import PUBLISHED, UpstreamDays
from backfill_assets.evidence.contents import published_among
from backfill_assets.evidence.stale import StaleDays
from backfill_assets.ledger.open import Ledger
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class UpstreamPlaces(OnWarehouse):
    """Finds the place of upstream days: the shadow of the unit that holds them, otherwise the published table.

    Days that the unit itself holds are never read from the published table: it still shows their old state.
    """

    def of(self, unit: Unit | None, name: str, days: Days) -> tuple[UpstreamDays, ...]:
        """All upstream days behind these days of a dataset; without a unit, all are as published.

        Raises:
            EvidenceError: an upstream day that the unit holds has not passed its checks; or the `start` of an upstream hides days
                that it has published.
        """
        dataset = self.datasets[name].dataset
        for above in dataset.upstream:
            self._refuse_hidden(name, above, days)
        return tuple(self._places(unit, name, above, dataset.upstream_days(above, days)) for above in dataset.upstream)

    def _refuse_hidden(self, name: str, upstream: str, days: Days) -> None:
        """Refuse days that would read nothing of an upstream because of its `start`, though it has published days up to them."""
        start = self.definitions[upstream].start
        early = [day for day in days if day < start]
        active = self.tables[upstream].active() if early else {}
        if hidden := [day for day, files in active.items() if files and day <= max(early)]:
            raise EvidenceError(
                f"{name} {format_days(days, most=3)}: {upstream} has published days from {min(hidden)} on, and its `start` is "
                f"{start}, so they would be built without these; restore `start` in the dataset.yaml of {upstream}"
            )

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
                f"not passed its checks. Materialize {upstream} first, or run: backfill resume {unit.handle}"
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
    """By day and upstream, the days that it looks back at that are neither in its unit nor published.

    `upstreams` give the place of the days. Days released without rows are published; days never released are not.
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


_Need = dict[str, set[dt.date]]


@dataclass(frozen=True)
class Relaunch:
    """One launch of these datasets, upstream first, over the same days."""

    datasets: tuple[str, ...]
    days: tuple[dt.date, ...]


@dataclass(frozen=True)
class LeftOut:
    """A day that refresh does not build: an open unit builds it, it is on hold, or it looks ahead to days that are not over.

    `resume` names the unit or its campaign, and is empty without one; `reason` is that of the hold, if there is one.
    """

    target: DatasetDay
    resume: str = ""
    reason: str = ""
    is_early: bool = False


@dataclass(frozen=True)
class Refresh:
    """The launches that build stale days again, and the stale days that are left out."""

    launches: tuple[Relaunch, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class Relaunches(OnWarehouse):
    """Plans launches; launches nothing."""

    def of_unit(self, unit: Unit, missing: Collection[DatasetDay]) -> tuple[Relaunch, ...]:
        """The launches that build the missing days of a unit, and its days that are built from them.

        One launch, whose runs skip what needs no work; several only if the datasets of the unit differ in their days for other
        reasons than their starts.

        Raises:
            UnitError: it holds days before the `start` of a dataset, which has changed.
        """
        starts = {name: self.definitions[name].start for name in unit.targets if name in self.definitions}
        for name, start in starts.items():
            if lost := [day for day in unit.targets[name] if day < start]:
                raise UnitError(
                    f"unit {unit.id} holds {name} {format_days(lost, most=3)}, and its history begins on {start} now; restore "
                    f"`start` in its dataset.yaml, or give the unit up: backfill discard {unit.handle}"
                )
        need: _Need = {}
        for name, day in missing:
            need.setdefault(name, set()).add(day)
        for name in self.catalog.upstream_first(unit.targets):
            for above in self.catalog.upstreams.get(name, ()):
                behind = self._behind(name, above, need.get(above, ())) & set(unit.targets[name])
                if behind:
                    need.setdefault(name, set()).update(behind)
        days = set().union(*need.values())
        # Steps pass the days before a start by; a launch of their own would end before the unit is complete.
        before = {name: {day for day in days if name in starts and day < starts[name]} for name in need}
        return self._rectangles({name: before[name] | (days & set(unit.targets[name])) for name in need})

    def of_stale(self, stale: Iterable[StaleDays]) -> Refresh:
        """The launches that build stale days again, with the published days of the same date that are built from them.

        Days that only look back at them become stale when these are released, not before. Leaves out days on hold, of open
        units and after the newest one that can be published, and days that would be launched only because they are built
        from those.
        """
        upstreams = self.catalog.upstreams
        found: _Need = {}
        plans: list[Relaunch] = []
        left_out: list[LeftOut] = []
        for one in stale:
            dataset, now = self.definitions[one.dataset], self.clock.now()
            early = {day for day in one.refreshable if dataset.lag_days and day > dataset.newest_due(now)}
            found.setdefault(one.dataset, set()).update(set(one.refreshable) - early)
            left_out += [LeftOut((one.dataset, day), is_early=True) for day in sorted(early)]
        # A launch of drafts publishes nothing, so what is live is launched without them.
        for group in self.catalog.groups_apart:
            need: _Need = {}
            reached: _Need = {}
            for name in group:
                own = found.get(name, set())
                above = set().union(*(reached.get(upstream, set()) for upstream in upstreams.get(name, ())))
                wanted = own | published_among(self.ledger, self.tables[name], name, above)
                out = self.left_out(name, own | above)
                left_out += [one for day, one in out.items() if day in wanted]
                reached[name] = (own | above) - out.keys()
                need[name] = wanted - out.keys()
            plans += self._rectangles(need)
        return Refresh(tuple(plans), tuple(left_out))

    def left_out(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, LeftOut]:
        """The days among these that refresh does not build; a launch of days that a unit has claimed would be refused."""
        held = {hold.target[1]: LeftOut(hold.target, reason=hold.reason) for hold in self.ledger.holds(name, days)}
        claims = self.ledger.claims(name, days)
        handles = {unit: self.ledger.unit(unit).handle for unit in set(claims.values())}
        return held | {
            day: LeftOut((name, day), handles[unit], held[day].reason if day in held else "")
            for day, unit in sorted(claims.items())
        }

    def _behind(self, name: str, above: str, days: Iterable[dt.date]) -> set[dt.date]:
        reach = self.definitions[name].upstream[above].lookback_days
        return {day + i * ONE_DAY for day in days for i in range(reach + 1)}

    def _rectangles(self, need: Mapping[str, Collection[dt.date]]) -> tuple[Relaunch, ...]:
        """One launch for each set of datasets that share days: Dagster launches the same days of all assets."""
        by_day: dict[dt.date, set[str]] = {}
        for name, days in need.items():
            for day in days:
                by_day.setdefault(day, set()).add(name)
        together: dict[tuple[str, ...], list[dt.date]] = {}
        for day in sorted(by_day):
            together.setdefault(tuple(sorted(by_day[day])), []).append(day)
        return tuple(Relaunch(self.catalog.upstream_first(names), tuple(days)) for names, days in together.items())
