"""What is to be launched again: what an open unit lacks, and what an upstream has left behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from backfill_assets.campaigns.building.standing import published_among
from backfill_assets.campaigns.building.upstream import Outdated
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.unit import Hold, Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.lineage import release_groups, upstream_first, upstreams_of
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger

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
class Relaunches:
    """Plans launches; launches nothing."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]
    datasets: Mapping[str, Dataset]

    def of_unit(self, unit: Unit, lacking: Collection[DatasetDay]) -> tuple[Relaunch, ...]:
        """What brings a unit the days that it lacks, and those of its days that are built from them.

        One launch, whose runs leave out what needs no work; several only if the datasets of the unit differ in their days.
        """
        need: _Need = {}
        for name, day in lacking:
            need.setdefault(name, set()).add(day)
        upstreams = upstreams_of(self.datasets)
        for name in upstream_first(unit.targets, upstreams):
            for above in upstreams.get(name, ()):
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
        upstreams = upstreams_of(self.datasets)
        found: _Need = {}
        for one in outdated:
            found.setdefault(one.dataset, set()).update(one.days)
        plans: list[Relaunch] = []
        left_out: list[Hold] = []
        for group in release_groups(upstreams):
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
        reach = self.datasets[name].upstream[above].lookback_days
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
        upstreams = upstreams_of(self.datasets)
        return tuple(Relaunch(upstream_first(names, upstreams), tuple(days)) for names, days in together.items())
