"""Fills the gaps of datasets with `live.catch_up`: one bounded backfill after the other, each released as a whole."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Protocol

from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.control.experience import AGAIN, Experience, Group
from backfill_assets.core.days import ONE_DAY, Days, day_range, format_days
from backfill_assets.core.errors import ClaimedDaysError
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import (
    CATCH_UP,
    REASON_TAG,
    UNIT_TAG,
    AttemptState,
    Launch,
    ReleaseMode,
    Unit,
    shown_days,
)
from backfill_assets.dataset.releasing import CatchUp, CatchUpOrder
from backfill_assets.dataset.sources import OnMissing, Upstream
from backfill_assets.evidence.gaps import Gap, Gaps, newest_due
from backfill_assets.evidence.readiness import Blocker, next_command
from backfill_assets.release.publish import Publisher
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.warehouse import OnWarehouse

_TRIES: Final = 2
"""How many backfills of a unit may end without verdicts before it is given up."""
_PAUSE: Final = dt.timedelta(minutes=5)
"""How long after a failed backfill, or after the last attempt of a failed live run, the days are tried again."""
_DOUBLED: Final = 10
"""How often the pause doubles at most: it is longer than a day by then."""
_LOCK_WAIT: Final = dt.timedelta(seconds=5)
"""How long a look waits for another one: the next one comes a minute later."""


@dataclass(frozen=True)
class Ended:
    """A native backfill that is over: when it ended, and whether a user cancelled it."""

    at: dt.datetime
    cancelled: bool = False


class UnitBackfills(Protocol):
    """The scheduler's native backfills of a unit, by its id."""

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill; returns its id."""
        ...

    def active(self, unit: str, /) -> tuple[str, ...]:
        """Ids of the unit's backfills that are not over."""
        ...

    def ended(self, unit: str, since: dt.datetime, /) -> tuple[Ended, ...]:
        """The unit's backfills that are over, newest first; it was opened at `since` (aware)."""
        ...


@dataclass(frozen=True)
class CaughtUp:
    """How far a release group has caught up.

    `to` is the last day before the first gap, None if there is no such day. `ready` are the gaps that come next, `waiting` gives
    the reason of each of the others; `unit` says what the open unit builds or waits for, `stops` why nothing further is launched.
    `runs` is the number of backfills that `ready` takes, `until` when the last one will have ended; None if no unit has been
    published yet.
    """

    group: Group
    to: dt.date | None
    ready: Days
    waiting: Mapping[dt.date, str]
    unit: str = ""
    stops: str = ""
    runs: int = 0
    until: dt.datetime | None = None


