"""Rows of an extract become a Parquet file: each value as its column declares it, without loss; equal rows, equal bytes."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal, Inexact, InvalidOperation
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import in_one_line, shortened, visible, without_secrets
from backfill_assets.core.types import Array, Kind, Map, Plain, Struct, kind_of
from backfill_assets.dataset.sources import Source
from backfill_assets.storage.arrow_types import arrow_type

BATCH: Final = 20_000
"""Rows that are in memory at a time."""
_SHOWN: Final = 60
_EXACT: Final = Context(prec=76, traps=[Inexact, InvalidOperation])
_CAST: Final = "cast it in the extract, or correct columns in dataset.yaml"


def write_rows(file: Path, source: Source, names: Sequence[str], batches: Iterable[Sequence[Sequence[object]]]) -> None:
    """Write rows, in batches of at most `BATCH`; `names` says what their values are called.

    Raises:
        SourceError: a column is missing, unknown or named twice, or a value does not fit its column.
    """
    order = _places(source, names)
    schema = pa.schema([(source.headers[name], arrow_type(kind_of(source.types[name]))) for name in order])
    before = 0
    with pq.ParquetWriter(file, schema) as out:
        for rows in batches:
            columns = list(zip(*rows, strict=True))
            arrays = [_array(source, name, columns[place], before) for name, place in order.items()]
            out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            before += len(rows)


def is_complete(file: Path) -> bool:
    """Whether `write_rows` has written a file to its end."""
    try:
        pq.read_metadata(file)
    except (pa.ArrowException, OSError):
        return False
    return True


def have_same_rows(one: Path, other: Path) -> bool:
    """Whether two files that `write_rows` wrote have the same rows in the same order; another version may write other bytes."""
    try:
        with pq.ParquetFile(one) as a, pq.ParquetFile(other) as b:
            if a.schema_arrow != b.schema_arrow or a.num_row_groups != b.num_row_groups:
                return False
            return all(a.read_row_group(n).equals(b.read_row_group(n)) for n in range(a.num_row_groups))
    except (pa.ArrowException, OSError):
        return False


def is_newest_change(file: Path, source: Source, column: str, change: tuple[int, object]) -> bool:
    """Whether a file that `write_rows` wrote has this many rows, and this largest value in a column."""
    count, largest = change
    try:
        with pq.ParquetFile(file) as found:
            values = found.read([source.headers[column]]).column(0)
            return len(values) == count and bool(pc.max(values).equals(_array(source, column, [largest], 0)[0]))
    except (pa.ArrowException, OSError):
        return False


def _places(source: Source, names: Sequence[str]) -> Mapping[str, int]:
    """The place of each declared column among the names; optional ones may have none."""
    found = [name.lower() for name in names]
    own = source.headers
    twice = [name for name in dict.fromkeys(found) if found.count(name) > 1]
    missing = [source.shown(name) for name in source.required if own[name] not in found]
    extra = [name for name in found if name not in own.values()]
    for what, wrong in (("names twice", twice), ("is missing", missing), ("has undeclared columns,", extra)):
        if wrong:
            listed, expected = (visible(", ".join(each)) for each in (wrong, map(source.shown, own)))
            raise SourceError(
                f"it {what} {shortened(listed, 1000)}; expected exactly {expected}, as columns in dataset.yaml"
            )
    return {name: found.index(header) for name, header in own.items() if header in found}


def _array(source: Source, name: str, values: Sequence[object], before: int) -> pa.Array:
    kind = kind_of(source.types[name])
    arrow = arrow_type(kind)
    found: list[object] = []
    for value in values:
        try:
            found.append(_exactly(value, kind, name, source.optional))
        except (ValueError, ArithmeticError) as error:
            raise SourceError(
                f"row {before + len(found) + 1}, column {source.shown(name)}: {_shown(value)} is no {kind} ({in_one_line(error)}); "
                f"{_CAST}"
            ) from None
    try:
        return pa.array(found, arrow)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise SourceError(
            f"column {source.shown(name)}: a value is no {kind} ({in_one_line(error)}); {_CAST}"
        ) from None


def _shown(value: object) -> str:
    try:
        return shortened(without_secrets(repr(value)), _SHOWN)
    except ValueError:  # Python writes no integer of more than some thousand digits
        return f"a very large {type(value).__name__}"


def _exactly(value: Any, kind: Kind, path: str, optional: Collection[str]) -> Any:
    """A value as its type holds it; `path` is that of the value, and fields that are `optional` may be missing.

    Raises:
        ValueError: it would not be the same value; names the part.
    """
    if value is None:
        return None
    found: Any
    with _named(path):
        found = (
            _PLAIN[kind.name](value, arrow_type(kind)) if isinstance(kind, Plain) else _PARTS[type(kind)](value, None)
        )
    match kind:
        case Plain():
            return found
        case Array():
            return [_exactly(one, kind.element, f"{path}.element", optional) for one in found]
        case Map():
            keys = [_exactly(key, kind.key, f"{path}.key", optional) for key in found]
            values = [_exactly(one, kind.value, f"{path}.value", optional) for one in found.values()]
            return list(zip(keys, values, strict=True))
        case Struct():
            names = kind.by_name
            unknown = [name for name in found if name not in names]
            missing = [name for name in names if name not in found and f"{path}.{name}" not in optional]
            if unknown or missing:
                what = f"has the undeclared field {unknown[0]!r}" if unknown else f"has no field {missing[0]!r}"
                raise ValueError(f"{path} {what}")
            return {name: _exactly(found.get(name), part, f"{path}.{name}", optional) for name, part in kind.fields}


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Let an error name the part of a column that it is about; the column is named anyway."""
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{path}: {error}" if "." in path else str(error)) from None


