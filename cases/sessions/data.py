"""Writes a month of web sessions and the day after it, a file of events for each day: python cases/sessions/data.py FOLDER."""

from __future__ import annotations

import csv
import datetime as dt
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

FIRST, LAST = dt.date(2024, 3, 1), dt.date(2024, 4, 1)
_SESSIONS_PER_DAY: Final = 30
_MOST_EVENTS: Final = 6
_LONGEST_PAUSE: Final = 1500
"""Seconds between two events of a session."""


def main(folder: Path) -> None:
    """Write `events/DAY.csv` below `folder`; the same bytes each time.

    A session that goes on after midnight has its last events in the file of the next day.
    """
    chance = random.Random(7)
    events = defaultdict[dt.date, list[tuple[str, int, str]]](list)
    for offset in range((LAST - FIRST).days + 1):
        day = FIRST + dt.timedelta(offset)
        for number in range(_SESSIONS_PER_DAY):
            at = dt.datetime.combine(day, dt.time()) + dt.timedelta(seconds=chance.randrange(86_400))
            for event in range(1, chance.randint(1, _MOST_EVENTS) + 1):
                events[at.date()].append((f"{day:%m%d}-{number:02}", event, at.isoformat(sep=" ")))
                at += dt.timedelta(seconds=chance.randint(1, _LONGEST_PAUSE))
    for day in sorted(events):
        if day > LAST:
            break
        path = folder / "events" / f"{day}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("session", "event", "at"), *events[day]])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
