"""The verdict on a unit in one sentence: whether it can be released, and if not, what is worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum

from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.expected_change import UNCHANGED, Change
from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.core.text import in_words, number_of
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.checks import PERCENTILES
from backfill_assets.report.causes import Reach
from backfill_assets.report.concerns import Concern, in_one_sentence
from backfill_assets.report.facts import Made, ReviewedDay, RowTotals
from backfill_assets.report.series import DayState, MetricChange, Series

_MOST_METRICS = 2
_HUNDREDTH = Decimal("0.0001")
_SHORT = 12
_PROMISED = "the launch's contract"
_OPEN_PROBLEMS = (DayState.failed, DayState.missing, DayState.stale)


class Outcome(StrEnum):
    """The outcome of a verdict."""

    ready = "ready"
    warning = "ready, with warnings"
    not_ready = "not ready"
    published = "published"
    rolled_back = "rolled back"
    given_up = "given up"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a unit: its outcome, and one sentence that says why."""

    outcome: Outcome
    sentence: str


@dataclass(frozen=True)
class Grounds:
    """The grounds of a judgement; `proofs` counts certified days by dataset, `golden` the golden sources that agree.

    `refusals` are what else keeps a campaign with current evidence from being released, `later` why not right now.
    """

    state: UnitState
    days: Sequence[ReviewedDay]
    concerns: Sequence[Concern]
    series: Sequence[Series]
    reaches: Sequence[Reach]
    releases: Sequence[Made]
    rows: Sequence[RowTotals] = ()
    pending: str = ""
    proofs: Mapping[str, int] = field(default_factory=dict)
    golden: int = 0
    refusals: Sequence[str] = ()
    later: str = ""


def judge_unit(grounds: Grounds) -> Judgement:
    """The verdict on a unit as it stands."""
    match grounds.state:
        case UnitState.open:
            return _open(grounds)
        case UnitState.published:
            return Judgement(Outcome.published, f"{_made(grounds, 'publish', 'Published')}{_published(grounds)}.")
        case UnitState.rolled_back:
            return Judgement(Outcome.rolled_back, _rolled_back(grounds))
        case UnitState.discarded:
            return Judgement(Outcome.given_up, f"Given up: nothing of its {_count(grounds.days)} is published.")


def _open(grounds: Grounds) -> Judgement:
    said = in_one_sentence(grounds.concerns, len(grounds.days))
    problems = Counter(day.state for day in grounds.days if day.state in _OPEN_PROBLEMS)
    if any(concern.blocks for concern in grounds.concerns):
        return Judgement(Outcome.not_ready, f"Not ready: {said}.")
    if problems:
        first = next(day for day in grounds.days if day.state in _OPEN_PROBLEMS)
        how = ", ".join(f"{count:,} {state.value}" for state, count in sorted(problems.items()))
        why = f": {first.why[0]}" if first.why else ""
        text = f"Not ready: of {_count(grounds.days)} {how}; first {first.dataset} {first.day}{why}."
        return Judgement(Outcome.not_ready, text)
    if grounds.refusals:
        return Judgement(Outcome.not_ready, f"Not ready: {'; '.join(one.rstrip('.') for one in grounds.refusals)}.")
    wait = f"; waits for an approval of evidence {grounds.pending[:_SHORT]}" if grounds.pending else ""
    wait += f"; but not now: {grounds.later.rstrip('.')}" if grounds.later else ""
    if said:
        return Judgement(
            Outcome.warning, f"Ready to publish, but look at this first: {said}; {_passed(grounds.days)}{wait}."
        )
    return Judgement(Outcome.ready, f"Ready to publish: {_good(grounds)}{wait}.")


def _published(grounds: Grounds) -> str:
    said = in_one_sentence(grounds.concerns, len(grounds.days))
    gone = Counter(day.state for day in grounds.days if day.state in {DayState.rolled_back, DayState.rewritten})
    since = "".join(f"; {number_of(count, 'day')} {state.value}" for state, count in sorted(gone.items()))
    if said:
        return f", and there is something to look at: {said}{since}"
    return f": {_good(grounds)}{since}"


def _rolled_back(grounds: Grounds) -> str:
    last = next((made for made in grounds.releases if made.kind == "rollback"), None)
    why = f" ({last.reason})" if last is not None and last.reason else ""
    said = in_one_sentence(grounds.concerns, len(grounds.days))
    extra = f"; {said}" if said else ""
    states = Counter(day.state for day in grounds.days)
    days, newer = number_of(states[DayState.rolled_back], "day"), states[DayState.rewritten]
    since = f"; {number_of(newer, 'day')} {DayState.rewritten.value}" if newer else ""
    return f"{_made(grounds, 'rollback', 'Rolled back')}{why}: readers see {days} as they were before{since}{extra}."


