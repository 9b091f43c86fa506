"""The fingerprint of a reference with versions for each day: it covers the rows that are valid on the day, and no others.

Spark reads the rows themselves. Where it might read a line differently, the line counts for all days: too many days are stale
then, never too few.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, Final, assert_never

import pyarrow as pa
import pyarrow.parquet as pq

from backfill_assets.core.canonical import plain
from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import in_one_line
from backfill_assets.dataset.references import Reference
from backfill_assets.dataset.sources import CsvOptions, Format, NamedBy
from backfill_assets.storage.location import Location
from backfill_assets.storage.text_files import BLANK, columns_of, headline, lines_in, readable, require_names

_LONGEST_LINE: Final = 1 << 26
_DATE: Final = re.compile(r"\s*(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]00:00(?::00(?:\.0{1,9})?)?)?\s*", re.ASCII)
_SEPARATOR: Final = "\x1f"
_SPACE: Final = 1 << 256
_ALWAYS: Final = (dt.date.min, dt.date.max)


@dataclass(frozen=True)
class _Version:
    """A row: the first day on which it is valid, the first day on which it no longer is, and a hash of everything else in it."""

    first: dt.date
    after: dt.date
    content: int


class _Read:
    """A file as it was read: equal to another one if its content and its declaration are."""

    def __init__(self, reference: Reference, file: Location, shown: str) -> None:
        self.reference, self.shown, self.suffix = reference, shown, file.suffix
        with readable(shown), file.reader() as content:
            self.content = content.read()
        sha256 = hashlib.sha256(self.content).hexdigest()
        self._key = (sha256, reference.model_dump_json(exclude={"path"}), file.suffix)

    def reader(self) -> BinaryIO:
        return io.BytesIO(self.content)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Read) and self._key == other._key


def fingerprints_of_days(
    reference: Reference, file: Location, shown: str, days: Collection[dt.date]
) -> Mapping[dt.date, str]:
    """A fingerprint (64 hex digits) of the rows of a reference that are valid on each day; `shown` names the file in errors.

    It depends neither on the order of rows nor on the other days on which a row is valid: when a version ends, earlier days stay as
    they are. It is the sum of the rows' SHA-256 modulo 2^256, an additive hash of a multiset (Bellare and Micciancio 1997, AdHash),
    so that one pass over the file gives all days.

    Raises:
        SourceError: the file cannot be read, or lacks a column.
    """
    sums = _sums(_Read(reference, file, shown))
    found, total, position = dict[dt.date, str](), 0, 0
    for day in sorted(set(days)):
        while position < len(sums) and sums[position][0] <= day:
            total += sums[position][1]
            position += 1
        found[day] = f"{total % _SPACE:064x}"
    return found


@lru_cache(maxsize=32)
def _sums(read: _Read) -> tuple[tuple[dt.date, int], ...]:
    """What comes to the sum from each day on, oldest first."""
    changes: dict[dt.date, int] = {}
    for one in _versions(read):
        if one.first < one.after:
            changes[one.first] = changes.get(one.first, 0) + one.content
            changes[one.after] = changes.get(one.after, 0) - one.content
    # The cache keeps what this was computed from.
    read.content = b""
    return tuple(sorted(changes.items()))


def _versions(read: _Read) -> Iterator[_Version]:
    match read.reference.format:
        case Format.csv:
            yield from _of_csv(read)
        case Format.jsonl:
            yield from (_of_record(line, read.reference) for line in _lines_of(read))
        case Format.parquet:
            yield from _of_parquet(read)
        case _:
            assert_never(read.reference.format)


def _lines_of(read: _Read) -> Iterator[bytes]:
    """The lines that are not blank."""
    with lines_in(read, read.shown, _LONGEST_LINE) as lines:
        for line in lines:
            if len(line) >= _LONGEST_LINE:
                raise SourceError(
                    f"{read.shown}: a line is longer than {_LONGEST_LINE >> 20} MiB; deliver the file again"
                )
            if line.strip(BLANK):
                yield line.rstrip(b"\n")


def _of_csv(read: _Read) -> Iterator[_Version]:
    reference, header = read.reference, b""
    names, limits = tuple(reference.columns), reference.valid or ()
    if reference.named_by is NamedBy.header:
        header = headline(read, read.shown)
        names, limits = columns_of(header, read.shown, reference), reference.limits
    # Which column a cell belongs to.
    yield _Version(*_ALWAYS, _hash(names))
    places, lines = [names.index(limit) for limit in limits], _lines_of(read)
    if header:
        next(lines)
    for line in lines:
        yield _of_line(line, reference, len(names), places)


def _of_line(line: bytes, reference: Reference, width: int, places: list[int]) -> _Version:
    try:
        cells = _cells(line.decode(reference.encoding), reference.csv)
    except UnicodeDecodeError:
        cells = []
    unsure = _Version(*_ALWAYS, _hash(line.hex()))
    if len(cells) != width:
        return unsure
    first, after = (_text_of(cells[place], reference.csv) for place in places)
    days = _days(first, after)
    return _Version(*days, _hash([cell for i, cell in enumerate(cells) if i not in places])) if days else unsure


def _cells(text: str, options: CsvOptions) -> list[str]:
    """The cells of a line as they are written, with their quotes; none if it is not certain that Spark sees the same ones."""
    delimiter = options.delimiter.replace("\\t", "\t")
    if options.quote not in text:
        return text.split(delimiter)
    split, quote = text.replace(delimiter, _SEPARATOR), re.escape(options.quote)
    cell = rf"{quote}(?:[^{quote}]|{quote}{quote})*+{quote}|[^{quote}{_SEPARATOR}]*+"
    if _SEPARATOR in text or not re.fullmatch(rf"(?:{cell})(?:{_SEPARATOR}(?:{cell}))*+", split):
        return []
    return [found[1] for found in re.finditer(rf"(?:^|{_SEPARATOR})({cell})", split)]


def _text_of(cell: str, options: CsvOptions) -> str | None:
    """The text of a cell that holds a date; None for a null, and no date where it is not certain whether it is null."""
    if cell in {"", options.null_value}:
        return None
    quoted = len(cell) > 1 and cell[0] == cell[-1] == options.quote
    text = cell[1:-1] if quoted else cell
    # Spark may take what is null without quotes for null with them.
    return "" if text == options.null_value else text


class _Number(str):
    """A number of JSON with all its digits, which is no text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"number {self}"


