"""Seams: steps between neighbouring days that a recomputation has brought in."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from statistics import fmean, median
from typing import Final

from backfill_assets.core.days import ONE_DAY, runs_of_days
from backfill_assets.core.measured import Figures, Seam

UNUSUAL: Final = 3.5
"""Beyond this score a step is unusual, as Iglewicz and Hoaglin recommend for their modified z-score."""
_ENOUGH: Final = 5
"""Steps from which it can be told what is usual, of a series and of one day of the week."""
_NORMAL_MAD: Final = 0.6745
_NORMAL_MEAN: Final = 1.253314
"""What the median and the mean absolute deviation of a normal distribution have to do with its standard deviation."""
_ROUNDING: Final = 1e-9
"""Relative to the figures: sums of floating-point numbers may differ by less, and that is no step."""


def places(days: Collection[dt.date]) -> tuple[dt.date, ...]:
    """Where recomputed days may leave a seam: into each gapless run of them, out of it, and where a month begins inside.

    A place is the later day of the step.
    """
    found = {day for first, last in runs_of_days(days) for day in (first, last + ONE_DAY)}
    return tuple(sorted(found | {day for day in days if day.day == 1}))


def seams(
    dataset: str, old: Mapping[dt.date, Figures], new: Mapping[dt.date, Figures], at: Collection[dt.date]
) -> tuple[Seam, ...]:
    """The steps of every metric into the days `at`, by metric and day; those that can be told on neither side lack.

    `old` and `new` are whole series, by day, as readers see them now and as they would: a day that is not recomputed is in
    both, one whose figures are not known in neither.

    The score is the modified z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers", 1993): 0.6745 times the
    distance from the median, over the median absolute deviation (MAD), among the steps of the series *as it was*; where the
    MAD is 0, the distance over 1.253314 times the mean absolute deviation, as IBM documents it for Cognos Analytics. A business
    goes by the week, so the median is that of the steps into the same day of the week where there are five of them, the
    deviations are taken from these medians and pooled, and a day of the week that varies more than others is
    measured by its own. Steps are relative (logarithms of ratios) where the series is positive throughout, so that growth
    is no seam.

    A seam is introduced where the step is unusual (beyond 3.5) and what the recomputation has added to it is, too: a
    discontinuity that was always there is not blamed on it, nor is a step that was nearly unusual before.
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
    """By day of the week the usual step and the standard deviation from it; none where the series is too short to tell."""
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
