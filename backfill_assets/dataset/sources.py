"""The inputs of a dataset, as `dataset.yaml` declares them: files and their format, references, golden sources, upstreams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum, StrEnum, auto
from typing import Annotated, Any, Self, assert_never

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from backfill_assets.core.errors import MisfitError
from backfill_assets.core.fields import Distance, Line, Name, Part, Percent, RelativePath
from backfill_assets.core.path_template import PathTemplate, checked_template
from backfill_assets.core.text import hidden_in_name
from backfill_assets.core.types import PATTERN, fields_of, is_nested, kind_of
from backfill_assets.dataset.checks import CheckConfig
from backfill_assets.dataset.extracts import Extract, fills_in


def _column_type(value: str) -> str:
    return str(kind_of(value))


ColumnType = Annotated[
    str, AfterValidator(_column_type), WithJsonSchema({"type": "string", "pattern": f"^({PATTERN})$"})
]


ColumnPath = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=500)]
"""A column, or with dots a part of one, such as `items.element.price`."""


def _header(value: str) -> str:
    if hidden := hidden_in_name(value):
        raise ValueError(f"it contains the invisible character {hidden}; remove it")
    if value != value.strip():
        raise ValueError("it begins or ends with a space; remove it")
    return value


Header = Annotated[Line, AfterValidator(_header)]
"""What a column is called where it is read."""


class FileColumn(Part):
    """A column of a file or table: its type, and its header (or key) there if that is not the column's name."""

    from_: Header | None = Field(
        default=None, alias="from", description="The column's header or key in the files, in any case."
    )
    type: ColumnType

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        """The type alone stands for a column with that type."""
        if isinstance(value, str):
            return {"type": _column_type(value)}
        if not isinstance(value, (dict, FileColumn)):
            raise ValueError("write a type, such as string, or {from: HEADER, type: TYPE}")  # noqa: TRY004  # pydantic reports no other
        return value

    @model_serializer
    def _plain(self) -> object:
        return self.type if self.from_ is None else {"from": self.from_, "type": self.type}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema of both forms."""
        model = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [model["properties"]["type"], model]}


class Format(StrEnum):
    """Formats that source and reference files may have."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


class NamedBy(Enum):
    """How a file shows which column a value belongs to; raw keeps the lines of all files except those with a schema."""

    header = auto()
    place = auto()
    record = auto()
    schema = auto()


class Encoding(StrEnum):
    """The character encoding of text files."""

    utf_8 = "utf-8"
    latin_1 = "latin-1"
    windows_1252 = "windows-1252"


class CsvOptions(Part):
    """How CSV files are read."""

    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=2)] = ","
    quote: Annotated[str, Field(min_length=1, max_length=1)] = '"'
    null_value: str = ""

    @model_validator(mode="after")
    def _separates_cells(self) -> Self:
        signs = self.delimiter.replace("\\t", "\t")
        if not signs.replace("\t", "").isprintable() or "\\" in signs + self.quote or not self.quote.isprintable():
            raise ValueError("delimiter and quote: write visible characters or \\t, and no other backslash")
        if self.quote in signs:
            raise ValueError(f"delimiter and quote are both {self.quote!r}; change one of them")
        return self


class Columns(Part):
    """The columns that are read from files or from a table."""

    columns: dict[Name, FileColumn] = Field(min_length=1)

    @field_validator("columns")
    @classmethod
    def _without_own_names(cls, columns: dict[str, FileColumn]) -> dict[str, FileColumn]:
        """A `from` that is the column's own name says nothing; it must not make another reading either."""
        own = {name for name, column in columns.items() if (column.from_ or "").lower() == name}
        return {name: c.model_copy(update={"from_": None}) if name in own else c for name, c in columns.items()}

    @model_validator(mode="after")
    def _finds_each_column_once(self) -> Self:
        if problems := list(self._header_problems()):
            raise MisfitError(problems)
        return self

    def _header_problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        taken, headers = dict[str, str](), self.headers
        for name, column in self.columns.items():
            header, where = headers[name], ("columns", name, "from")
            key = f"columns.{name}.from {column.from_!r}"
            if column.from_ is None:
                continue
            if not self.has_headers:
                yield (
                    where,
                    f"{key}: the files have no header (csv.header is false), so columns are read in order; remove it",
                )
            elif header in self.columns:
                yield where, f"{key} is the name of another column, and readers would mix them up; rename that column"
            elif header in taken:
                yield where, f"{key}: {taken[header]} is read from there, too; name another header, or drop one of them"
            taken[header] = name

    @property
    def has_headers(self) -> bool:
        """Whether the columns have names where they are read from."""
        return True

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each column."""
        return {name: column.type for name, column in self.columns.items()}

    @property
    def headers(self) -> Mapping[str, str]:
        """What each column is called where it is read, in lower case: its `from`, or its name."""
        return {name: (column.from_ or name).lower() for name, column in self.columns.items()}

    def shown(self, name: str) -> str:
        """What a column is called where it is read, for people."""
        return self.columns[name].from_ or name


class Files(Columns):
    """The keys that a source and a reference share."""

    format: Format
    optional: tuple[ColumnPath, ...] = Field(
        default=(),
        description="Columns that may be missing in a file, and fields of structs that may be missing in one, by their paths, such "
        "as items.element.coupon; they are null there. All others must exist.",
    )
    encoding: Encoding = Field(
        default=Encoding.utf_8, description="Of CSV and JSONL; rows with bytes of another encoding are quarantined."
    )
    csv: CsvOptions = CsvOptions()

    @model_validator(mode="after")
    def _knows_what_is_optional(self) -> Self:
        fields = {path for name, kind in self.types.items() for path in fields_of(name, kind_of(kind))}
        if unknown := [path for path in self.optional if path not in fields and path not in self.columns]:
            raise ValueError(
                f"optional: {unknown[0]} is not one of the columns, or a field of a struct in one; declare its type there"
            )
        return self

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that each file must have."""
        return tuple(name for name in self.columns if name not in self.optional)

    @property
    def has_headers(self) -> bool:
        """Whether the files name their columns."""
        return self.named_by is not NamedBy.place

    @property
    def named_by(self) -> NamedBy:
        """What says which column a value belongs to."""
        match self.format:
            case Format.csv:
                return NamedBy.header if self.csv.header else NamedBy.place
            case Format.jsonl:
                return NamedBy.record
            case Format.parquet:
                return NamedBy.schema
            case _:
                assert_never(self.format)

    @property
    def is_text(self) -> bool:
        """Whether the files are lines of text, which raw keeps unchanged."""
        return self.named_by is not NamedBy.schema


