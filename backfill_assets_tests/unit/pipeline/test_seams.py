from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal

import pytest

from backfill_assets.core.days import day_range
from backfill_assets.core.measured import Figures, Seam
from backfill_assets.pipeline.seams import places, seams

FIRST = dt.date(2017, 1, 2)
WEEK = (1.0, 0.9, 0.95, 1.0, 1.4, 2.0, 0.3)
Series = dict[dt.date, Figures]


def shop(seed: int, days: int = 120, noise: float = 0.05) -> Series:
    """Revenue that wanders, with quiet Sundays and busy Saturdays."""
    chance = random.Random(seed)  # noqa: S311 - made-up data
    level, made = 10_000.0, {}
    for day in day_range(FIRST, FIRST + dt.timedelta(days - 1)):
        level *= math.exp(chance.gauss(0, 0.01))
        made[day] = {"revenue": Decimal(str(round(level * WEEK[day.weekday()] * math.exp(chance.gauss(0, noise)), 2)))}
    return made


def scaled(series: Series, days: tuple[dt.date, ...], factor: str) -> Series:
    return series | {day: {"revenue": (series[day]["revenue"] or Decimal(0)) * Decimal(factor)} for day in days}


def of_days(*values: str | int | None, first: dt.date = FIRST) -> Series:
    return {
        first + dt.timedelta(i): {"revenue": None if value is None else Decimal(value)}
        for i, value in enumerate(values)
    }


def introduced(old: Series, new: Series, at: tuple[dt.date, ...]) -> list[dt.date]:
    return [seam.day for seam in seams("sales", old, new, at) if seam.introduced]


RANGE = day_range(dt.date(2017, 2, 10), dt.date(2017, 3, 20))


def test_the_places_are_both_edges_of_each_run_of_days_and_the_months_within() -> None:
    assert places(RANGE) == (dt.date(2017, 2, 10), dt.date(2017, 3, 1), dt.date(2017, 3, 21))
    assert places((FIRST, FIRST + dt.timedelta(5))) == tuple(FIRST + dt.timedelta(i) for i in (0, 1, 5, 6))
    assert places(()) == ()


def test_a_seam_at_both_edges_of_the_range_is_found() -> None:
    old = shop(1)
    assert introduced(old, scaled(old, RANGE, "2"), places(RANGE)) == [RANGE[0], dt.date(2017, 3, 21)]


def test_a_seam_where_a_month_begins_is_found_and_is_the_only_one() -> None:
    old = shop(2)
    march = tuple(day for day in RANGE if day.month == 3)
    new = scaled(scaled(old, march, "1.4"), tuple(day for day in old if day > RANGE[-1]), "1.4")
    assert introduced(old, new, places(RANGE)) == [dt.date(2017, 3, 1)]


def test_a_seam_that_was_always_there_is_not_blamed_on_the_recomputation() -> None:
    later = tuple(day for day in shop(3) if day >= RANGE[0])
    old = scaled(shop(3), later, "2")
    (seam, *_) = seams("sales", old, scaled(old, RANGE, "0.99"), places(RANGE))
    assert seam.old_score is not None
    assert seam.new_score is not None
    assert min(seam.old_score, seam.new_score) > 3.5
    assert not seam.introduced


def test_a_seam_that_is_gone_is_not_reported() -> None:
    healthy = shop(4)
    old = scaled(healthy, tuple(day for day in healthy if day >= RANGE[0]), "2")
    seam = seams("sales", old, healthy, [RANGE[0]])[0]
    assert abs(seam.new_score or 9) < 3.5 < abs(seam.old_score or 0)
    assert not seam.introduced


def test_a_seam_that_gets_much_larger_is_blamed_on_it() -> None:
    later = tuple(day for day in shop(5) if day >= RANGE[0])
    old = scaled(shop(5), later, "1.5")
    assert introduced(old, scaled(old, RANGE, "1.5"), (RANGE[0],)) == [RANGE[0]]


def test_saturdays_and_sundays_that_differ_hugely_every_week_are_no_seams() -> None:
    old = shop(6)
    scores = [seam.old_score or 0.0 for seam in seams("sales", old, old, tuple(old))]
    assert len(scores) == 119
    assert sum(abs(score) > 3.5 for score in scores) <= 3
    assert introduced(old, old, tuple(old)) == []


def test_growth_is_no_seam_where_figures_are_positive() -> None:
    old = of_days(*(round(1.05**i * 1000 + i % 3) for i in range(60)))
    assert not introduced(old, old, tuple(old))
    assert all(abs(seam.old_score or 0) < 3.5 for seam in seams("sales", old, old, tuple(old)[20:]))


def test_figures_of_both_signs_are_compared_by_their_differences() -> None:
    old = of_days(*((-1) ** i * (i % 5) for i in range(40)))
    day = FIRST + dt.timedelta(20)
    new = old | {day: {"revenue": Decimal(500)}}
    assert introduced(old, new, (day, day + dt.timedelta(1))) == [day, day + dt.timedelta(1)]


@pytest.mark.parametrize("values", [(1000,) * 30, (0,) * 30, (1000,) * 29 + (990,)])
def test_in_a_series_that_hardly_ever_steps_any_other_step_is_unusual(values: tuple[int, ...]) -> None:
    old = of_days(*values)
    day = FIRST + dt.timedelta(10)
    (seam,) = seams("sales", old, old | {day: {"revenue": Decimal(values[0] + 5)}}, [day])
    assert seam.introduced
    assert math.isfinite(seam.new_score or math.inf)
    assert introduced(old, old | {day: {"revenue": Decimal(values[0]) * (1 + Decimal("1e-12"))}}, (day,)) == []


def test_an_unknown_seam_is_reported_as_unknown() -> None:
    old = of_days(1, None, 3, "NaN", "Infinity", 6, 7)
    at = [FIRST + dt.timedelta(i) for i in range(8)]
    assert seams("sales", old, old, at) == (
        Seam("sales", "revenue", FIRST + dt.timedelta(6), Decimal(1), Decimal(1), None, None, introduced=False),
    )
    assert seams("sales", {}, {}, at) == ()


def test_a_day_that_is_filled_in_is_judged_by_the_steps_around_it() -> None:
    whole = shop(7)
    day = FIRST + dt.timedelta(50)
    old = {d: figures for d, figures in whole.items() if d != day}
    assert introduced(old, whole, (day, day + dt.timedelta(1))) == []
    assert introduced(old, whole | {day: {"revenue": Decimal(1)}}, (day,)) == [day]


def test_none_of_200_correct_corrections_raises_an_alarm() -> None:
    alarms = []
    for seed in range(200):
        chance = random.Random(seed)  # noqa: S311 - made-up data
        old = shop(seed, days=85, noise=chance.uniform(0.02, 0.2))
        days = tuple(old)
        first = chance.randrange(7, 40)
        changed = days[first : first + chance.randrange(1, 40)]
        alarms += introduced(old, scaled(old, changed, "0.99"), places(changed))
    assert alarms == []
