"""Paths and patterns of source files, as `dataset.yaml` may name them below the sources folder."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

_LONGEST = 1000
_LONGEST_PART = 200
"""File systems end at 255 bytes; the day takes a few more than its placeholder."""
_WILD = frozenset("*?[")
_DAYS = re.compile(r"(?=(\d{4}-\d\d-\d\d))", re.ASCII)
"""Whatever reads like a day, also where two of them overlap."""
_DAY_IN_BRACKETS = re.compile(r"\[[^\]]*\{day\}")


def _relative_path(value: str) -> str:
    path = PurePosixPath(value)
    away = not path.parts or path.is_absolute() or ".." in path.parts or "\\" in value or "://" in value
    if away or not value.isprintable():
        raise ValueError("use a path relative to the sources folder, without '..', of characters that one can see")
    if len(value) > _LONGEST or any(len(part.encode()) > _LONGEST_PART for part in path.parts):
        raise ValueError(f"use at most {_LONGEST_PART} bytes for each name and {_LONGEST} characters in all")
    return value


RelativePath = Annotated[str, AfterValidator(_relative_path)]


def checked_pattern(value: str) -> str:
    """Return a source's pattern if it can tell the deliveries of one day from those of others.

    Raises:
        ValueError: it has no `{day}`, something else in braces, the day in brackets, or `**` beside other characters or
            twice, which looks through every folder again for every folder.
    """
    if "{day}" not in value:
        raise ValueError("path must contain {day}, the place of the delivery day (ISO date)")
    if set("{}") & set(value.replace("{day}", "")):
        raise ValueError("path: only {day} may stand in braces")
    if _DAY_IN_BRACKETS.search(value):
        raise ValueError(
            "path: {day} stands in brackets, where any one of its characters would do; take it out of them"
        )
    deep = [part for part in PurePosixPath(value).parts if "**" in part]
    if len(deep) > 1 or any(part != "**" for part in deep):
        raise ValueError("path: ** stands for folders, alone between slashes and only once; write * for characters")
    return value


def spelled_out(pattern: str) -> tuple[str, ...]:
    """The folders that a pattern names before its first wildcard, outermost first, and the file if it has no wildcard."""
    fixed = itertools.takewhile(lambda part: not _WILD & set(part), PurePosixPath(pattern).parts)
    return tuple(itertools.accumulate(fixed, "{}/{}".format))


def finds_several(pattern: str) -> bool:
    """Whether a source's pattern may find more than one file of a day."""
    return bool(_WILD & set(pattern))


def fits(pattern: str, day: dt.date, path: str) -> bool:
    """Whether a source's pattern finds a file of that path for a delivery day: part by part, as `Path.glob` does."""
    return _fit(PurePosixPath(pattern.replace("{day}", day.isoformat())).parts, PurePosixPath(path).parts)


def days_of(pattern: str, path: str) -> tuple[dt.date, ...]:
    """The delivery days for which a source's pattern finds a file of that path, in order; more than one cannot be told apart."""
    written = {day for text in _DAYS.findall(path) if (day := _day(text))}
    return tuple(day for day in sorted(written) if fits(pattern, day, path))


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _fit(shapes: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not shapes:
        return not parts
    if shapes[0] == "**":
        return any(_fit(shapes[1:], parts[i:]) for i in range(len(parts) + 1))
    return bool(parts) and _fits_part(shapes[0], parts[0]) and _fit(shapes[1:], parts[1:])


def _fits_part(shape: str, part: str) -> bool:
    # What is spelled out is only compared: each day's shape would be compiled otherwise.
    return fnmatchcase(part, shape) if _WILD & set(shape) else part == shape
