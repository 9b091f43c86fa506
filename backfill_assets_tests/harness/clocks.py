"""A clock under control; tests with several processes use `SystemClock`."""

from __future__ import annotations

import datetime as dt

START = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class FixedClock:
    """A clock that is stopped until a test advances it."""

    def __init__(self, now: dt.datetime = START) -> None:
        self._now = now
        self.asked = 0

    def now(self) -> dt.datetime:
        self.asked += 1
        return self._now

    def advance(self, by: dt.timedelta) -> None:
        self._now += by