class _Object(tuple[tuple[str, Any], ...]):
    """A record of JSON with all its keys, also if one occurs twice."""

    __slots__ = ()


def _of_record(line: bytes, reference: Reference) -> _Version:
    unsure = _Version(*_ALWAYS, _hash(line.hex()))
    found: dict[str, list[Any]] = {limit: [] for limit in reference.limits}
    try:
        record = json.loads(
            line.decode(reference.encoding), object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number
        )
        if not isinstance(record, _Object):
            return unsure
        for key, value in record:
            found.get(key.lower(), []).append(value)
        rest = _hash([[key.lower(), repr(value)] for key, value in record if key.lower() not in found])
    except (ValueError, RecursionError):
        return unsure
    if any(len(own) > 1 for own in found.values()):
        return unsure
    first, after = ((own or [None])[0] for own in found.values())
    days = _days(first, after)
    return _Version(*days, rest) if days else unsure


def _of_parquet(read: _Read) -> Iterator[_Version]:
    reference = read.reference
    limits, wanted = reference.limits, set(reference.headers.values())
    try:
        with pq.ParquetFile(read.reader()) as file:
            names = tuple(name.lower() for name in file.schema_arrow.names)
            require_names(names, read.shown, reference)
            columns = [name for name in file.schema_arrow.names if name.lower() in wanted]
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    known = {name.lower(): value for name, value in row.items()}
                    first, after = (None if known[limit] is None else str(known[limit]) for limit in limits)
                    days, rest = _days(first, after), {name: one for name, one in known.items() if name not in limits}
                    yield _Version(*days, _hash(rest)) if days else _Version(*_ALWAYS, _hash(known))
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        # Values that Python cannot hold, and names that are not UTF-8.
        raise SourceError(f"{read.shown}: cannot be read: {in_one_line(error)}; deliver it again") from error


def _days(first: object, after: object) -> tuple[dt.date, dt.date] | None:
    """The first day and the first day after the last one; None if one of them is not certainly a date."""
    begin, end = _date(first), dt.date.max if after is None else _date(after)
    return None if begin is None or end is None else (begin, end)


def _date(text: object) -> dt.date | None:
    match = _DATE.fullmatch(text) if isinstance(text, str) and not isinstance(text, _Number) else None
    try:
        return dt.date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def _hash(content: object) -> int:
    # Not as canonical JSON, which has no NaN.
    text = json.dumps(plain(content), sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest())
