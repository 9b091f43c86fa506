"""The admission gate: whether a campaign's next batch starts, waits, or stops the campaign."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.campaign.state import BEGINNINGS, WORKING, Campaign, JournalEntry
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import format_duration, number_of
from backfill_assets.core.unit import Attempt

TRIED: Final = "tried"
"""Key in the detail of a `waits` entry: how often Spark has failed in a row."""
PAUSES: Final = (dt.timedelta(minutes=1), dt.timedelta(minutes=5), dt.timedelta(minutes=15))
"""How long a campaign waits after Spark has failed once, twice, … in a row; one failure more stops it."""


@dataclass(frozen=True)
class SparkFailure:
    """The newest failure of Spark: when, how many there were in a row, until when the campaign pauses, and the note about it."""

    at: dt.datetime
    failures: int
    until: dt.datetime
    reason: str


def failure_of_spark(journal: Sequence[JournalEntry], done: Iterable[Attempt]) -> SparkFailure | None:
    """The newest failure since a user began or resumed the campaign, and since days were built and checked (`done`).

    What was landed or staged does not count: it may succeed at each try, and the shadow after it never.
    """
    last = max((i for i, entry in enumerate(journal) if entry.action in BEGINNINGS), default=0)
    # A batch that began before the failure says nothing about Spark after it.
    begun = (attempt.started_at for attempt in done if attempt.layer == Layer.shadow)
    success = max(begun, default=dt.datetime.min.replace(tzinfo=dt.UTC))
    found = [entry for entry in journal[last:] if TRIED in entry.detail and entry.at >= success]
    if not found:
        return None
    entry = found[-1]
    until = dt.datetime.fromisoformat(str(entry.detail["until"]))
    return SparkFailure(entry.at, int(str(entry.detail[TRIED])), until, entry.reason)


@dataclass(frozen=True)
class Traffic:
    """What happens around a campaign at one moment.

    `live_runs` are running or queued live runs; `in_flight` counts the campaign's running batches; `last_batch` is when its
    last batch began, or when it was launched or resumed if that was later; `bytes_today` were read since midnight in the
    specification's time zone, `next_bytes` will be read by the next batch; `spent` is the total time of its batches so far;
    `drift` says what has changed in code or specification since the plan; `failure` is the newest one of Spark.
    """

    now: dt.datetime
    last_batch: dt.datetime
    live_runs: tuple[str, ...] = ()
    in_flight: int = 0
    bytes_today: int = 0
    next_bytes: int = 0
    spent: dt.timedelta = dt.timedelta(0)
    drift: str = ""
    failure: SparkFailure | None = None


@dataclass(frozen=True)
class Admitted:
    """The batch may start; `why` is set if it starts although live runs are running."""

    why: str = ""


@dataclass(frozen=True)
class Waits:
    """The batch must wait, at least until `until` if that is known; `own`: it waits for the campaign's own batches."""

    reason: str
    until: dt.datetime | None = None
    own: bool = False


@dataclass(frozen=True)
class Closed:
    """No batch starts until a user resumes the campaign; the run ends."""

    reason: str


@dataclass(frozen=True)
class Halts:
    """The campaign must be stopped."""

    reason: str


Decision = Admitted | Waits | Closed | Halts


def admit(campaign: Campaign, traffic: Traffic) -> Decision:
    """Decide on the next batch. What stops a campaign comes first, then what it waits for, live runs last."""
    if campaign.phase not in WORKING:
        return Closed(f"the campaign is {campaign.phase.value}")
    return _halted(campaign, traffic) or _waiting(campaign, traffic) or _live_first(campaign, traffic)


def _halted(campaign: Campaign, traffic: Traffic) -> Halts | None:
    if traffic.drift:
        return Halts(traffic.drift)
    budget = campaign.specification.execution.budget
    most = budget.bytes_read_per_day
    # A batch that is too large for a whole day would wait for ever.
    stops = budget.used_up == "stop" or (most is not None and traffic.next_bytes > most)
    if stops and (over := _over_the_day(campaign, traffic)):
        return Halts(over)
    if budget.wall_time is not None and traffic.spent >= budget.wall_time:
        spent = dt.timedelta(seconds=round(traffic.spent.total_seconds()))
        return Halts(
            f"its batches took {spent} so far (execution.budget.wall_time: {format_duration(budget.wall_time)})"
        )
    return None


def _over_the_day(campaign: Campaign, traffic: Traffic) -> str:
    """Why a batch does not fit into today's bytes; or empty."""
    most, read = campaign.specification.execution.budget.bytes_read_per_day, traffic.bytes_today + traffic.next_bytes
    if most is None or read <= most:
        return ""
    return (
        f"the next batch would bring the bytes read today to {read:,} (execution.budget.bytes_read_per_day: {most:,})"
    )


def _waiting(campaign: Campaign, traffic: Traffic) -> Waits | None:
    specification = campaign.specification
    zone = specification.zone
    if traffic.failure is not None and traffic.now < traffic.failure.until:
        return Waits(traffic.failure.reason, traffic.failure.until)
    blackouts = [w for w in specification.execution.blackout_windows if w.contains(traffic.now, zone)]
    if blackouts:
        until = max(w.ends(traffic.now, zone) for w in blackouts)
        return Waits(f"blackout window {blackouts[0]} ({specification.time_zone})", until)
    if over := _over_the_day(campaign, traffic):
        tomorrow = traffic.now.astimezone(zone).date() + ONE_DAY
        return Waits(over, dt.datetime.combine(tomorrow, dt.time(), zone).astimezone(dt.UTC))
    if traffic.in_flight >= campaign.knobs.max_concurrency:
        reason = f"running: {number_of(traffic.in_flight, 'batch')} (max_concurrency: {campaign.knobs.max_concurrency})"
        return Waits(reason, own=True)
    return None


def _live_first(campaign: Campaign, traffic: Traffic) -> Admitted | Waits:
    execution = campaign.specification.execution
    if not traffic.live_runs or not execution.pause_during_live_pipeline:
        return Admitted()
    runs = ", ".join(run[:8] for run in traffic.live_runs[:3])
    floor = execution.min_progress
    if floor is None:
        return Waits(f"live runs are running ({runs})")
    # Spread evenly: three per hour means one every twenty minutes, counted from the last one.
    due = traffic.last_batch + floor.per / floor.batches
    if traffic.now >= due:
        return Admitted(f"min_progress, although live runs are running ({runs})")
    return Waits(f"live runs are running ({runs})", due)
