"""Days: parsing, ranges, and how a set of days is written for people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from backfill_assets.domain.errors import InvalidDayError

ONE_DAY = dt.timedelta(days=1)


def parse_day(text: str, what: str = "day") -> dt.date:
    """Read an ISO date such as `2013-03-01`.

    Raises:
        InvalidDayError: the text is anything else.
    """
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise InvalidDayError(f"{what} {text!r} is not an ISO date; write it as 2013-03-01")
    return day


def parse_days(text: str, what: str = "days") -> tuple[dt.date, ...]:
    """Read days such as `2013-03-01,2013-03-05` or `2013-03-01..2013-03-07`, or both; in order, each once.

    Raises:
        InvalidDayError: a part is anything else, or a range ends before it begins.
    """
    found: set[dt.date] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        days = day_range(parse_day(first, what), parse_day(last if dots else first, what))
        if not days:
            raise InvalidDayError(f"{what} {part.strip()!r} ends before it begins; write it as 2013-03-01..2013-03-07")
        found |= set(days)
    return tuple(sorted(found))


def day_range(first: dt.date, last: dt.date) -> tuple[dt.date, ...]:
    """All days from `first` to `last`, both included; empty when `last` is earlier."""
    return tuple(first + i * ONE_DAY for i in range((last - first).days + 1))


def runs_of_days(days: Iterable[dt.date]) -> tuple[tuple[dt.date, dt.date], ...]:
    """The gapless runs in a set of days, as (first, last) pairs in order."""
    runs: list[tuple[dt.date, dt.date]] = []
    for day in sorted(set(days)):
        if runs and day - runs[-1][1] == ONE_DAY:
            runs[-1] = (runs[-1][0], day)
        else:
            runs.append((day, day))
    return tuple(runs)


def format_days(days: Iterable[dt.date], most: int = 8) -> str:
    """Write days for people: `2013-03-01..2013-03-04, 2013-03-09`; after `most` runs the rest is counted."""
    runs = runs_of_days(days)
    parts = [f"{first}" if first == last else f"{first}..{last}" for first, last in runs[:most]]
    rest = sum((last - first).days + 1 for first, last in runs[most:])
    return ", ".join(parts) + (f" and {rest} more" if rest else "") if parts else "no day"


def slices(days: Sequence[dt.date], size: int) -> tuple[tuple[dt.date, ...], ...]:
    """Cut days into consecutive slices of at most `size`."""
    return tuple(tuple(days[i : i + size]) for i in range(0, len(days), size))
