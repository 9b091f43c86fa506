"""The extract of a source, as `dataset.yaml` declares it: a query of a database, or a Python file, and their limits."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from backfill_assets.core.canonical import digest
from backfill_assets.core.fields import Name, Part, Period
from backfill_assets.core.text import format_duration, parse_duration

SCRIPT: Final = "extract.py"
"""The file in a dataset's folder that fetches rows."""
_VARIABLE: Final = re.compile(r"env:[A-Z_][A-Z0-9_]{0,59}")
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/(s|min|h)")
_UNITS: Final = {"s": 1, "min": 60, "h": 3600}
_QUOTED: Final = re.compile(r"--[^\n]*|/\*.*?(?:\*/|\Z)|'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z)", re.DOTALL)
_PARAMETER: Final = re.compile(r"(?<![:\w\\]):(\w+)(?![:\w])")
"""A parameter of a query, as SQLAlchemy finds it."""


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError(
            "write env:NAME, with the name of an environment variable (A-Z, 0-9 and _) that holds the URL; the URL itself may hold "
            "a password, which does not belong in this file"
        )
    return value


def _query(value: str) -> str:
    found = set(_PARAMETER.findall(_QUOTED.sub(" ", value)))
    if "day" not in found:
        raise ValueError(
            "it does not use :day outside of quotes and comments, so each day would have the rows of all days; before a cast, "
            "write (:day)::timestamptz"
        )
    if unknown := sorted(found - {"day"}):
        raise ValueError(f"it has the parameter :{unknown[0]}; there is only :day")
    return value


def _rate(value: str) -> str:
    if not _RATE.fullmatch(value):
        raise ValueError("write how many extracts may begin in a second, minute or hour, such as 5/s, 100/min or 30/h")
    return value


def _again(value: object) -> dt.timedelta:
    if value == "never":
        return dt.timedelta(0)
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError("write never, or a duration such as 3d") from None


class Extract(Part):
    """Rows that are not in a file yet: before a delivery day lands, they are written to one in the sources folder."""

    database: Annotated[str, AfterValidator(_variable)] | None = Field(
        default=None,
        description="env:NAME, where the environment variable NAME holds the SQLAlchemy URL of a Postgres.",
    )
    query: Annotated[str, AfterValidator(_query)] | None = Field(
        default=None, description="One SELECT of the rows of a delivery day, which is the parameter :day, a date."
    )
    file: Literal["extract.py"] | None = Field(
        default=None, description="extract.py in the dataset's folder, whose function extract(day) returns the rows."
    )
    max_parallel: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="How many extracts of this database (or this file) may run at the same time."
    )
    rate_limit: Annotated[str, AfterValidator(_rate)] | None = Field(
        default=None, description="How many of them may begin, such as 5/s, 100/min or 30/h."
    )
    again: Annotated[
        dt.timedelta,
        BeforeValidator(_again),
        PlainSerializer(lambda value: format_duration(value) if value else "never", when_used="json"),
        WithJsonSchema({"type": "string", "pattern": r"^(never|\s*\d{1,6}\s*[smhd]\s*)$"}),
    ] = Field(
        default=dt.timedelta(0),
        description="Until how long after its end a day is extracted again whenever it is launched, such as 3d.",
    )
    modified_column: Name | None = Field(
        default=None,
        description="A column that grows when a row changes: a launched day is extracted again if its largest value, or the "
        "number of rows, differs from the day's file.",
    )
    timeout: Period = Field(default=dt.timedelta(minutes=30), description="How long the extract of one day may take.")
    # The text of extract.py, and the time zone in which a query understands times.
    _code: tuple[str, str] = PrivateAttr(default=("", ""))

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.file is None) == (self.database is None and self.query is None):
            raise ValueError("set database and query, or file: extract.py")
        if self.file is None and (self.database is None or self.query is None):
            raise ValueError(
                f"{'query' if self.query is None else 'database'} is missing; set database and query together"
            )
        if self.file is not None and self.modified_column is not None:
            raise ValueError("modified_column asks the database, and extract.py has none; drop it")
        return self

    def with_code(self, script: str, time_zone: str) -> Self:
        """The extract with the text of its Python file (empty without one) and the dataset's time zone."""
        found = self.model_copy()
        found._code = (script, time_zone)  # noqa: SLF001 - a copy of this very class
        return found

    @property
    def script(self) -> str:
        """The text of its Python file, as it was hashed; empty without one."""
        return self._code[0]

    @property
    def identity(self) -> str:
        """Digest of everything that decides which rows a day has; another one makes another extract."""
        return digest([self.database, self.query, *self._code])[:16]

    @property
    def interval(self) -> dt.timedelta:
        """The shortest time between the beginnings of two extracts; zero without a rate limit."""
        if self.rate_limit is None:
            return dt.timedelta(0)
        count, _, unit = self.rate_limit.partition("/")
        return dt.timedelta(seconds=_UNITS[unit]) / int(count)


def fills_in(schema: dict[str, Any]) -> None:
    """Change the JSON schema of a source: with an extract, there are defaults for the keys that every other source needs."""
    schema["required"] = ["columns"]
    schema["anyOf"] = [{"required": ["extract"]}, {"required": ["format", "path"]}]
