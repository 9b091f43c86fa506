"""Tables of golden cases: CSV files as rows of declared types, and how rows differ from them."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.types import Array, Kind, Map, Plain, Struct, kind_of
from backfill_assets.storage.arrow_types import arrow_type

Row = Mapping[str, object]
"""The values of a row by column: str, bytes, bool, int, float, Decimal, date, datetime (aware ones in UTC), list, dict or None."""


@dataclass(frozen=True)
class Table:
    """Rows and their columns, in the order of the file; `types` are those of the columns, as far as they are known."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    types: Mapping[str, str] = field(default_factory=dict)


def read_table(path: Path, types: Mapping[str, str], null: str = "") -> Table:
    """Read a CSV file with a header; cells that equal `null` are null, timestamps without an offset are in UTC.

    Raises:
        DatasetError: a column that `types` does not declare, a row with another number of cells, or a value of another
            type; names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    reader = csv.reader(text.splitlines(), strict=True)
    columns = tuple(next(reader, ()))
    if unknown := [name for name in columns if name not in types]:
        raise DatasetError(f"{path}:1: no column {unknown[0]!r}; known columns: {', '.join(types)}")
    if not columns or len(set(columns)) < len(columns):
        raise DatasetError(f"{path}:1: the header must name each column once; found: {', '.join(columns) or 'nothing'}")
    rows: list[Row] = []
    for cells in reader:
        if len(cells) != len(columns):
            raise DatasetError(f"{path}:{reader.line_num}: {len(cells)} cells for {len(columns)} columns; write all")
        pairs = zip(columns, cells, strict=True)
        rows.append({c: _value(cell, types[c], null, f"{path}:{reader.line_num}: {c}") for c, cell in pairs})
    return Table(columns, tuple(rows), {name: types[name] for name in columns})


def _value(cell: str, kind: str, null: str, where: str) -> object:
    if cell == null:
        return None
    try:
        return _parsed(cell, kind_of(kind))
    except (ValueError, ArithmeticError) as error:
        raise DatasetError(f"{where} = {cell!r} is no {kind}; correct the value or the column's type") from error


def _parsed(cell: str, kind: Kind) -> object:
    if isinstance(kind, Plain):
        return _PARSERS[kind.name](cell)
    return _of_json(json.loads(cell, parse_int=str, parse_float=str, object_pairs_hook=_once), kind)


def _once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _of_json(found: Any, kind: Kind) -> object:
    """A value of a cell with JSON; in it, numbers are their texts."""
    match kind, found:
        case _, None:
            return None
        case Plain(name="boolean"), bool():
            return found
        case Plain(), str():
            return _PARSERS[kind.name](found)
        case Array(), list():
            return [_of_json(one, kind.element) for one in found]
        case Map(), dict():
            return _once([(_of_json(key, kind.key), _of_json(one, kind.value)) for key, one in found.items()])
        case Struct(), dict() if found.keys() == kind.by_name.keys():
            return {name: _of_json(found[name], own) for name, own in kind.fields}
        case _:
            raise ValueError(found)


def _boolean(cell: str) -> bool:
    if cell not in {"true", "false"}:
        raise ValueError(cell)
    return cell == "true"


def _timestamp(cell: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(cell)
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _local(cell: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(cell)
    if value.tzinfo is not None:
        raise ValueError(cell)
    return value


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "string": str,
    "boolean": _boolean,
    "smallint": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "date": dt.date.fromisoformat,
    "timestamp": _timestamp,
    "timestamp_ntz": _local,
    "binary": partial(base64.b64decode, validate=True),
    "decimal": Decimal,
}


def differences(expected: Table, found: Iterable[Row], key: Sequence[str]) -> tuple[str, ...]:
    """How found rows differ from the expected ones in the expected columns; empty if they agree.

    Naive timestamps among the found rows are local times, as Spark's client returns them.
    """
    columns, kinds = expected.columns, {name: kind_of(kind) for name, kind in expected.types.items()}

    def compared(row: Row) -> tuple[object, ...]:
        return tuple(_comparable(row.get(c), kinds.get(c)) for c in columns)

    wanted, got = Counter(map(compared, expected.rows)), Counter(map(compared, found))
    named = [c for c in key if c in columns] or list(columns)

    def line(what: str, row: tuple[object, ...]) -> str:
        values = dict(zip(columns, map(_shown, row), strict=True))
        place = ", ".join(f"{c}={values[c]}" for c in named)
        rest = ", ".join(f"{c}={v}" for c, v in values.items() if c not in named)
        return f"{what} {place}" + (f": {rest}" if rest else "")

    missing = [line("expected, but not found:", row) for row in (wanted - got).elements()]
    return (*missing, *(line("found, but not expected:", row) for row in (got - wanted).elements()))


def _comparable(value: object, kind: Kind | None) -> object:
    # The fields of a struct have names, as Spark's client returns it.
    named = getattr(value, "asDict", None)
    match named() if named else value:
        case dt.datetime() as moment:
            return moment if kind == Plain("timestamp_ntz") else moment.astimezone(dt.UTC)
        case float() as number:
            # Engines compute sums and quotients with different last digits.
            return float(f"{number:.12g}")
        case Decimal() as number:
            return number.normalize()
        case bytearray() as content:
            return bytes(content)
        case list() as elements:
            return tuple(_comparable(one, kind.element if isinstance(kind, Array) else None) for one in elements)
        case dict() as parts:
            return frozenset((name, _comparable(one, _part(kind, name))) for name, one in parts.items())
        case other:
            return other


def _part(kind: Kind | None, name: Any) -> Kind | None:
    match kind:
        case Map():
            return kind.value
        case Struct():
            return kind.by_name.get(name)
        case _:
            return None


def _shown(value: object) -> str:
    match value:
        case tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case frozenset():
            return f"{{{', '.join(sorted(f'{name}: {_shown(one)}' for name, one in value))}}}"
        case _:
            return str(value)


def as_arrow(table: Table, columns: Mapping[str, str]) -> pa.Table:
    """The rows as Arrow holds them, with all these columns by their declared types; missing ones are null."""
    kinds = {name: kind_of(kind) for name, kind in columns.items()}
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in kinds.items()])
    rows = [{name: _for_arrow(row.get(name), kind) for name, kind in kinds.items()} for row in table.rows]
    return pa.Table.from_pylist(rows, schema=schema)


def _for_arrow(value: Any, kind: Kind) -> Any:
    match kind, value:
        case Array(), list():
            return [_for_arrow(one, kind.element) for one in value]
        case Map(), dict():
            return [(key, _for_arrow(one, kind.value)) for key, one in value.items()]
        case Struct(), dict():
            return {name: _for_arrow(value[name], own) for name, own in kind.fields}
        case _:
            return value