class ReferenceFile(Files):
    """A small table, read from one file."""

    path: RelativePath


class Consumer(Part):
    """A consumer of the published table: the query that stands for it, and how far its figures may drift."""

    sql: Annotated[str, Field(min_length=1)] = Field(
        description="One SELECT that returns one row of numbers; the table has the dataset's name."
    )
    tolerance: Percent = Decimal(0)


class OnMissing(StrEnum):
    """Whether a day without its source or an upstream fails or passes its check of presence."""

    fail = "fail"
    pass_ = "pass"  # noqa: S105  # a word of YAML, not a secret


class OrderBy(StrEnum):
    """What decides which of two files in one landing is older."""

    time = "time"
    path = "path"


class Undeclared(StrEnum):
    """What raw does with undeclared columns of CSV and JSONL files."""

    keep = "keep"
    drop = "drop"


class Source(Files):
    """Where each day's deliveries come from."""

    model_config = ConfigDict(json_schema_extra=fills_in)

    path: Annotated[RelativePath, AfterValidator(checked_template)] = Field(
        description="Glob below the sources folder with the delivery day: {day}, {yyyymmdd}, or {yyyy}, {mm} and {dd}; or with the "
        "month, {yyyymm} or {yyyy} and {mm}, if a file has all days of one."
    )
    late_days: Annotated[int, Field(ge=0, le=366)] = Field(
        default=0,
        description="Files of up to this many days later may also hold rows of a day; staging reads that far.",
    )
    on_missing: OnMissing = OnMissing.fail
    order_by: OrderBy = Field(
        default=OrderBy.time,
        description="Which of two files of one landing is the newer one. time: by time of last change, then by path; "
        "path: by path alone.",
    )
    undeclared: Undeclared = Field(
        default=Undeclared.keep,
        description="Undeclared columns of CSV and JSONL files: raw keeps them unchanged, or drops them.",
    )
    removed_after_landing: bool = Field(
        default=False,
        description="Files are removed once they have landed: an empty sources folder is not an error then.",
    )
    extract: Extract | None = Field(default=None, description="Writes the file of a day itself, before the day lands.")

    @model_validator(mode="after")
    def _drops_only_whole_columns(self) -> Self:
        nested = [name for name, kind in self.types.items() if is_nested(kind)]
        if self.is_text and self.undeclared is Undeclared.drop and nested:
            raise ValueError(
                f"undeclared: drop keeps whole columns out of the warehouse, and not what is undeclared inside of {nested[0]}; "
                "write keep, or declare no arrays, maps and structs"
            )
        return self

    @property
    def as_kept(self) -> Self:
        """How raw's own lines are read if undeclared columns are dropped: JSON in UTF-8, by the columns' names."""
        columns = {name: FileColumn(type=kind) for name, kind in self.types.items()}
        return self.model_copy(update={"format": Format.jsonl, "encoding": Encoding.utf_8, "columns": columns})

    @property
    def template(self) -> PathTemplate:
        """Which paths belong to which delivery day."""
        return PathTemplate(self.path)


class Upstream(Part):
    """Another dataset whose facts a day is built from."""

    lookback_days: Annotated[int, Field(ge=0, le=366)] = Field(
        default=0, description="How many earlier days of the upstream a day reads."
    )
    on_missing: OnMissing = OnMissing.fail


_Query = Annotated[str, Field(min_length=1)]


class GoldenColumn(Part):
    """A column whose values must agree."""

    tolerance: Distance = Field(
        default=Decimal(0), description="How far two numbers may differ and still count as equal; 0 is exact."
    )


class Golden(CheckConfig):
    """A table that each day must agree with, and how both are brought to one grain.

    Rows are matched by `key`; one that is missing on either side, or differs in one of `columns`, is a mismatch.
    """

    description: str = ""
    file: ReferenceFile | None = None
    table: RelativePath | None = Field(default=None, description="Folder of a Delta table below the sources folder.")
    sql: _Query | None = Field(
        default=None,
        description="One SELECT that turns file or table, under the golden source's name, into the key and the columns; "
        "it may read references and upstreams by name, and then needs no file or table.",
    )
    ours: _Query | None = Field(
        default=None,
        description="One SELECT that turns the dataset's rows, under its name, into the same key and columns.",
    )
    key: tuple[Name, ...] = Field(min_length=1, description="Columns that rows are matched by; one of them is the day.")
    columns: dict[Name, GoldenColumn] = Field(default_factory=dict, description="Columns that are compared.")
    max_mismatches: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if self.file is not None and self.table is not None:
            raise ValueError("file and table are both set; keep one of them")
        if self.file is None and self.table is None and self.sql is None:
            raise ValueError("set file, table or sql: what the days are compared with")
        return self
