"""Time windows of the day, such as `07:00-09:30`, read on the wall clock of a time zone."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

_CLOCK = r"([01]?\d|2[0-3]):([0-5]\d)"
WINDOW_PATTERN = rf"\s*{_CLOCK}\s*-\s*(?:{_CLOCK}|(24:00))\s*"
"""What a window looks like in YAML."""
_PATTERN = re.compile(WINDOW_PATTERN, re.ASCII)
_DAY = dt.timedelta(days=1)
_TICK = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class TimeWindow:
    """A window that opens every day: `begin` belongs to it, `end` does not; an `end` before `begin` is on the next day.

    The wall clock decides alone: what it skips when summer time begins is never open, and what it shows twice when
    summer time ends is open twice.
    """

    begin: dt.time
    end: dt.time

    def __str__(self) -> str:
        end = f"{self.end:%H:%M}" if self.end != dt.time() else "24:00"
        return f"{self.begin:%H:%M}-{end}"

    def contains(self, moment: dt.datetime, zone: ZoneInfo) -> bool:
        """Whether the window is open at an aware moment, on the wall clock of `zone`."""
        clock = moment.astimezone(zone).time()
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end

    def ends(self, moment: dt.datetime, zone: ZoneInfo) -> dt.datetime:
        """When the opening that `moment` lies in is over, in UTC; `moment` itself while the window is shut."""
        return self._first(moment, zone, opened=False)

    def begins(self, moment: dt.datetime, zone: ZoneInfo) -> dt.datetime:
        """When the window opens next after `moment`, in UTC; while it is open, when it opens again."""
        return self._first(self.ends(moment, zone), zone, opened=True)

    def _first(self, moment: dt.datetime, zone: ZoneInfo, *, opened: bool) -> dt.datetime:
        """The first moment from `moment` on at which the window is open, or shut."""
        found = moment.astimezone(dt.UTC)
        while self.contains(found, zone) is not opened:
            ahead = _until(found.astimezone(zone).time(), self.begin if opened else self.end)
            found = _change_of_offset(found, found + ahead, zone) or found + ahead
        return found


def parse_window(value: object) -> TimeWindow:
    """Read `07:00-09:30`, also past midnight (`22:00-05:00`); a `TimeWindow` passes through.

    Raises:
        ValueError: the text is anything else, or the window would never be shut.
    """
    if isinstance(value, TimeWindow):
        return value
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a window as two times of day, such as 07:00-09:30 or 22:00-05:00")
    begin = dt.time(int(match[1]), int(match[2]))
    end = dt.time() if match[5] else dt.time(int(match[3]), int(match[4]))
    if begin == end:
        raise ValueError("this window would be the whole day; write another time on one side, or leave it out")
    return TimeWindow(begin, end)


def covers_the_day(windows: Iterable[TimeWindow]) -> bool:
    """Whether together the windows leave no minute of an ordinary day."""
    left = set(range(24 * 60))
    for window in windows:
        begin, end = (time.hour * 60 + time.minute for time in (window.begin, window.end))
        left -= set(range(begin, end)) if begin < end else {*range(begin, 24 * 60), *range(end)}
    return not left


def _until(clock: dt.time, edge: dt.time) -> dt.timedelta:
    """How long a clock that nobody sets takes to show `edge` again; above zero."""
    ahead = _since_midnight(edge) - _since_midnight(clock)
    return ahead if ahead > dt.timedelta(0) else ahead + _DAY


def _since_midnight(clock: dt.time) -> dt.timedelta:
    return dt.timedelta(hours=clock.hour, minutes=clock.minute, seconds=clock.second, microseconds=clock.microsecond)


def _change_of_offset(first: dt.datetime, last: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
    """When the clock was set between two moments in UTC, if it was; no zone sets it twice within a day."""
    before = first.astimezone(zone).utcoffset()
    if last.astimezone(zone).utcoffset() == before:
        return None
    while last - first > _TICK:
        middle = first + (last - first) / 2
        if middle.astimezone(zone).utcoffset() == before:
            first = middle
        else:
            last = middle
    return last