@dataclass(frozen=True)
class CatchUps(OnWarehouse):
    """Decides which gaps come next; `live_days` gives the days that live runs work on, or wait for in the queue."""

    publisher: Publisher
    live_days: Callable[[], Collection[dt.date]]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The release groups that catch up."""
        return tuple(
            group for group in self.catalog.live_groups if self.definitions[group[0]].live.catch_up is not None
        )

    def state(self, group: Group) -> CaughtUp:
        """How far a release group has caught up, and what it waits for.

        Raises:
            SourceError: the sources cannot be listed, or a source table cannot be read.
        """
        experience, gaps = self._experience(group), Gaps(self.warehouse).of(group)
        opened, pace = experience.open, experience.pace()
        at_work = {day for _, day in opened.days} if opened is not None else set[dt.date]()
        ready, waiting = self._sorted_out(experience, [gap for gap in gaps if gap.day not in at_work])
        members = [self.definitions[name] for name in group]
        last = gaps[0].day - ONE_DAY if gaps else newest_due(members, self.clock.now())
        return CaughtUp(
            group, last if last >= min(one.start for one in members) else None, tuple(gap.day for gap in ready), waiting,
            self._about(opened) if opened is not None else "", experience.stops(waiting),
            -(-len(ready) // self._asked(group).days_per_run),
            self.clock.now() + pace * (len(ready) + len(at_work)) if pace is not None else None,
        )  # fmt: skip

    def _experience(self, group: Group) -> Experience:
        # Each unit is named after the first dataset that the group had then.
        found = {unit.id: unit for name in group for unit in self.ledger.units(launch=f"{CATCH_UP}{name}")}
        units = sorted(found.values(), key=lambda unit: (unit.opened_at, unit.id), reverse=True)
        return Experience(self.warehouse, self.publisher.readiness, group, units)

    def _sorted_out(self, experience: Experience, gaps: Sequence[Gap]) -> tuple[tuple[Gap, ...], Mapping[dt.date, str]]:
        """The gaps that can be built now, and the reason of each of the others."""
        above = self._above(experience.group)
        live = self.live_days()
        waits = {gap.day: gap.waits_for for gap in gaps if gap.waits_for}
        waits |= {gap.day: "a live run works on it" for gap in gaps if gap.day in live or self._is_at_work(gap.unit)}
        waits |= experience.set_aside([gap for gap in gaps if gap.day not in waits])
        reach = max((one.lookback_days for one in above), default=0)
        needs = max((one.lookback_days for one in above if one.on_missing is OnMissing.fail), default=0)
        empty = {gap.day for gap in gaps if not gap.delivered}
        for day in sorted(gap.day for gap in gaps if gap.day not in waits):
            before = (d for d in day_range(day - reach * ONE_DAY, day) if d in waits)
            # A day that is never delivered may be missing where `on_missing: pass` says so.
            if behind := [d for d in before if d not in empty or d >= day - needs * ONE_DAY]:
                waits[day] = f"it is built from {behind[-1]} as well, which waits"
        return tuple(gap for gap in gaps if gap.day not in waits), dict(sorted(waits.items()))

    def _following(self, experience: Experience, ready: Sequence[Gap]) -> tuple[Gap, ...]:
        """The gaps of the next backfill: those of the last `watch_days` first, all missing in the same datasets.

        Where days are built from earlier days, the oldest gaps always come first. A day that could not be built is alone, and comes
        after all others that are not built from it.
        """
        if not ready:
            return ()
        tried, in_turn = experience.tried(ready), any(one.lookback_days for one in self._above(experience.group))
        fresh = [gap for gap in ready if gap.day not in tried]
        if in_turn:
            fresh = list(takewhile(lambda gap: gap.day not in tried, ready))
        if not fresh:
            return (ready[0] if in_turn else min(ready, key=lambda gap: tried[gap.day]),)
        members = [self.definitions[name] for name in experience.group]
        watched = newest_due(members, self.clock.now()) - max(one.live.watch_days for one in members) * ONE_DAY
        pool = [gap for gap in fresh if gap.day > watched and not in_turn] or fresh
        if self._asked(experience.group).order is CatchUpOrder.newest:
            pool.reverse()
        same = list(takewhile(lambda gap: gap.datasets == pool[0].datasets, pool))
        return tuple(sorted(same[: self._size(experience)], key=lambda gap: gap.day))

    def _asked(self, group: Group) -> CatchUp:
        # The members agree, see `SHARED`.
        return self.definitions[group[0]].live.catch_up or CatchUp()

    def _size(self, experience: Experience) -> int:
        return experience.size(self._asked(experience.group).days_per_run)

    def _above(self, group: Group) -> Sequence[Upstream]:
        """What the members are built from: tables of the group, which may have gaps themselves."""
        return [one for name in group for one in self.definitions[name].upstream.values()]

    def _is_at_work(self, unit: str) -> bool:
        """Whether a live run works on its open unit, or has so recently that Dagster may still repeat it."""
        if not unit:
            return False
        now = self.clock.now()
        ended = [one.ended_at for one in self.ledger.attempts(unit) if one.ended_at is not None]
        return self._works(unit) or now - max([self.ledger.unit(unit).opened_at, *ended]) < _PAUSE

    def _works(self, unit: str) -> bool:
        """Whether a worker holds a lease on days of a unit."""
        now, attempts = self.clock.now(), self.ledger.attempts(unit)
        return any(one.state is AttemptState.running and one.lease_until > now for one in attempts)

    def _about(self, unit: Unit) -> str:
        survey = self.publisher.survey(unit.id)
        about = f"unit {unit.id} has {shown_days(unit.days)}"
        if not survey.blockers:
            return f"{about}, waits for its release: {next_command(survey)}"
        if failed := {one.day for one in survey.blockers if one.reason is Blocker.failed}:
            return (
                f"{about}; {format_days(failed)} failed checks: {next_command(survey)}, or: backfill discard {unit.id}"
            )
        return f"{about}; if no run works on it: {next_command(survey)}"


@dataclass(frozen=True)
class CatchingUp(CatchUps):
    """Takes the next step of each release group that catches up; every step is safe to repeat."""

    backfills: UnitBackfills

    def step(self, group: Group) -> str:
        """Launch what is due, or give up a unit that cannot be released; returns a sentence on what was done, or nothing.

        Raises:
            SourceError: the sources cannot be listed, or a source table cannot be read.
        """
        # One process at a time: two would open units for the same days.
        with self.ledger.lock(f"catch_up:{group[0]}", _LOCK_WAIT):
            experience = self._experience(group)
            opened = experience.open
            return self._continue(experience, opened) if opened is not None else self._begin(experience)

    def _begin(self, experience: Experience) -> str:
        ready, waiting = self._sorted_out(experience, Gaps(self.warehouse).of(experience.group))
        chosen = self._following(experience, ready)
        if not chosen or experience.stops(waiting):
            return ""
        for failed in sorted({gap.unit for gap in chosen if gap.unit}):
            # A live run opened it and failed: its days are free for this unit.
            self._reconcile.discard(failed, _LOCK_WAIT)
        return self._launch(self._opened(experience, chosen))

    @property
    def _reconcile(self) -> Reconcile:
        return Reconcile(self.warehouse, self.publisher.after)

    def _opened(self, experience: Experience, gaps: Sequence[Gap]) -> Unit:
        """A unit that has claimed these days.

        Raises:
            ClaimedDaysError: another unit has claimed some of them since they were looked at.
        """
        unit, days = self.ids.new("u"), tuple(gap.day for gap in gaps)
        targets = dict.fromkeys(gaps[0].datasets, days)
        first = experience.group[0]
        opened_by = f"{CATCH_UP}{first}/{self._size(experience)}/{experience.code}/{unit}"
        launch = Launch({name: frozenset(days) for name in targets}, opened_by)
        mode = ReleaseMode.auto if self.definitions[first].is_released_by_runs else ReleaseMode.manual
        proposal = Unit(unit, opened_by, self.clock.now(), self.identity.name(), targets, mode)
        opened = self.ledger.assign(launch, proposal)
        if opened.opened_by != opened_by:
            raise ClaimedDaysError(f"{shown_days(proposal.days)}: claimed by open unit {opened.id}")
        return opened

    def _launch(self, unit: Unit) -> str:
        names, days = self.catalog.upstream_first(unit.targets), tuple(sorted({day for _, day in unit.days}))
        reason = f"catch up: {number_of(len(days), 'due day')} not published"
        request = BackfillRequest(
            layers={name: self.definitions[name].launched_layers for name in names},
            days=days,
            title=f"catch up {names[0]}: {number_of(len(days), 'day')}",
            description=reason,
            # After the backfills that people and campaigns have launched.
            tags={UNIT_TAG: unit.id, REASON_TAG: reason, "dagster/priority": "-1"},
        )
        backfill = self.backfills.launch(request)
        return f"launched backfill {backfill} over {', '.join(names)} {format_days(days)} in unit {unit.id}"

    def _continue(self, experience: Experience, unit: Unit) -> str:
        """The next step of an open unit: nothing while a backfill works on it, or while a person has to decide."""
        if lost := unit.targets.keys() - self.definitions.keys():
            return f"unit {unit.id} waits: {', '.join(sorted(lost))} cannot be loaded"
        if self.backfills.active(unit.id) or self._works(unit.id):
            return ""
        ended = self.backfills.ended(unit.id, unit.opened_at)
        # A backfill that was cancelled, and what somebody releases, are left to people.
        if ended and (ended[0].cancelled or (unit.mode is ReleaseMode.manual and experience.outcome(unit).complete)):
            return ""
        if not unit.targets.keys() <= set(experience.group):
            return self._give_up(unit, "its datasets are no longer one release group")
        if not ended:
            return self._launch(unit)
        blockers = self.publisher.survey(unit.id).blockers
        if failed := [one for one in blockers if one.reason is Blocker.failed]:
            days = format_days({one.day for one in failed}, most=3)
            return self._give_up(unit, f"{days} failed checks (first: {failed[0].detail})")
        if blockers and len(ended) >= _TRIES:
            return self._give_up(unit, f"{len(ended)} backfills could not build it")
        # If nothing is missing but the release, it is tried again less and less often.
        pause = _PAUSE if blockers else min(AGAIN, _PAUSE * 2 ** min(len(ended) - 1, _DOUBLED))
        return self._launch(unit) if self.clock.now() - ended[0].at >= pause else ""

    def _is_at_work(self, unit: str) -> bool:
        # Somebody may have resumed the unit of a failed live run.
        return super()._is_at_work(unit) or (bool(unit) and bool(self.backfills.active(unit)))

    def _give_up(self, unit: Unit, why: str) -> str:
        self._reconcile.discard(unit.id, _LOCK_WAIT)
        return f"gave up unit {unit.id} of {shown_days(unit.days)}: {why}"
