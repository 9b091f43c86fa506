"""Field types shared by the YAML models: safe names, durations, percentages."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from backfill_assets.domain.durations import format_duration, parse_duration
from backfill_assets.domain.errors import InvalidNameError
from backfill_assets.domain.names import NAME_PATTERN, checked_name

_PERCENT = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)\s*%")


def _name(value: str) -> str:
    try:
        return checked_name(value, "the name")
    except InvalidNameError as error:
        raise ValueError(str(error)) from error


def parse_percent(value: object) -> Decimal:
    """Read `2%` or `0.5%` as a fraction (0.02, 0.005); the number 0 stands for itself.

    Raises:
        ValueError: the value is anything else, so that nobody guesses whether 2 means 2 % or 200 %.
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
