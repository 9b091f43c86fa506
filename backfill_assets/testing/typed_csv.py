"""Reading CSV files whose columns have the types of a dataset.yaml, for tables small enough to be written by hand."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import DatasetError

Row = Mapping[str, object]
"""One row by column: str, bool, int, float, Decimal, date, aware datetime in UTC, or None."""


@dataclass(frozen=True)
class Table:
    """Rows and the columns that they have, in the file's order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def read_table(path: Path, types: Mapping[str, str], null: str = "") -> Table:
    """Read a CSV file with a header; cells that equal `null` are null, timestamps without an offset are in UTC.

    Raises:
        DatasetError: a column that `types` does not declare, a row of another width, or a value of another type;
            names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    reader = csv.reader(text.splitlines(), strict=True)
    columns = tuple(next(reader, ()))
    if unknown := [name for name in columns if name not in types]:
        raise DatasetError(f"{path}:1: no column {unknown[0]!r}; there are: {', '.join(types)}")
    if not columns or len(set(columns)) < len(columns):
        raise DatasetError(f"{path}:1: the header must name each column once; found: {', '.join(columns) or 'nothing'}")
    rows: list[Row] = []
    for cells in reader:
        if len(cells) != len(columns):
            raise DatasetError(f"{path}:{reader.line_num}: {len(cells)} cells for {len(columns)} columns; write all")
        pairs = zip(columns, cells, strict=True)
        rows.append({c: _value(cell, types[c], null, f"{path}:{reader.line_num}: {c}") for c, cell in pairs})
    return Table(columns, tuple(rows))


def _value(cell: str, kind: str, null: str, where: str) -> object:
    if cell == null:
        return None
    parse = _PARSERS["decimal" if kind.startswith("decimal") else kind]
    try:
        return parse(cell)
    except (ValueError, ArithmeticError) as error:
        raise DatasetError(f"{where} = {cell!r} is no {kind}; correct the value or the column's type") from error


def _boolean(cell: str) -> bool:
    if cell not in {"true", "false"}:
        raise ValueError(cell)
    return cell == "true"


def _timestamp(cell: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(cell)
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "string": str,
    "boolean": _boolean,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "date": dt.date.fromisoformat,
    "timestamp": _timestamp,
    "decimal": Decimal,
}
