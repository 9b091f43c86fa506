"""File formats: each file is checked before Spark reads it, then read into the rows of raw.

Raw keeps text files as delivered lines, so they can be read again without the source; of Parquet files, the declared columns.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.delivery import ARCHIVES
from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import in_one_line
from backfill_assets.core.types import Array, Kind, Map, Plain, Struct, kind_of
from backfill_assets.dataset.reading import form_of, reading_of
from backfill_assets.dataset.sources import Encoding, Files, Format, NamedBy, Source, Undeclared
from backfill_assets.evidence.raw_contents import FORM
from backfill_assets.pipeline.parse import CORRUPT, HEADER, LINE, Headers, csv_cells, dropped, json_cells
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.types import key_twice, ordered, spark_type, struct_of
from backfill_assets.storage.location import Location
from backfill_assets.storage.text_files import (
    BLANK,
    OPTIONAL,
    SHOWN_CHARACTERS,
    columns_of,
    expected,
    headline,
    lines_in,
    listed,
    opened_text,
    readable,
    require_names,
)

_LONGEST_RECORD: Final = 1 << 26
_TAIL: Final = 1 << 16
_CHUNK: Final = 1 << 20
_NOT_READ: Final = re.compile(
    r"\.(7z|br|bz2|deflate|gzip|lz4|lzma|lzo|snappy|tar|tgz|xz|z|zip|zstd)$", re.ASCII | re.IGNORECASE
)
_COMPRESSED: Final = re.compile(
    rb"\x1f\x8b|\x1f\x9d|\x28\xb5\x2f\xfd|BZh[1-9]1AY|PK\x03\x04|7z\xbc\xaf|\xfd7zXZ|\x04\x22\x4d\x18"
)


def require_columns(file: Location, shown: str, declared: Files) -> None:
    """Refuse a file that is incomplete or in which declared columns are missing; errors call it `shown`.

    Columns that are not declared are allowed; optional columns may be missing.

    Raises:
        SourceError: declared columns or the entire header are missing, a column is named twice, a type differs (Parquet), the file
            ends in zero bytes, or it cannot be read.
    """
    match declared.format:
        case Format.csv:
            _check_archive(file, shown)
            # Without a header it is read by position.
            if declared.named_by is NamedBy.header:
                columns_of(headline(file, shown), shown, declared)
            _check_end(file, shown)
        case Format.parquet:
            _check_parquet(file, shown, declared)
        case Format.jsonl:
            _check_archive(file, shown)
            _check_keys(file, shown, declared)
            _check_end(file, shown)
        case _:
            assert_never(declared.format)


def cells_of(lines: DataFrame, declared: Files, headers: Headers | None) -> DataFrame:
    """Lines of a text file with their `CELLS` and `NAMES`; `headers` are the columns by headline, for files with one."""
    match declared.format:
        case Format.csv:
            return csv_cells(lines, declared, headers)
        case Format.jsonl:
            return json_cells(lines, declared)
        case Format.parquet:
            raise TypeError(declared.format)  # its schema gives the columns, not its lines
        case _:
            assert_never(declared.format)


def _check_archive(file: Location, shown: str) -> None:
    """Refuse a file whose name and bytes disagree about compression: Spark goes by the name, and would read other lines."""
    with readable(shown), file.reader() as content:
        begin = content.read(10)
    mark = ARCHIVES.get(file.suffix)
    if mark and not begin.startswith(mark):
        raise SourceError(f"{shown}: is no complete {file.suffix} file; deliver it again")
    if _NOT_READ.search(file.name) or (mark is None and _COMPRESSED.match(begin)):
        raise SourceError(
            f"{shown}: its name or its first bytes are those of an archive that is not read; deliver text, plain or compressed by "
            "gzip or zstd under a name (of a link: the name of its target) that ends in .gz or .zst"
        )


def _check_end(file: Location, shown: str) -> None:
    """Refuse a text file that is cut: an archive is read to its end, and no text ends in a line of zero bytes and blanks.

    A crash leaves such a line in place of rows, and Spark reads it as blank. Blank lines may follow it.
    """
    with readable(shown):
        end = _end_of_archive(file) if file.suffix in ARCHIVES else file.end(_TAIL)
    end = end.rstrip(BLANK[1:])
    if end and not end.replace(b"\r", b"\n").rpartition(b"\n")[2].strip(BLANK):
        raise SourceError(f"{shown}: it ends in zero bytes, so it is incomplete; deliver it again")


def _end_of_archive(file: Location) -> bytes:
    end = b""
    with opened_text(file) as content:
        while chunk := content.read(_CHUNK):
            end = (end + chunk)[-_TAIL:]
    return end


def _check_keys(file: Location, shown: str, declared: Files) -> None:
    """Refuse a file if a required column is in none of its records: it has another name there. One is often enough."""
    missing = {declared.headers[name] for name in declared.required}
    found: dict[str, None] = {}
    with lines_in(file, shown, _LONGEST_RECORD) as lines:
        for line in lines:
            if not missing:
                return
            found |= dict.fromkeys(_keys(line, declared.encoding))
            missing -= found.keys()
    if missing and found:
        names = ", ".join(declared.shown(name) for name, own in declared.headers.items() if own in missing)
        raise SourceError(
            f"{shown}: none of its records has {names}; expected {expected(declared)}; found "
            f"{listed(tuple(found))}. Deliver it with these keys, or correct columns in dataset.yaml{OPTIONAL}"
        )


def _keys(line: bytes, encoding: Encoding) -> Iterable[str]:
    try:
        record = json.loads(line.decode(encoding))
    except (ValueError, RecursionError):
        return ()  # such a line goes to quarantine
    return (name.lower() for name in record) if isinstance(record, dict) else ()


def _check_parquet(file: Location, shown: str, declared: Files) -> None:
    try:
        with file.reader() as content:
            schema = pq.read_schema(content)
    except (pa.ArrowException, OSError, ValueError) as error:
        # ValueError: column names that are not UTF-8.
        raise SourceError(f"{shown}: is no complete Parquet file: {in_one_line(error)}; deliver it again") from error
    require_names(tuple(name.lower() for name in schema.names), shown, declared)
    names = {own: name for name, own in declared.headers.items()}
    for field in schema:
        name = names.get(field.name.lower())
        misfit = None if name is None else _misfit(field.type, kind_of(declared.types[name]), name, declared.optional)
        if misfit is not None:
            part = misfit.path.removeprefix(name or "")
            raise SourceError(
                f"{shown}: column {field.name}{part}: expected {misfit.expected}, found {misfit.found[:SHOWN_CHARACTERS]}. "
                f"{f'Deliver it with that field{_OR}{OPTIONAL}' if misfit.found == _NO_FIELD else f'{_WITH_TYPE}{_OR}'}"
            )


_NO_FIELD: Final = "no such field"
_WITH_TYPE: Final = "Deliver it with that type (timestamps in microseconds)"
_OR: Final = ", or correct columns in dataset.yaml"


@dataclass(frozen=True)
class _Misfit:
    path: str
    expected: Kind
    found: str


def _misfit(found: pa.DataType | None, kind: Kind, path: str, optional: Collection[str]) -> _Misfit | None:
    """The first part of a file's type that Spark would not read as it is declared; None if there is none."""
    if found is None:
        return None if path in optional else _Misfit(path, kind, _NO_FIELD)
    if pa.types.is_dictionary(found):
        found = found.value_type
    parts = _parts(found, kind)
    if parts is None:
        return _Misfit(path, kind, str(found))
    misfits = (_misfit(own, part, f"{path}.{name}", optional) for name, part, own in parts)
    return next((misfit for misfit in misfits if misfit is not None), None)


