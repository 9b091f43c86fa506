"""Finds days that do not fit their neighbours: steps that a recomputation introduced, and columns null far more often."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import fmean, median
from typing import Final

from backfill_assets.core.days import ONE_DAY, runs_of_days
from backfill_assets.core.evidence import CheckOutcome
from backfill_assets.core.measured import Figures, NullRise, Seam
from backfill_assets.core.release import DataFile

UNUSUAL: Final = 3.5
"""A step with a larger score is unusual, as Iglewicz and Hoaglin recommend for their modified z-score."""
_ENOUGH: Final = 5
"""The least number of steps that show what is usual, for a series and for one day of the week."""
_NORMAL_MAD: Final = 0.6745
_NORMAL_MEAN: Final = 1.253314
"""Factors between the standard deviation of a normal distribution and its median and mean absolute deviations."""
_ROUNDING: Final = 1e-9
"""Relative to the figures: a smaller difference can come from summing floating-point numbers, and is no step."""


def places(days: Collection[dt.date]) -> tuple[dt.date, ...]:
    """Where recomputed days may leave a seam: at both edges of each gapless run, and where a month begins inside.

    A place is the later day of the step.
    """
    found = {day for first, last in runs_of_days(days) for day in (first, last + ONE_DAY)}
    return tuple(sorted(found | {day for day in days if day.day == 1}))


def seams(
    dataset: str, old: Mapping[dt.date, Figures], new: Mapping[dt.date, Figures], at: Collection[dt.date]
) -> tuple[Seam, ...]:
    """The steps of every metric into the days `at`, by metric and day; steps unknown on both sides are left out.

    `old` and `new` are complete series by day, as readers see them now and after the release: a day that is not recomputed is
    in both, and a day whose figures are unknown is in neither.

    The score is the modified z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers", 1993): 0.6745 times the
    distance from the median, over the median absolute deviation (MAD), among the steps of the series *as it was*; where the
    MAD is 0, the distance over 1.253314 times the mean absolute deviation, as IBM documents it for Cognos Analytics. Business
    data has a weekly rhythm, so the median is taken over steps into the same day of the week if there are at least five. The
    deviations from these medians are pooled; a day of the week that varies more than others is measured by its own
    deviation. Steps are relative (logarithms of ratios) if the entire series is positive, so that growth is no seam.

    A seam is introduced if the step's score is unusual (beyond 3.5) and the recomputation changed the score by more than 3.5:
    a discontinuity that was always there is not blamed on it, nor is a step that was nearly unusual before.
    """
    metrics = dict.fromkeys(name for side in (old, new) for figures in side.values() for name in figures)
    days = sorted(set(at))
    return tuple(seam for metric in metrics for seam in _of_metric((dataset, metric), old, new, days))


def _of_metric(
    of: tuple[str, str], old: Mapping[dt.date, Figures], new: Mapping[dt.date, Figures], at: Iterable[dt.date]
) -> Iterable[Seam]:
    before, after = _series(old, of[1]), _series(new, of[1])
    values = [float(value) for value in (*before.values(), *after.values())]
    relative = all(value > 0 for value in values)
    old_steps, new_steps = _steps(before, relative=relative), _steps(after, relative=relative)
    least = _ROUNDING * (1.0 if relative else max(map(abs, values), default=0.0) or 1.0)
    usual = _usual(old_steps, least)
    for day in at:
        was, would_be = old_steps.get(day), new_steps.get(day)
        if was is None and would_be is None:
            continue
        old_score, new_score = _score(was, usual[day.weekday()]), _score(would_be, usual[day.weekday()])
        introduced = (
            new_score is not None and abs(new_score) > UNUSUAL and abs(new_score - (old_score or 0.0)) > UNUSUAL
        )
        yield Seam(*of, day, _step(before, day), _step(after, day), old_score, new_score, introduced)


def _series(figures: Mapping[dt.date, Figures], metric: str) -> dict[dt.date, Decimal]:
    found = ((day, of.get(metric)) for day, of in figures.items())
    return {day: value for day, value in found if value is not None and math.isfinite(float(value))}


def _step(series: Mapping[dt.date, Decimal], day: dt.date) -> Decimal | None:
    here, before = series.get(day), series.get(day - ONE_DAY)
    return None if here is None or before is None else here - before


def _steps(series: Mapping[dt.date, Decimal], *, relative: bool) -> dict[dt.date, float]:
    values = {day: math.log(value) if relative else float(value) for day, value in series.items()}
    return {day: value - values[day - ONE_DAY] for day, value in values.items() if day - ONE_DAY in values}


def _usual(steps: Mapping[dt.date, float], least: float) -> list[tuple[float, float] | None]:
    """The usual step and its standard deviation by day of the week; None for each if the series is too short."""
    if len(steps) < _ENOUGH:
        return [None] * 7
    weekdays = [[step for day, step in steps.items() if day.weekday() == weekday] for weekday in range(7)]
    overall = median(steps.values())
    centers = [median(own) if len(own) >= _ENOUGH else overall for own in weekdays]
    off = [[abs(step - center) for step in own] for own, center in zip(weekdays, centers, strict=True)]
    pooled = max(least, _deviation([one for own in off for one in own]))
    deviations = [max(pooled, _deviation(own)) if len(own) >= _ENOUGH else pooled for own in off]
    return list(zip(centers, deviations, strict=True))


def _deviation(off: Collection[float]) -> float:
    return median(off) / _NORMAL_MAD or _NORMAL_MEAN * fmean(off)


def _score(step: float | None, usual: tuple[float, float] | None) -> float | None:
    return None if step is None or usual is None else (step - usual[0]) / usual[1]


SPAN: Final = 7
"""How many days before a new day (and after it, if too few are before) show which share is usual: a week."""
_ENOUGH_DAYS: Final = 3
"""The least number of days that show what is usual."""
_ROWS: Final = 10
"""At least so many more rows must be null: with few rows, a single one changes any share."""

Files = Mapping[dt.date, Sequence[DataFile]]


@dataclass(frozen=True)
class _Day:
    rows: int
    nulls: Mapping[str, int]

    def share(self, column: str) -> Decimal:
        return Decimal(self.nulls[column]) / self.rows


def null_rises(
    columns: Collection[str], built: Files, published: Files, around: Files
) -> Mapping[dt.date, tuple[NullRise, ...]]:
    """The columns of each `built` day that are null more often than in the `published` version of the day.

    A day with nothing published is compared with the median of the days before it, and also of the days after it if fewer
    than three are before; their files come from `built`, else `around`, else `published`. Columns without a null count
    in the log, such as those after the thirty-second, are left out.
    """
    near = {**published, **around, **built}
    return {day: tuple(_rises(columns, day, built, published, near)) for day in built}


def _rises(columns: Collection[str], day: dt.date, built: Files, published: Files, near: Files) -> Iterator[NullRise]:
    own = _counted(built[day])
    if own is None:
        return
    current = published.get(day, ())
    others = [_counted(current)] if current else _usual_share(day, near)
    for column in columns:
        shares = [one.share(column) for one in others if one is not None and column in one.nulls]
        if column not in own.nulls or not shares:
            continue
        before, share = median(shares), own.share(column)
        if own.nulls[column] - before * own.rows >= _ROWS:
            yield NullRise(column, round(share, 4), round(before, 4))


def _usual_share(day: dt.date, near: Files) -> list[_Day]:
    before = [_counted(near.get(day - i * ONE_DAY, ())) for i in range(1, SPAN + 1)]
    after = [_counted(near.get(day + i * ONE_DAY, ())) for i in range(1, SPAN + 1)]
    found = [one for one in before if one is not None]
    found += [one for one in after if one is not None] if len(found) < _ENOUGH_DAYS else []
    return found if len(found) >= _ENOUGH_DAYS else []


def _counted(files: Iterable[DataFile]) -> _Day | None:
    """Rows and nulls by column of all files; None if there is no row, or a file without statistics."""
    stats = [json.loads(file.stats) if file.stats else {} for file in files]
    rows = sum(one.get("numRecords", 0) for one in stats)
    counts = [one.get("nullCount", {}) for one in stats]
    if not rows or not all(counts):
        return None
    known = [name for name in counts[0] if all(isinstance(one.get(name), int) for one in counts)]
    return _Day(rows, {name: sum(one[name] for one in counts) for name in known})


def judge_seams(seams: Sequence[Seam]) -> CheckOutcome:
    """Judge the steps that one day is responsible for; no step passes, and so does an unknown one."""
    expected = "no unusual new step to a neighbouring day"
    introduced = [seam for seam in seams if seam.introduced]
    if introduced:
        remedy = "recompute the days on the other side as well; if the step is right, set checks.seams.severity: warn"
        return CheckOutcome(
            False, expected, "; ".join(map(_shown, introduced)), f"a robust z-score of {UNUSUAL}", remedy
        )
    return CheckOutcome(True, expected, f"{len(seams)} usual steps" if seams else "no edge and no start of a month")


def _shown(seam: Seam) -> str:
    was = (
        "unknown" if seam.old_step is None or seam.old_score is None else f"{seam.old_step:+.2f}, {seam.old_score:.1f}"
    )
    return f"{seam.metric} steps by {seam.new_step:+.2f} into {seam.day}, a score of {seam.new_score:.1f} (was {was})"
