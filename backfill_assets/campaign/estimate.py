"""Estimates: how long batches take, learnt from those that were measured, and what is left of a plan."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import linear_regression
from typing import Final

from backfill_assets.campaign.plan import Days, Estimate, Plan, PlannedDataset
from backfill_assets.core.unit import Attempt, AttemptState

_PRICE: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,4})?)\s*([A-Z]{3}|[€$£])\s*", re.ASCII)
_ENOUGH: Final = 4
_NEWEST: Final = 200
_SPREAD: Final = 2
_HOUR: Final = 3600

Cut = Callable[[Iterable[dt.date]], Sequence[Days]]
"""How days become batches."""


@dataclass(frozen=True)
class Price:
    """What an hour of batch time costs."""

    amount: Decimal
    currency: str

    def of(self, seconds: float) -> str:
        """The price of some seconds, to the hundredth: `12.60 EUR`."""
        return f"{self.amount * Decimal(seconds) / _HOUR:.2f} {self.currency}"


def parse_price(text: str) -> Price:
    """Read a number and a currency, such as `4.20 EUR`.

    Raises:
        ValueError: the text is anything else.
    """
    match = _PRICE.fullmatch(text)
    if match is None:
        raise ValueError("write a price per hour as a number and a currency, such as 4.20 EUR")
    return Price(Decimal(match[1]), match[2])


@dataclass(frozen=True)
class Rate:
    """How long a batch takes: `fixed` seconds whatever is in it, and `per_row` seconds for each row that it writes.

    `measured` is the number of batches behind it; 0 for a rate that is assumed.
    """

    fixed: float
    per_row: float
    measured: int = 0

    def seconds(self, batches: int, rows: float) -> float:
        """Seconds of batch time for so many batches with so many rows together."""
        return self.fixed * batches + self.per_row * rows


ASSUMED: Final = Rate(7.0, 1e-5)
"""The rate where nothing was measured yet: 7 s are what a batch of small days takes on two cores with a warm server, and
10 s more for a million rows are a guess on the safe side; the canary corrects both."""


def rate_of(attempts: Iterable[Attempt], otherwise: Rate = ASSUMED) -> Rate:
    """The rate of the newest finished attempts (at most 200) that say how many rows they wrote, from start to end.

    A straight line through them, if there are some with few and some with many rows and it makes sense; if not,
    `otherwise` made longer or shorter by one factor, so that it meets the time that they took together.
    """
    points = [
        (float(a.rows), (a.ended_at - a.started_at).total_seconds())
        for a in attempts
        if a.state is AttemptState.done and a.rows and a.ended_at
    ][-_NEWEST:]
    expected = sum(otherwise.seconds(1, rows) for rows, _ in points)
    if not expected:
        return otherwise
    line = _line(points)
    if line is not None:
        return Rate(*line, len(points))
    factor = sum(seconds for _, seconds in points) / expected
    return Rate(otherwise.fixed * factor, otherwise.per_row * factor, len(points))


def rates_of(names: Iterable[str], attempts: Sequence[Attempt], otherwise: Mapping[str, Rate]) -> dict[str, Rate]:
    """The rate of each dataset by its own attempts; of one without, what is named in `otherwise`, or that of all."""
    of_all = rate_of(attempts)
    own: dict[str, list[Attempt]] = {name: [] for name in names}
    for attempt in attempts:
        own.setdefault(attempt.dataset, []).append(attempt)
    return {name: rate_of(own[name], otherwise.get(name, of_all)) for name in names}


def estimate_left(plan: Plan, attempts: Sequence[Attempt], rates: Mapping[str, Rate], cut: Cut) -> Estimate:
    """What is left of a plan after the finished ones of these attempts; without a cost.

    Rows are those that the plan expects of the days that are left, on average over its days. Bytes are what finished
    attempts read for each day, on average, where there are some: they see what the plan can only guess.
    """
    done = [a for a in attempts if a.state is AttemptState.done]
    rows, read, count, seconds = 0, 0, 0, 0.0
    for dataset in plan.datasets:
        layers = [[a for a in done if (a.dataset, a.layer) == (dataset.name, layer)] for layer in dataset.layers]
        own = layers[-1]
        built = {day for attempt in own for day in attempt.days}
        days = [day for day in dataset.days if day not in built]
        its_rows = _rows_left(dataset, len(days), own)
        batches = len(cut(days))
        rows, count = rows + its_rows, count + batches
        read += sum(
            _share(sum(a.bytes_read for a in some), len(days), sum(len(a.days) for a in some)) for some in layers
        )
        seconds += rates[dataset.name].seconds(batches, its_rows)
    if not any(a.layer == d.layers[-1] for a in done for d in plan.datasets):
        read = plan.estimate.bytes
    return Estimate(rows, read, count, round(seconds, 1))


def _rows_left(dataset: PlannedDataset, days: int, own: Sequence[Attempt]) -> int:
    if dataset.rows:
        return _share(dataset.rows, days, len(dataset.days))
    return _share(sum(a.rows for a in own), days, sum(len(a.days) for a in own))


def _share(total: int, part: int, whole: int) -> int:
    return round(total * part / whole) if whole else 0


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Least squares as (fixed, per row); none where the points do not show what a row costs."""
    rows = [x for x, _ in points]
    if len(points) < _ENOUGH or max(rows) < _SPREAD * max(min(rows), 1):
        return None
    slope, fixed = linear_regression(rows, [y for _, y in points])
    return (fixed, slope) if slope >= 0 and fixed >= 0 else None
