"""Files and types as `dataset.yaml` declares them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from backfill_assets.core.fields import Name, RelativePath

_WIDEST_DECIMAL = 38
_TYPE = re.compile(
    r"string|boolean|integer|long|float|double|date|timestamp|decimal\((\d{1,2}),\s*(\d{1,2})\)", re.ASCII
)


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


ColumnType = Annotated[
    str, AfterValidator(_column_type), WithJsonSchema({"type": "string", "pattern": f"^({_TYPE.pattern})$"})
]


class Part(BaseModel):
    """A part of `dataset.yaml`: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Format(StrEnum):
    """Formats that source and reference files may have."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


class Encoding(StrEnum):
    """How the bytes of text files stand for characters."""

    utf_8 = "utf-8"
    latin_1 = "latin-1"
    windows_1252 = "windows-1252"


class CsvOptions(Part):
    """How CSV files are to be read."""

    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=2)] = ","
    quote: Annotated[str, Field(min_length=1, max_length=1)] = '"'
    null_value: str = ""

    @model_validator(mode="after")
    def _tells_cells_apart(self) -> Self:
        signs = self.delimiter.replace("\\t", "\t")
        if not signs.replace("\t", "").isprintable() or "\\" in signs + self.quote or not self.quote.isprintable():
            raise ValueError("delimiter and quote: write signs that one can see, or \\t, and no backslash else")
        if self.quote in signs:
            raise ValueError(f"delimiter and quote are both {self.quote!r}; choose another one for one of them")
        return self


class Files(Part):
    """What a source and a reference both say of their files."""

    format: Format
    columns: dict[Name, ColumnType] = Field(min_length=1)
    optional: tuple[Name, ...] = Field(
        default=(), description="Columns that a file may lack; they are null there. Each file has all others."
    )
    encoding: Encoding = Field(
        default=Encoding.utf_8, description="Of CSV and JSONL: how bytes stand for characters; others are quarantined."
    )
    csv: CsvOptions = CsvOptions()

    @model_validator(mode="after")
    def _knows_what_is_optional(self) -> Self:
        if unknown := [name for name in self.optional if name not in self.columns]:
            raise ValueError(f"optional: {unknown[0]} is none of the columns; declare its type there")
        return self

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that each file must have."""
        return tuple(name for name in self.columns if name not in self.optional)


class Reference(Files):
    """A small table that models join and checks refer to, read from one file."""

    path: RelativePath