def _parts(found: pa.DataType, kind: Kind) -> list[tuple[str, Kind, pa.DataType | None]] | None:
    """The parts of a declared type with what a file has of each; None if the file's type is another one."""
    match kind:
        case Plain(name="decimal"):
            whole = kind.precision - kind.scale
            return [] if _is_decimal(found, whole, kind.scale) else None
        case Plain():
            return [] if str(found) in _ARROW[kind.name] else None
        case Array():
            is_list = any(is_one(found) for is_one in _LISTS)
            return [("element", kind.element, found.value_type)] if is_list else None
        case Map():
            if not pa.types.is_map(found):
                return None
            return [("key", kind.key, found.key_type), ("value", kind.value, found.item_type)]
        case Struct():
            # Spark finds the fields in any case.
            named = [(field.name.lower(), field.type) for field in found] if pa.types.is_struct(found) else []
            there = dict(named)
            is_clear = len(there) == len(named) > 0
            return [(name, part, there.get(name.lower())) for name, part in kind.fields] if is_clear else None


def _is_decimal(found: pa.DataType, whole: int, scale: int) -> bool:
    return bool(pa.types.is_decimal(found) and found.scale <= scale and found.precision - found.scale <= whole)


_SMALL: Final = ("int8", "int16", "int32", "uint8", "uint16")
_LISTS: Final = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list,
)  # fmt: skip
_ARROW: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("string", "large_string", "string_view"),
    "boolean": ("bool",),
    "smallint": ("int8", "int16", "uint8"),
    "integer": _SMALL,
    "long": (*_SMALL, "int64", "uint32"),
    "float": ("float",),
    "double": ("double", "float", *_SMALL),
    "date": ("date32[day]",),
    "timestamp": tuple(f"timestamp[{unit}{zone}]" for unit in ("ms", "us") for zone in ("", ", tz=UTC")),
    "timestamp_ntz": ("timestamp[ms]", "timestamp[us]"),
    "binary": ("binary", "large_binary", "binary_view"),
}
"""The Arrow types that Spark's Parquet reader converts to each declared type without loss."""

INGESTED: Final = "_ingested_at"
"""When a row was read into raw."""

