"""Parts of the YAML models, and the types of their fields: names, days, percentages, time zones, paths of source files."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from decimal import Decimal
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated
from zoneinfo import available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from backfill_assets.core.days import checked_day
from backfill_assets.core.errors import InvalidNameError
from backfill_assets.core.text import (
    NAME_PATTERN,
    checked_name,
    format_duration,
    hidden_in,
    hidden_in_name,
    parse_duration,
)

_PERCENT = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)\s*%", re.ASCII)
_LONGEST_LINE = 300
_SCRIPTS = {"LATIN", "CYRILLIC", "GREEK"}
"""Scripts with letters that look the same."""
_CONTROLS = {"Cc", "Zl", "Zp"}


class Part(BaseModel):
    """A part of a YAML file: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _name(value: str) -> str:
    try:
        return checked_name(value, "the name")
    except InvalidNameError as error:
        raise ValueError(str(error)) from error


def parse_percent(value: object) -> Decimal:
    """Read `2%` or `0.5%` as a fraction (0.02, 0.005); the number 0 stands for itself.

    Raises:
        ValueError: the value is anything else: it is unclear whether 2 means 2 % or 200 %.
    """
    if value == 0 and not isinstance(value, bool):
        return Decimal(0)
    if isinstance(value, Decimal):
        return value
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a percentage such as 2% or 0.5%")
    return Decimal(match[1]) / 100


def format_percent(value: Decimal) -> str:
    """Write a fraction as `parse_percent` reads it: 0.005 is `0.5%`."""
    return f"{(value * 100).normalize():f}%"


@cache  # reading the time zone database takes longer than all the rest of a dataset
def _time_zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _time_zone(value: str) -> str:
    if value not in _time_zones():
        raise ValueError("use a name of the IANA time zone database, such as Europe/Berlin or UTC")
    return value


def _line(value: str) -> str:
    controls = any(unicodedata.category(character) in _CONTROLS for character in value)
    if controls or not value.strip() or len(value) > _LONGEST_LINE:
        raise ValueError(f"write one line of text, at most {_LONGEST_LINE} characters")
    if hidden := hidden_in(value):
        raise ValueError(f"it contains the invisible character {hidden[1]}; remove it")
    return value


def _who(value: str) -> str:
    if value != value.strip():
        raise ValueError("it begins or ends with a space; remove it")
    if hidden := hidden_in_name(value):
        raise ValueError(f"it contains the invisible character {hidden}; remove it")
    value = unicodedata.normalize("NFC", value)
    for word in value.split():
        scripts = _SCRIPTS & {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
        if len(scripts) > 1:
            mixed = " and ".join(sorted(script.title() for script in scripts))
            raise ValueError(f"it mixes {mixed} letters, which look the same; write the name in one script")
    return value


def _distance(value: object) -> Decimal:
    # Texts are refused, because Python reads digits of all scripts, and underscores, as numbers.
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("write a number, such as 0.01")  # noqa: TRY004  # pydantic reports no other
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _above_zero(value: dt.timedelta) -> dt.timedelta:
    if not value:
        raise ValueError("give a duration above zero, or leave the key out")
    return value


Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"})]
Duration = Annotated[
    dt.timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d{1,6}\s*[smhd]\s*$"}),
]
Percent = Annotated[
    Decimal,
    BeforeValidator(parse_percent),
    PlainSerializer(format_percent, when_used="json"),
    WithJsonSchema({"anyOf": [{"const": 0}, {"type": "string", "pattern": f"^\\s*{_PERCENT.pattern}\\s*$"}]}),
]
"""A fraction, written as a percentage."""
TimeZone = Annotated[str, AfterValidator(_time_zone)]
"""A name of the IANA time zone database."""
Line = Annotated[
    str, AfterValidator(_line), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _LONGEST_LINE})
]
"""One line of text."""
Who = Annotated[Line, AfterValidator(_who)]
"""A person, a team or a role."""
Day = Annotated[dt.date, AfterValidator(checked_day)]
"""A day that a history can have."""
Period = Annotated[Duration, AfterValidator(_above_zero)]
"""A duration above zero."""
Distance = Annotated[
    Decimal,
    BeforeValidator(_distance),
    Field(ge=0, allow_inf_nan=False, max_digits=36, decimal_places=18),
    WithJsonSchema({"type": "number", "minimum": 0}),
]
"""How far two numbers may differ: zero or more, finite, with up to 18 digits on each side of the point, as SQL can hold them."""

_LONGEST = 1000
_LONGEST_PART = 200
"""File systems allow 255 bytes; the day takes a few more than its placeholder."""


def _relative_path(value: str) -> str:
    path = PurePosixPath(value)
    away = not path.parts or path.is_absolute() or ".." in path.parts or "\\" in value or "://" in value
    if away or not value.isprintable():
        raise ValueError("use a path relative to the sources folder, without '..', of visible characters")
    if len(value) > _LONGEST or any(len(part.encode()) > _LONGEST_PART for part in path.parts):
        raise ValueError(f"use at most {_LONGEST_PART} bytes for each name and {_LONGEST} characters in all")
    return value


RelativePath = Annotated[str, AfterValidator(_relative_path)]
