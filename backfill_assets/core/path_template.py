"""Where the files of a delivery day are: a path with the day, or its month, in it.

All that maps a day to paths, or a path to days, asks here. The delivery day of a month is its last day.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from backfill_assets.core.days import checked_day, last_of_month
from backfill_assets.core.text import shortened

_WILD: Final = frozenset("*?[")
_SHOWN: Final = 60
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_TWO: Final = r"0[1-9]|[12]\d|3[01]"
_DIGITS: Final[Mapping[str, str]] = {
    "day": r"\d{4}-\d\d-\d\d", "yyyymmdd": r"\d{8}", "yyyymm": r"\d{6}", "yyyy": r"(?:19|2[01])\d\d", "mm": _TWO, "dd": _TWO,
}  # fmt: skip
_FOUND: Final = {field: re.compile(rf"(?=({digits}))", re.ASCII) for field, digits in _DIGITS.items()}
"""Everything that looks like a field, also where two overlap."""
_MONTHS: Final = ({"yyyymm"}, {"yyyy", "mm"})
_WHOLE: Final = ({"day"}, {"yyyymmdd"}, {"yyyy", "mm", "dd"}, *_MONTHS)
_SPELLINGS: Final = (
    "{day} (2024-01-31), {yyyymmdd} (20240131), or {yyyy}, {mm} and {dd}, each once; for files of a month, "
    "{yyyymm}, or {yyyy} and {mm}"
)
_IN_BRACKETS: Final = re.compile(r"\[!?\]?[^\]]*\{")
# These may stand for a digit that nobody has spelled out.
_OPEN_BEFORE: Final = re.compile(r"(?:[*?]|\[!\]?[^\]]*\])$")
_OPEN_AFTER: Final = re.compile(r"[*?]|\[!")


@dataclass(frozen=True)
class PathTemplate:
    """A glob with one delivery day, or one month, in it; `checked_template` makes one of a text, or refuses it."""

    text: str

    def filled(self, day: dt.date) -> str:
        """The glob for the files of one delivery day."""
        return _FIELD.sub(lambda field: _written(field[1], day), self.text)

    @property
    def of_any_day(self) -> str:
        """A glob that finds the files of all days, and perhaps others."""
        return _FIELD.sub(lambda field: re.sub(r"\d", "?", _written(field[1], dt.date.max)), self.text)

    @property
    def finds_several(self) -> bool:
        """Whether it may find more than one file of a day."""
        return bool(_WILD & set(self.text))

    @property
    def is_monthly(self) -> bool:
        """Whether a file has the days of a whole month."""
        return set(_FIELD.findall(self.text)) in _MONTHS

    @property
    def has_parts(self) -> bool:
        """Whether month and day are apart, so that they can be confused."""
        return "{dd}" in self.text

    def days_of(self, path: str) -> tuple[dt.date, ...]:
        """The delivery days for which it finds a file of that path, in order; more than one are ambiguous."""
        return _days(self._readings(path))

    def fits(self, day: dt.date, path: str) -> bool:
        """Whether it finds a file of that path for a delivery day: part by part, as `Path.glob` does."""
        return day in self.days_of(path)

    def doubt(self, path: str) -> str:
        """Why it is unclear to which day a file of that path belongs; empty if it is clear, or nothing like a day is there.

        A file has one day, and its digits end there: `*` and `?` may stand for anything but a digit beside the day.
        """
        readings = list(self._readings(path))
        days = _days(readings)
        if len(days) > 1:
            return (
                f"fits the delivery days {days[0]} and {days[1]}; "
                f"make source.path in dataset.yaml ({self.text}) distinguish them"
            )
        if any(beside and _day(fields) for fields, beside in readings):
            shown = f"month {days[0]:%Y-%m}" if self.is_monthly else f"day {days[0]}"
            return (
                f"another digit stands beside the {shown}, so it may be another number; deliver it under another name, or "
                f"spell such digits out in source.path in dataset.yaml ({self.text}), each as [0-9]"
            )
        for fields, _ in readings if self.has_parts and not days else ():
            if _day({**fields, "mm": fields["dd"], "dd": fields["mm"]}):
                return (
                    f"{{mm}} finds {fields['mm']} and {{dd}} finds {fields['dd']}, which is no day; put them in the other order in "
                    f"source.path in dataset.yaml ({self.text}), or exclude this file by a narrower path"
                )
        return ""

    def _readings(self, path: str) -> Iterator[tuple[Mapping[str, str], bool]]:
        """What the fields may stand for in a path, and whether a wildcard takes a digit beside one of them."""
        shapes, parts = PurePosixPath(self.text).parts, PurePosixPath(path).parts
        if "**" in shapes:
            # There is one: parts before and after it are counted from both ends.
            front, back = shapes.index("**"), len(shapes) - shapes.index("**") - 1
            if len(parts) < front + back:
                return
            shapes = (*shapes[:front], *shapes[front + 1 :])
            parts = (*parts[:front], *parts[len(parts) - back :])
        if len(shapes) != len(parts):
            return
        each = [list(_fields_in(_pieces(shape), part, "")) for shape, part in zip(shapes, parts, strict=True)]
        for found in itertools.product(*each):
            yield {name: text for fields, _ in found for name, text in fields.items()}, any(b for _, b in found)


def checked_template(value: str) -> str:
    """Return a source's path if it names one whole delivery day, or one month, in one spelling.

    Raises:
        ValueError: says what is wrong, and what to write.
    """
    fields = _FIELD.findall(value)
    if unknown := [field for field in fields if field not in _DIGITS]:
        raise ValueError(f"{{{shortened(unknown[0], _SHOWN)}}} is unknown; write the delivery day as {_SPELLINGS}")
    if set("{}") & set(_FIELD.sub("", value)):
        raise ValueError(f"a brace stands alone; braces hold the delivery day: {_SPELLINGS}")
    if not fields:
        raise ValueError(f"it does not contain the delivery day; write {_SPELLINGS}")
    if twice := [field for field in fields if fields.count(field) > 1]:
        raise ValueError(f"{{{twice[0]}}} occurs {fields.count(twice[0])} times; keep one, and write * for the others")
    if set(fields) not in _WHOLE:
        shown = ", ".join(f"{{{field}}}" for field in fields)
        raise ValueError(f"{shown}: this is not one whole day, or month, in one spelling; write {_SPELLINGS}")
    if _IN_BRACKETS.search(value):
        raise ValueError("the day is in brackets, where any one of its characters would match; take it out of them")
    deep = [part for part in PurePosixPath(value).parts if "**" in part]
    if len(deep) > 1 or any(part != "**" for part in deep):
        raise ValueError("** stands for folders, alone between slashes and only once; write * for characters")
    return value


def spelled_out(glob: str) -> tuple[str, ...]:
    """The folders that a glob names before its first wildcard, outermost first, and the file if it has no wildcard."""
    fixed = itertools.takewhile(lambda part: not _WILD & set(part), PurePosixPath(glob).parts)
    return tuple(itertools.accumulate(fixed, "{}/{}".format))


def _written(field: str, day: dt.date) -> str:
    year, month, number = day.isoformat().split("-")
    whole = {"day": f"{day}", "yyyymmdd": f"{year}{month}{number}", "yyyymm": f"{year}{month}"}
    return {**whole, "yyyy": year, "mm": month, "dd": number}[field]


def _day(fields: Mapping[str, str]) -> dt.date | None:
    month = fields.get("yyyymm") or f"{fields.get('yyyy', '')}{fields.get('mm', '')}"
    digits = fields.get("day") or fields.get("yyyymmdd") or month + fields.get("dd", "01")
    try:
        day = checked_day(dt.date.fromisoformat(digits))
    except ValueError:
        return None
    return last_of_month(day) if month and "dd" not in fields else day


def _days(readings: Iterable[tuple[Mapping[str, str], bool]]) -> tuple[dt.date, ...]:
    return tuple(sorted({day for fields, _ in readings if (day := _day(fields))}))


@cache
def _pieces(shape: str) -> tuple[str, ...]:
    """A part of the path as glob, field, glob, field, glob, and so on."""
    return tuple(_FIELD.split(shape))


def _fields_in(pieces: tuple[str, ...], text: str, before: str) -> Iterator[tuple[Mapping[str, str], bool]]:
    """What the fields of a part may stand for; `before` is the character in front of the text.

    Each comes with whether a wildcard takes a digit beside a field.
    """
    glob, *rest = pieces
    if not rest:
        if _fits(glob, text):
            yield {}, False
        return
    field, after = rest[0], tuple(rest[1:])
    for found in _FOUND[field].finditer(text):
        start, end = found.span(1)
        if not _fits(glob, text[:start]):
            continue
        beside = (before + text[:start])[-1:].isdigit() and bool(_OPEN_BEFORE.search(glob))
        beside |= text[end : end + 1].isdigit() and bool(_OPEN_AFTER.match(after[0]))
        for others, also in _fields_in(after, text[end:], text[end - 1 : end]):
            yield {field: found[1], **others}, beside or also


def _fits(glob: str, text: str) -> bool:
    # Globs without a wildcard are only compared.
    return fnmatchcase(text, glob) if _WILD & set(glob) else text == glob
