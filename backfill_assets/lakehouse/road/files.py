"""Look into single files before Spark reads them: do they have the columns that the dataset declares?"""

from __future__ import annotations

import bz2
import csv as csv_module
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from backfill_assets.domain.errors import SourceError
from backfill_assets.domain.files import CsvOptions, Format
from backfill_assets.domain.names import in_one_line, shortened, visible
from backfill_assets.lakehouse.road.spark_sql import struct_of

_LONGEST_HEADER: Final = 1 << 20
_MOST_COLUMNS: Final = 10_000
_SHOWN: Final = 50
_SHOWN_CHARACTERS: Final = 1_000
_SEPARATOR: Final = "\x1f"
_GLOB: Final = frozenset("[]{}*?\\")


class Declared(Protocol):
    """What a source and a reference both declare of their files."""

    @property
    def format(self) -> Format:
        """Format of the files."""

    @property
    def columns(self) -> dict[str, str]:
        """Types by column."""

    @property
    def csv(self) -> CsvOptions:
        """How CSV files are to be read."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def read_from(shown: str) -> Iterator[None]:
    """Turn errors of the file system about a file, `shown` to people, into ours: it may vanish after it was listed.

    Raises:
        SourceError: the file is gone, or cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{visible(shown)}: it was there and cannot be read any more ({error.strerror or error}); see that it is delivered "
            "whole, under another name until then, and launch again"
        ) from error


def spark_path(path: Path) -> str:
    """A path as Spark's reader wants it: characters that it would take for a pattern are escaped."""
    return "".join("\\" + c if c in _GLOB else c for c in str(path))


def csv_options(options: CsvOptions) -> dict[str, str]:
    """The options of Spark's CSV reader: one line is one row, quotes are doubled inside quotes."""
    return {
        "header": str(options.header).lower(),
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.quote,
        "nullValue": options.null_value,
        # With it Spark does not count the cells of a row where it reads only some of them: one that was cut would pass.
        "columnPruning": "false",
    }


def positional(declared: Declared, order: tuple[str, ...]) -> T.StructType:
    """A schema in the order of a CSV file's header; columns that nobody declared are read past."""
    names = [name if name in declared.columns else f"_other_{i}" for i, name in enumerate(order)]
    return struct_of({name: declared.columns.get(name, "string") for name in names})


def columns_in(path: Path, shown: str, declared: Declared) -> tuple[str, ...]:
    """The columns of a file in their order, where order matters (CSV with a header); else those declared.

    `shown` names the file in errors. Columns that are not declared may be there, and are not read.

    Raises:
        SourceError: the file lacks declared columns, names one twice, has other types (Parquet), or cannot be read.
    """
    match declared.format:
        case Format.csv if declared.csv.header:
            header = _header(path, shown, declared.csv)
            _check_names(header or tuple(declared.columns), shown, declared.columns)
            return header
        case Format.parquet:
            _check_parquet(path, shown, declared.columns)
        case _:
            pass  # JSON has no header; CSV without one is read by position
    return tuple(declared.columns)


def _header(path: Path, shown: str, options: CsvOptions) -> tuple[str, ...]:
    opener = cast("Callable[..., Iterable[str]]", {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open))
    try:
        with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:  # type: ignore[attr-defined]
            line = _first_line(iter(lambda: file.readline(_LONGEST_HEADER), ""), shown)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{shown}: cannot be read: {in_one_line(error)}; deliver it again") from error
    delimiter = options.delimiter.replace("\\t", "\t")
    row = csv_module.reader([line.replace(delimiter, _SEPARATOR)], delimiter=_SEPARATOR, quotechar=options.quote)
    try:
        names = tuple(name.strip().lower() for name in next(row, []))
    except csv_module.Error as error:
        raise SourceError(f"{shown}: its header cannot be read: {in_one_line(error)}; deliver it again") from error
    if len(names) > _MOST_COLUMNS:
        raise SourceError(
            f"{shown}: its header names {len(names):,} columns, at most {_MOST_COLUMNS:,} are read; deliver it anew"
        )
    return names


def _first_line(lines: Iterator[str], shown: str) -> str:
    """The first line that is not blank, or nothing; of a file that begins with a megabyte of blanks nobody wants to know."""
    length = 0
    for line in lines:
        length += len(line)
        if length >= _LONGEST_HEADER:
            raise SourceError(f"{shown}: its header does not end within {_LONGEST_HEADER >> 20} MiB; deliver it anew")
        if line.strip():
            return line
    return ""


def _check_names(found: tuple[str, ...], shown: str, columns: Mapping[str, str]) -> None:
    missing = [name for name in columns if name not in found]
    twice = [name for name in columns if found.count(name) > 1]
    if missing or twice:
        what = f"lacks {', '.join(missing)}" if missing else f"names {', '.join(twice)} twice"
        raise SourceError(
            f"{shown}: its header {what}; expected {', '.join(columns)}; found {_listed(found)}. "
            "Deliver it with these columns, or correct columns in dataset.yaml"
        )


def _listed(found: tuple[str, ...]) -> str:
    text = visible(", ".join(found[:_SHOWN]))
    return shortened(text, _SHOWN_CHARACTERS) + (f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else "")


def _check_parquet(path: Path, shown: str, columns: Mapping[str, str]) -> None:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        # ValueError: names of columns that are no UTF-8.
        raise SourceError(f"{shown}: is no whole Parquet file: {in_one_line(error)}; deliver it again") from error
    _check_names(tuple(name.lower() for name in schema.names), shown, columns)
    for field in schema:
        declared = columns.get(field.name.lower())
        if declared is not None and not _fits(field.type, declared):
            raise SourceError(
                f"{shown}: column {field.name}: expected {declared}, found {str(field.type)[:_SHOWN_CHARACTERS]}. "
                "Deliver it with that type (timestamps in microseconds), or correct columns in dataset.yaml"
            )


def _fits(found: pa.DataType, declared: str) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if declared.startswith("decimal("):
        precision, scale = (int(part) for part in declared[8:-1].split(","))
        return bool(
            pa.types.is_decimal(found) and found.scale <= scale and found.precision - found.scale <= precision - scale
        )
    return str(found) in _ARROW[declared]


_SMALL: Final = ("int8", "int16", "int32", "uint8", "uint16")
_ARROW: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("string", "large_string", "string_view"),
    "boolean": ("bool",),
    "integer": _SMALL,
    "long": (*_SMALL, "int64", "uint32"),
    "float": ("float",),
    "double": ("double", "float", *_SMALL),
    "date": ("date32[day]",),
    "timestamp": tuple(f"timestamp[{unit}{zone}]" for unit in ("ms", "us") for zone in ("", ", tz=UTC")),
}
"""What Spark's Parquet reader turns into each declared type without a loss."""
