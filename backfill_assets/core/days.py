"""Days: parsing, ranges, and how a set of days is written for people."""

from __future__ import annotations

import datetime as dt
import re
from calendar import monthrange
from collections.abc import Iterable, Mapping, Sequence

from backfill_assets.core.errors import InvalidDayError
from backfill_assets.core.text import number_of

Days = tuple[dt.date, ...]
ONE_DAY = dt.timedelta(days=1)
EARLIEST = dt.date(1900, 1, 1)
LATEST = dt.date(2199, 12, 31)
"""The range of days that a file or a command may name: a typo such as the year 9999 would otherwise mean millions of days."""
MOST_DAYS = 36_600
"""The longest range that a file or a command may name: a century."""


def checked_day(day: dt.date) -> dt.date:
    """Return a day if it lies between `EARLIEST` and `LATEST`.

    Raises:
        ValueError: it does not.
    """
    if not EARLIEST <= day <= LATEST:
        raise ValueError(f"write a day from {EARLIEST} to {LATEST}")
    return day


def checked_range(first: dt.date, last: dt.date) -> None:
    """Refuse a range that is reversed or longer than `MOST_DAYS`.

    Raises:
        InvalidDayError: it is.
    """
    count = (last - first).days + 1
    if count < 1:
        raise InvalidDayError(f"the range is empty: {first} is after {last}; swap them")
    if count > MOST_DAYS:
        raise InvalidDayError(f"{first}..{last} are {count:,} days; name at most {MOST_DAYS:,}")


_SHOWN = 60


def parse_day(text: str, what: str = "day") -> dt.date:
    """Read an ISO date such as `2013-03-01`.

    Raises:
        InvalidDayError: the text is anything else, or the day is not from `EARLIEST` to `LATEST`.
    """
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise InvalidDayError(f"{what} {text[:_SHOWN]!r} is not an ISO date; write it as 2013-03-01")
    try:
        return checked_day(day)
    except ValueError as error:
        raise InvalidDayError(f"{what} {text!r}: {error}") from None


def parse_days(text: str, what: str = "days") -> tuple[dt.date, ...]:
    """Read days such as `2013-03-01,2013-03-05` or `2013-03-01..2013-03-07`, or both; sorted, each once.

    Also takes ranges as Dagster writes them, with three dots.

    Raises:
        InvalidDayError: a part is anything else, a range is reversed, or there are more than `MOST_DAYS` days.
    """
    found: set[dt.date] = set()
    named = 0
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        begin, end = parse_day(first, what), parse_day(last.removeprefix(".") if dots else first, what)
        try:
            checked_range(begin, end)
        except InvalidDayError as error:
            raise InvalidDayError(f"{what}: {error}") from None
        # Counts days as often as they are named: otherwise a text of a few lines could take minutes to read.
        named += (end - begin).days + 1
        if named > MOST_DAYS:
            raise InvalidDayError(f"{what}: these are more than {MOST_DAYS:,} days; name fewer")
        found |= set(day_range(begin, end))
    return tuple(sorted(found))


def day_range(first: dt.date, last: dt.date) -> tuple[dt.date, ...]:
    """All days from `first` to `last`, both included; empty when `last` is earlier."""
    return tuple(first + i * ONE_DAY for i in range((last - first).days + 1))


def last_of_month(day: dt.date) -> dt.date:
    """The last day of a day's month."""
    return day.replace(day=monthrange(day.year, day.month)[1])


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


_FIGURE = re.compile(r"(?<!\w)\d[\d.,]*")
_FOUND = re.compile(r"found (?:[^()]*\([-+]?)?(\d[\d,]*(?:\.\d+)?)")
"""What was found in a text about a check: its change in percent, otherwise its first figure."""


def grouped_by_text(texts: Iterable[tuple[dt.date, str]]) -> list[str]:
    """Texts about days for people: those that differ only in their figures are one, with their days.

    Of these, the first is shown, and the one with the largest finding, which must not hide behind the others.
    """
    groups: dict[str, dict[dt.date, str]] = {}
    for day, text in texts:
        groups.setdefault(_FIGURE.sub("0", text), {}).setdefault(day, text)
    return [_of_group(group) for group in groups.values()]


def _of_group(group: Mapping[dt.date, str]) -> str:
    first = next(iter(group.values()))
    if len(group) == 1:
        return first
    largest = max(group.values(), key=_found)
    more = f"; the largest: {largest}" if _found(largest) > _found(first) else ""
    return f"{number_of(len(group), 'day')} ({format_days(group)}), such as {first}{more}"


def _found(text: str) -> float:
    match = _FOUND.search(text)
    return float(match[1].replace(",", "")) if match else 0


def days_argument(days: Iterable[dt.date]) -> str:
    """Write days as commands take them: `2013-03-01..2013-03-04,2013-03-09`."""
    return format_days(days, most=MOST_DAYS).replace(" ", "")


def slices(days: Sequence[dt.date], size: int) -> tuple[tuple[dt.date, ...], ...]:
    """Cut days into consecutive slices of at most `size`."""
    return tuple(tuple(days[i : i + size]) for i in range(0, len(days), size))
