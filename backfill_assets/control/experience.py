"""What the units that have filled gaps of a release group found out: days that would fail again, and how many to take next."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import Days, days_argument
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import ReleaseMode, Unit, UnitState
from backfill_assets.evidence.gaps import Gap
from backfill_assets.evidence.known_deliveries import new_files
from backfill_assets.evidence.readiness import MOVED, Blocker, DayBlocker, Readiness
from backfill_assets.warehouse import OnWarehouse

AGAIN: Final = dt.timedelta(days=1)
"""How long a day waits that could not be built."""
_IN_A_ROW: Final = 3
"""So many units of one day each that fail one after the other say that the days before and after them would fail as well."""
_BEHIND: Final = MOVED | {Blocker.code_moved}
"""What makes it worth building a day again that failed its checks."""
_PACE_OF: Final = 5
"""How many units the estimate is made from."""

Group = tuple[str, ...]


@dataclass(frozen=True)
class Verdicts:
    """Whether days of a unit failed their checks, and which of its days have no verdicts in some dataset."""

    failed: bool = False
    unbuilt: frozenset[dt.date] = frozenset()

    @property
    def complete(self) -> bool:
        """Whether everything has passed."""
        return not self.failed and not self.unbuilt

    def says_something_about(self, unit: Unit) -> bool:
        """Whether a day of the unit has all of its verdicts, or one that refuses its release."""
        return self.failed or self.unbuilt != _days_of(unit)


@dataclass(frozen=True)
class Experience(OnWarehouse):
    """What the `units` that the sensor opened for a release group found out; they are in order, newest first."""

    readiness: Readiness
    group: Group
    units: Sequence[Unit]

    @property
    def open(self) -> Unit | None:
        """The unit that is not over; there is at most one."""
        return next((unit for unit in self.units if unit.state is UnitState.open), None)

    @property
    def code(self) -> str:
        """A digest of the group's present code, which the `opened_by` of each unit names as it was then."""
        return digest({name: self.catalog.code[name] for name in self.group})[:8]

    def size(self, most: int) -> int:
        """How many days the next backfill has: half as many after a unit that could not be built, then twice as many, at `most`."""
        newest = next(iter(self.units), None)
        if newest is None or _code_of(newest) != self.code:
            return most
        if newest.state is UnitState.discarded and not self.outcome(newest).failed:
            return max(1, min(_size_of(newest), most, len(_days_of(newest))) // 2)
        return min(most, 2 * _size_of(newest))

    def set_aside(self, gaps: Sequence[Gap]) -> Mapping[dt.date, str]:
        """The days that would fail again, or that were tried in vain a short time ago, each with the reason."""
        by_unit: dict[str, list[dt.date]] = {}
        judged, tried = self._judged(gaps), self.tried(gaps)
        for day, unit in judged.items():
            by_unit.setdefault(unit.id, []).append(day)
        found: dict[dt.date, str] = {}
        # What failed its checks has landed; what could not be built may not have, so only a file that came since then is new.
        since: dict[dt.date, dt.datetime] = {}
        for days in by_unit.values():
            unit = judged[days[0]]
            outcome, again = self.outcome(unit), unit.opened_at + AGAIN
            found |= self._refused(unit, tuple(sorted(days)), complete=outcome.complete)
            since |= dict.fromkeys(() if outcome.failed or outcome.complete else days, unit.opened_at)
            if days[0] in tried and self.clock.now() < again:
                found[days[0]] = (
                    f"it could not be built in unit {unit.id}; tried again after {again:%Y-%m-%d %H:%M} UTC"
                )
        moved = {day for name in self.group for day in self._with_new_files(name, tuple(found), since)}
        return {day: text for day, text in found.items() if day not in moved}

    def tried(self, gaps: Sequence[Gap]) -> Mapping[dt.date, dt.datetime]:
        """The days that could not be built alone either, with the present code, and when they were tried last."""
        return {day: unit.opened_at for day, unit in self._judged(gaps).items() if self._is_a_day_in_vain(unit)}

    def stops(self, waiting: Mapping[dt.date, str]) -> str:
        """Why no further days are built: all days of the last units wait because of what was found, so others would as well."""
        failed = list(takewhile(lambda unit: unit.state is UnitState.discarded, self.units))
        if not failed or len(_days_of(failed[0])) == 1:
            # A day that is tried once more says nothing about others.
            first = [
                unit
                for n, unit in enumerate(failed)
                if not any(self._is_a_day_in_vain(u, unit) for u in self.units[n + 1 :])
            ]
            failed = first[:_IN_A_ROW] if len(first) >= _IN_A_ROW else []
        else:
            failed = failed[:1]
        days = {day: unit.id for unit in failed for day in _days_of(unit)}
        if not days or not all(unit in waiting.get(day, "") for day, unit in days.items()):
            return ""
        command = f"backfill run {' '.join(self.catalog.upstream_first(failed[0].targets))} {days_argument(days)}"
        return (
            f"all days of the last {'unit' if len(failed) == 1 else number_of(len(failed), 'unit')} wait ({min(days)}: "
            f"{waiting[min(days)]}), and others would as well. Correct the model, the checks or the sources; or build these days "
            f"yourself: {command}"
        )

    def outcome(self, unit: Unit) -> Verdicts:
        """What the checks of a unit have found so far."""
        evidence = self.ledger.evidence(unit.id)
        judged = {key for key, found in evidence.items() if found.verdicts}
        failed = any(verdict.refuses for found in evidence.values() for verdict in found.verdicts)
        return Verdicts(failed, frozenset(day for name, day in unit.days if (name, day) not in judged))

    def pace(self) -> dt.timedelta | None:
        """How long a day took, on average of the newest published units; None before the first one."""
        done = [unit for unit in self.units if unit.state is UnitState.published][:_PACE_OF]
        ends = [max((a.ended_at for a in self.ledger.attempts(u.id) if a.ended_at), default=u.opened_at) for u in done]
        days = sum(len(_days_of(unit)) for unit in done)
        spent = sum((end - unit.opened_at for unit, end in zip(done, ends, strict=True)), dt.timedelta(0))
        return spent / days if days else None

    def _is_a_day_in_vain(self, unit: Unit, like: Unit | None = None) -> bool:
        """Whether a unit is one day that could not be built with the present code (the day of another unit, if one is given)."""
        if unit.state is not UnitState.discarded or not unit.catches_up or _code_of(unit) != self.code:
            return False
        days = _days_of(unit)
        outcome = self.outcome(unit) if len(days) == 1 and (like is None or days == _days_of(like)) else Verdicts()
        return not outcome.failed and outcome.unbuilt == days

    def _judged(self, gaps: Sequence[Gap]) -> Mapping[dt.date, Unit]:
        """By gap, the unit that was given up with the day or that a live run left open; none if there is no such unit.

        The newest one decides: an older one was judged when that one was opened. A live run without verdicts decides nothing. A
        day that is now missing in other datasets than the unit had is built from something else.
        """
        left = {gap.day: set(gap.datasets) for gap in gaps}
        claimed = [self.ledger.unit(unit) for unit in sorted({gap.unit for gap in gaps if gap.unit})]
        found: dict[dt.date, Unit] = {}
        given_up = [unit for unit in self.units if unit.state is UnitState.discarded]
        for unit in (*(unit for unit in claimed if self.outcome(unit).says_something_about(unit)), *given_up):
            had: dict[dt.date, set[str]] = {}
            for name, day in unit.days:
                had.setdefault(day, set()).add(name)
            found |= {day: unit for day, names in had.items() if day in left and left.pop(day) == names}
        return found

    def _refused(self, unit: Unit, days: Days, *, complete: bool) -> Mapping[dt.date, str]:
        """The days that would come out as they did in a unit, because nothing behind them has changed.

        They failed their checks; or, in a `complete` unit, a user has to release them, or has not done so.
        """
        blockers: dict[dt.date, list[DayBlocker]] = {day: [] for day in days}
        # The other days of the unit may be published by now, and then count as they are there.
        here = replace(unit, targets={name: tuple(sorted(set(own) & set(days))) for name, own in unit.targets.items()})
        for name, own in here.targets.items():
            for one in self.readiness.blockers(here, name, own):
                blockers[one.day].append(one)
        found: dict[dt.date, str] = {}
        names = " ".join(self.catalog.upstream_first(unit.targets))
        for day, against in blockers.items():
            reasons = {one.reason for one in against}
            failed = [str(one.detail) for one in against if one.reason is Blocker.failed]
            if reasons & _BEHIND:
                continue
            if failed:
                found[day] = f"it failed its checks in unit {unit.id}: {failed[0]}"
            elif complete and unit.mode is ReleaseMode.manual and reasons <= {Blocker.shadow_moved}:
                found[day] = (
                    f"it waits for its release: backfill publish {unit.id}"
                    if unit.state is UnitState.open
                    else f"it was given up with unit {unit.id}; build it again with: backfill run {names} {day}"
                )
        return found

    def _with_new_files(self, name: str, days: Days, since: Mapping[dt.date, dt.datetime]) -> Collection[dt.date]:
        """The days behind which there are files that have not landed, of some days only if they came `since` then."""
        loaded = self.datasets[name]
        if not loaded.dataset.lands_files or not days:
            return ()
        window, now = loaded.dataset.fact_delivery_days(days), self.clock.now()
        new = new_files(loaded, self.layout, window, self.ledger.deliveries(name, window))
        return [
            day
            for day in days
            for own in loaded.dataset.fact_delivery_days((day,))
            if any(day not in since or since[day] < file.delivered_at <= now for file in new.get(own, ()))
        ]


def _days_of(unit: Unit) -> frozenset[dt.date]:
    return frozenset(day for _, day in unit.days)


def _size_of(unit: Unit) -> int:
    """How many days a unit could have when it was opened."""
    return int(unit.opened_by.split("/")[1])


def _code_of(unit: Unit) -> str:
    """The digest of the group's code when a unit was opened."""
    return unit.opened_by.split("/")[2]
