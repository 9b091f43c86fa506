"""Files and types as `dataset.yaml` declares them."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from backfill_assets.domain.fields import Name

_WIDEST_DECIMAL = 38
_TYPE = re.compile(r"string|boolean|integer|long|float|double|date|timestamp|decimal\((\d{1,2}),\s*(\d{1,2})\)")


def _column_type(value: str) -> str:
    match = _TYPE.fullmatch(value)
    if (
        match is None
        or (match[1] and not 1 <= int(match[1]) <= _WIDEST_DECIMAL)
        or (match[2] and int(match[2]) > int(match[1]))
    ):
        raise ValueError(
            "use string, boolean, integer, long, float, double, date, timestamp or decimal(p,s) with s <= p <= 38"
        )
    return value.replace(" ", "")


def _relative_path(value: str) -> str:
    path = PurePosixPath(value)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in value or "://" in value or "\x00" in value:
        raise ValueError("use a path relative to the sources folder, without '..'")
    return value


ColumnType = Annotated[
    str, AfterValidator(_column_type), WithJsonSchema({"type": "string", "pattern": f"^({_TYPE.pattern})$"})
]
RelativePath = Annotated[str, AfterValidator(_relative_path)]


class Part(BaseModel):
    """A part of `dataset.yaml`: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Format(StrEnum):
    """Formats that source and reference files may have."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


class CsvOptions(Part):
    """How CSV files are to be read."""

    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=2)] = ","
    quote: Annotated[str, Field(min_length=1, max_length=1)] = '"'
    null_value: str = ""


class Reference(Part):
    """A small table that models join and checks refer to, read from one file."""

    format: Format
    path: RelativePath
    columns: dict[Name, ColumnType] = Field(min_length=1)
    csv: CsvOptions = CsvOptions()
