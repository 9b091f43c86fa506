"""The admission gate: whether a campaign may start its next batch now."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from backfill_assets.campaign.state import WORKING, Campaign
from backfill_assets.core.text import format_duration, number_of


@dataclass(frozen=True)
class Traffic:
    """What goes on around a campaign at one moment.

    `live_runs` are live runs at work or in the queue; `in_flight` counts the campaign's batches at work; `last_batch` is
    when its last batch began, or when it was launched or resumed if that was later; `bytes_today` have been read since
    midnight in the specification's time zone, `next_bytes` the next batch will read; `spent` is the time that its batches
    took so far, added up; `drift` says what of code or specification moved since the plan.
    """

    now: dt.datetime
    last_batch: dt.datetime
    live_runs: tuple[str, ...] = ()
    in_flight: int = 0
    bytes_today: int = 0
    next_bytes: int = 0
    spent: dt.timedelta = dt.timedelta(0)
    drift: str = ""


@dataclass(frozen=True)
class Admitted:
    """The batch may start; `why` is said where it does so although live runs are at work."""

    why: str = ""


@dataclass(frozen=True)
class Waits:
    """The batch has to wait, at least until the moment given, if one is known; `own`: for the campaign's own batches."""

    reason: str
    until: dt.datetime | None = None
    own: bool = False


@dataclass(frozen=True)
class Shut:
    """No batch starts until somebody resumes the campaign; the run ends."""

    reason: str


@dataclass(frozen=True)
class Halts:
    """The campaign must be stopped."""

    reason: str


Decision = Admitted | Waits | Shut | Halts


def admit(campaign: Campaign, traffic: Traffic) -> Decision:
    """Decide on the next batch. What stops a campaign comes first, then what it waits for, live runs last."""
    if campaign.phase not in WORKING:
        return Shut(f"the campaign is {campaign.phase.value}")
    return _halted(campaign, traffic) or _waiting(campaign, traffic) or _live_first(campaign, traffic)


def _halted(campaign: Campaign, traffic: Traffic) -> Halts | None:
    if traffic.drift:
        return Halts(traffic.drift)
    budget = campaign.specification.execution.budget
    read = traffic.bytes_today + traffic.next_bytes
    if budget.bytes_read_per_day is not None and read > budget.bytes_read_per_day:
        return Halts(
            f"the next batch would bring the bytes read today to {read:,} "
            f"(execution.budget.bytes_read_per_day: {budget.bytes_read_per_day:,})"
        )
    if budget.wall_time is not None and traffic.spent >= budget.wall_time:
        spent = dt.timedelta(seconds=round(traffic.spent.total_seconds()))
        return Halts(
            f"its batches took {spent} so far (execution.budget.wall_time: {format_duration(budget.wall_time)})"
        )
    return None


def _waiting(campaign: Campaign, traffic: Traffic) -> Waits | None:
    specification = campaign.specification
    zone = specification.zone
    shut = [w for w in specification.execution.blackout_windows if w.contains(traffic.now, zone)]
    if shut:
        until = max(w.ends(traffic.now, zone) for w in shut)
        return Waits(f"blackout window {shut[0]} ({specification.time_zone})", until)
    if traffic.in_flight >= campaign.knobs.max_concurrency:
        reason = f"at work: {number_of(traffic.in_flight, 'batch')} (max_concurrency: {campaign.knobs.max_concurrency})"
        return Waits(reason, own=True)
    return None


def _live_first(campaign: Campaign, traffic: Traffic) -> Admitted | Waits:
    execution = campaign.specification.execution
    if not traffic.live_runs or not execution.pause_during_live_pipeline:
        return Admitted()
    runs = ", ".join(run[:8] for run in traffic.live_runs[:3])
    floor = execution.min_progress
    if floor is None:
        return Waits(f"live runs are at work ({runs})")
    # Spread evenly: three per hour means one every twenty minutes, counted from the last one.
    due = traffic.last_batch + floor.per / floor.batches
    if traffic.now >= due:
        return Admitted(f"min_progress, although live runs are at work ({runs})")
    return Waits(f"live runs are at work ({runs})", due)
