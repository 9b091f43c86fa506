"""Whether a day comes out the same however a launch is cut: days of a batch are built alone as well, and compared."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import Finding
from backfill_assets.core.measured import Alone
from backfill_assets.core.text import number_of
from backfill_assets.dataset.definition import Dataset

_REMEDY = (
    "the fact model makes something of days that another launch would not have read; let it take no more of each day "
    "than the days that it looks back at, as by a window RANGE BETWEEN INTERVAL … PRECEDING"
)


def days_to_build_alone(dataset: Dataset, days: Sequence[dt.date], seed: str) -> tuple[dt.date, ...]:
    """Of a batch its last day, which has most days before it, and one drawn by the seed; none where no day sees another."""
    if not dataset.looks_back or len(days) <= 1:
        return ()
    *others, last = sorted(days)
    drawn = others[int(digest([seed, *map(str, others)])[:12], 16) % len(others)]
    return (drawn, last)


def judge_alone(alone: Sequence[Alone]) -> Finding:
    """All days of a batch fail if one of them does not come out the same: those that were not built alone are no better."""
    expected = "each day alone as in its batch"
    apart = [one for one in alone if one.differing]
    if apart:
        found = "; ".join(
            f"{one.day}: {one.differing} of {number_of(one.rows, 'row')} not as when built alone" for one in apart
        )
        return Finding(False, expected, found, note=_REMEDY)
    built = format_days(one.day for one in alone)
    return Finding(True, expected, f"the same on {built}" if alone else "a batch of one day")
