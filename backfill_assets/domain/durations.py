"""Durations as people write them in YAML and variables: `90s`, `30m`, `36h`, `14d`."""

from __future__ import annotations

import datetime as dt
import re

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PATTERN = re.compile(r"(\d{1,6})\s*([smhd])", re.ASCII)


def parse_duration(value: object) -> dt.timedelta:
    """Read `<number><s|m|h|d>`; a `timedelta` passes through.

    Raises:
        ValueError: the text is anything else (pydantic turns it into its own error with the key).
    """
    if isinstance(value, dt.timedelta):
        return value
    match = _PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as a number and s, m, h or d, such as 36h or 14d")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


def format_duration(value: dt.timedelta) -> str:
    """Write a duration in the largest unit that holds it whole: `36h`, `14d`."""
    seconds = int(value.total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