def _made(grounds: Grounds, kind: str, verb: str) -> str:
    made = next((one for one in grounds.releases if one.kind == kind), None)
    if made is None:
        return verb
    approved = f", approved by {made.approved_by}" if made.approved_by and kind == "publish" else ""
    return f"{verb} {made.at:%Y-%m-%d %H:%M} UTC by {made.by}{approved}"


def _good(grounds: Grounds) -> str:
    """What went well: days and checks, how far the metrics moved, files outside, certificates, golden sources."""
    parts = [_passed(grounds.days), _moves(grounds.series), _came_and_went(grounds.rows)]
    if grounds.reaches and all(reach.held for reach in grounds.reaches):
        parts.append("no file of another day is touched")
    if grounds.proofs:
        parts.append(_proven(grounds))
    if grounds.golden:
        parts.append(f"{number_of(grounds.golden, 'golden source')} {'agrees' if grounds.golden == 1 else 'agree'}")
    return "; ".join(filter(None, parts))


def _came_and_went(rows: Sequence[RowTotals]) -> str:
    """How many rows came and went by key, if both happened: metrics may not show it."""
    both = [one for one in rows if one.counts.added and one.counts.removed]
    several = len({one.dataset for one in rows}) > 1
    return ", ".join(
        f"{f'{one.dataset}: ' if several else ''}{number_of(one.counts.removed, 'row')} removed and {one.counts.added:,} added"
        for one in both
    )


def _proven(grounds: Grounds) -> str:
    total, missing = _count(grounds.days), sorted({day.dataset for day in grounds.days} - grounds.proofs.keys())
    extra = f" (none of {in_words(missing)})" if missing else ""
    return f"recomputing {sum(grounds.proofs.values()):,} of {total} gives the same rows{extra}"


def _passed(days: Sequence[ReviewedDay]) -> str:
    good = [day for day in days if day.state not in _OPEN_PROBLEMS]
    checks = {day.checks for day in good}
    every = f"all {max(checks)} checks" if len(checks) == 1 else "all checks"
    if any(day.passed < day.checks for day in good):
        every = "every check that blocks"
    return f"{len(good):,} of {number_of(len(days), 'day')} pass {every}"


def _moves(series: Sequence[Series]) -> str:
    """How far the metrics moved, promised ones first and percentiles last; metrics that did not move are not named."""
    rows = {(s.dataset, p.day): p for s in series if s.metric == ROW_COUNT for p in s.points if p.inside}
    both = {day for day, point in rows.items() if point.old and point.new}
    found = [(one.change, _moved(one, both)) for one in series if one.change is not None]
    if all(change.range is None and not how for change, how in found):
        return "nothing was published for these days before"
    several = len({change.dataset for change, _ in found}) > 1
    moving = sorted(((change, how) for change, how in found if how), key=lambda pair: not _promised(pair[0]))
    # Percentiles say less to most people than sums: they are named only if nothing else has moved.
    named = [pair for pair in moving if not is_percentile(pair[0].metric)] or moving
    texts = [f"{f'{change.dataset}.' if several else ''}{change.metric} {how}" for change, how in named[:_MOST_METRICS]]
    if len(moving) > len(texts):
        texts.append(f"{number_of(len(moving) - len(texts), 'other metric')} moved within what is allowed")
    if first := sum(not point.old and bool(point.new) for point in rows.values()):
        texts.append(f"{first:,} of {number_of(len(rows), 'day')} had no published row before")
    return "; ".join(texts) or "no metric changes"


def _moved(series: Series, both: Collection[DatasetDay]) -> str:
    """How a metric moved; on days that have rows in `both` versions also if no percentage shows it."""
    change, parts = series.change, []
    if change is not None and change.range is not None and change.range != UNCHANGED:
        parts.append(f"changes by {_shown(change.range)}{' as promised' if _promised(change) else ''}")
    points = [point for point in series.points if (series.dataset, point.day) in both]
    if come := sum(not point.old and bool(point.new) for point in points):
        parts.append(f"comes from nothing on {number_of(come, 'day')}")
    if gone := sum(bool(point.old) and point.new is None for point in points):
        parts.append(f"goes to nothing on {number_of(gone, 'day')}")
    return " and ".join(parts)


def is_percentile(metric: str) -> bool:
    """Whether a metric is one of the percentiles of a measure, which say less to most people than its sum."""
    return metric.partition("_")[0] in PERCENTILES


def _shown(change: Change) -> str:
    """A band rounded outwards to a hundredth of a percent; a smaller one is not rounded."""
    low, high = change.low.quantize(_HUNDREDTH, ROUND_FLOOR), change.high.quantize(_HUNDREDTH, ROUND_CEILING)
    return str(change if max(abs(change.low), abs(change.high)) < _HUNDREDTH else Change(low, high))


def _promised(change: MetricChange) -> bool:
    return any(_PROMISED in promise for promise in change.promised)


def _count(days: Sequence[ReviewedDay]) -> str:
    return number_of(len(days), "day")