_FILE: Final = "_file"
_LINEAGE: Final = "_source_file string, _fingerprint string, _delivered_at timestamp, _delivery_day date"
# No byte is one of these characters in this encoding, so every line is one cell.
_LINES: Final = {
    "encoding": "ISO-8859-1",
    "sep": "\u0100",
    "quote": "\u0101",
    "escape": "\u0102",
    "nullValue": "\u0103",
}


@dataclass(frozen=True)
class Found:
    """A file to read: its delivery day, its path below the sources folder (`path`) and its real place (`file`)."""

    day: dt.date
    path: str
    file: Location
    fingerprint: str
    delivered_at: dt.datetime


def delivered_rows(spark: SparkSession, source: Source, files: Sequence[Found], now: dt.datetime) -> DataFrame:
    """The rows of the files as raw keeps them: lines (for Parquet, the declared columns) and the file of each row.

    One pass over all files; whether a line is good is decided each time it is read from raw.
    """
    schema = raw_schema(source)
    if not files:
        return spark.createDataFrame([], schema)
    lines = {f.path: headline(f.file, f.path) for f in files} if source.named_by is NamedBy.header else {}
    known = [(f.file.for_spark, f.path, f.fingerprint, f.delivered_at, f.day, lines.get(f.path)) for f in files]
    lineage = spark.createDataFrame(known, f"{_FILE} string, {_LINEAGE}, {HEADER} binary")
    # A left join that fails: a row whose file is not recognised must not be dropped silently.
    read = lines_of if source.is_text else columns_in
    # Two deliveries may be links to one file: Spark would read it twice for each.
    joined = read(spark, source, list(dict.fromkeys(f.file for f in files))).join(F.broadcast(lineage), _FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("a row of no known file: "), F.col(_FILE)))
    form = F.lit(form_of(reading_of(source)))
    own = {"_source_file": F.coalesce("_source_file", unknown), INGESTED: F.lit(now), FORM: form}
    rows = joined.withColumns(own)
    if source.is_text and source.undeclared is Undeclared.drop:
        rows = dropped(cells_of(rows, source, headers_of(source, {lines[path]: path for path in lines})))
    return rows.select(*schema.names)


def headers_of(declared: Files, paths: Mapping[bytes, str]) -> Headers | None:
    """The columns of CSV files by headline; None if files have no headline. `paths` has one file of each headline, for errors.

    Raises:
        SourceError: a column that is declared now is missing in a headline.
    """
    if declared.named_by is not NamedBy.header:
        return None
    return {line: columns_of(line, path, declared) for line, path in paths.items()}


def raw_schema(source: Source) -> T.StructType:
    """The columns of raw; text files all have the same ones, whatever is declared."""
    lineage = struct_of({"_source_file": "string", "_fingerprint": "string", "_delivered_at": "timestamp"})
    tail = struct_of({INGESTED: "timestamp", FORM: "string", "_delivery_day": "date"})
    if source.is_text:
        rows = [T.StructField(name, T.BinaryType()) for name in (LINE, HEADER)]
    else:
        rows = [*struct_of(source.types).fields, *struct_of({CORRUPT: "string"}).fields]
    return T.StructType([*rows, *lineage.fields, *tail.fields])


def lines_of(spark: SparkSession, declared: Files, files: Sequence[Location]) -> DataFrame:
    """The lines of text files, without headlines and blank lines, each with the real path of its file."""
    reader = spark.read.options(**_LINES, header=str(declared.named_by is NamedBy.header).lower())
    lines = reader.schema(f"{LINE} string").csv([file.escaped_for_spark for file in files])
    return lines.select(F.encode(LINE, "ISO-8859-1").alias(LINE), _real_path())


def columns_in(spark: SparkSession, declared: Files, files: Sequence[Location]) -> DataFrame:
    """The declared columns of files with a schema, `CORRUPT` and the real path of each row's file.

    `CORRUPT` is the row as JSON if a map in it has a key twice, and otherwise null.
    """
    own = declared.headers
    schema = struct_of({own[name]: kind for name, kind in declared.types.items()})
    frame = spark.read.schema(schema).format(declared.format.value).load([file.escaped_for_spark for file in files])
    columns = {name: F.col(quoted(own[name])) for name in declared.columns}
    twice = [key_twice(quoted(own[name]), spark_type(kind)) for name, kind in declared.types.items()]
    parts = {name: ordered(quoted(own[name]), spark_type(kind)) for name, kind in declared.types.items()}
    shown = F.to_json(F.struct(*(F.expr(part).alias(name) for name, part in parts.items())))
    corrupt = F.when(F.expr(" OR ".join(filter(None, twice)) or "false"), shown)
    return frame.select(*(column.alias(name) for name, column in columns.items()), corrupt.alias(CORRUPT), _real_path())


def _real_path() -> Column:
    # Spark gives a URI, in which plus signs are not spaces; url_decode takes them for spaces.
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, "^file:/+", "/").alias(_FILE)