def _of(*kinds: type) -> Callable[[Any, pa.DataType | None], Any]:
    """A value of one of these very types, unchanged: a boolean is no number, and a time is no date."""

    def exact(value: Any, _: pa.DataType | None) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"it is a {type(value).__name__}")
        return value

    return exact


_whole_or_float, _whole_or_decimal, _time = _of(int, float), _of(int, Decimal), _of(dt.datetime)
_PARTS: Final = {Array: _of(list, tuple), Map: _of(dict), Struct: _of(dict)}


def _double(value: Any, arrow: pa.DataType) -> float:
    number = float(_whole_or_float(value, arrow))
    if type(value) is int and int(number) != value:
        raise ValueError("it has more digits than a double")
    return number


def _float(value: Any, arrow: pa.DataType) -> float:
    number = _double(value, arrow)
    single = _single(number)
    # Databases give a float as the shortest text that stands for it.
    texts = (float(f"{single:.{digits}g}") for digits in range(1, 10))
    shortest = next((text for text in texts if _single(text) == single), single)
    if not math.isnan(number) and number not in {single, shortest}:
        raise ValueError("it has more digits than a float")
    return single


def _single(number: float) -> float:
    try:
        found: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return found


def _timestamp(value: Any, arrow: pa.DataType) -> dt.datetime:
    moment: dt.datetime = _time(value, arrow)
    if moment.utcoffset() is None:
        raise ValueError("it has no time zone: say which, such as column AT TIME ZONE 'UTC'")
    return moment.astimezone(dt.UTC)


def _decimal(value: Any, arrow: pa.DataType) -> Decimal:
    number = Decimal(_whole_or_decimal(value, arrow))
    if not number.is_finite():
        raise ValueError("it is not finite")
    try:
        return number.quantize(Decimal(1).scaleb(-arrow.scale), context=_EXACT)
    except ArithmeticError:
        raise ValueError("it has more digits") from None


def _local(value: Any, arrow: pa.DataType) -> dt.datetime:
    moment: dt.datetime = _time(value, arrow)
    if moment.utcoffset() is not None:
        raise ValueError("it has a time zone: declare a timestamp")
    return moment


_PLAIN: Final[Mapping[str, Callable[[Any, pa.DataType], object]]] = {
    "string": _of(str), "boolean": _of(bool), "smallint": _of(int), "integer": _of(int), "long": _of(int), "float": _float,
    "double": _double, "date": _of(dt.date), "timestamp": _timestamp, "timestamp_ntz": _local, "binary": _of(bytes),
    "decimal": _decimal,
}  # fmt: skip
