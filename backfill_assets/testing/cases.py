"""Golden cases: small inputs of a dataset and the rows that its models must return for them.

A case is a folder `cases/<case>/` with `raw.<suffix>`, or with `raw/<delivery day>/<file>` for several deliveries, which
arrive in the order of their names; `<reference>.<suffix>` for each reference that it needs (all others are empty);
`<upstream>.csv` with the facts of each upstream that the dataset is built from; and `expected.csv`, `expected_staging.csv`
or both. Text files have the format that dataset.yaml declares; instead of other formats and tables, write CSV. Expected rows
are CSV with empty cells for null. Only the columns that an expected file names are compared.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from backfill_assets.core.days import ONE_DAY, day_range, parse_day
from backfill_assets.core.errors import DatasetError, InvalidDayError
from backfill_assets.core.path_template import PathTemplate
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Case, LoadedDataset
from backfill_assets.dataset.sources import Columns, Files, Format, NamedBy
from backfill_assets.dataset.table_source import TableSource
from backfill_assets.storage.layout import Layout

Row = Mapping[str, object]
"""The values of a row by column: str, bool, int, float, Decimal, date, aware datetime in UTC, or None."""


@dataclass(frozen=True)
class Table:
    """Rows and their columns, in the order of the file."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


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

_ARRIVAL = dt.time(6, tzinfo=dt.UTC)
_EXPECTED = {"expected.csv", "expected_staging.csv"}


@dataclass(frozen=True)
class CaseDelivery:
    """One source file of a case: its delivery day, its path, and its time of arrival."""

    day: dt.date
    file: Path
    delivered_at: dt.datetime


@dataclass(frozen=True)
class GoldenCase:
    """A golden case, read and checked.

    `upstreams` gives for each file the dataset whose facts it holds, as CSV with columns of that dataset; `days` are the
    business days that the deliveries may hold; `expected` and `expected_staging` are the fact rows and the staged rows of
    these days, None if the case does not give them.
    """

    loaded: LoadedDataset
    name: str
    deliveries: tuple[CaseDelivery, ...]
    references: Mapping[str, Path]
    upstreams: Mapping[Path, LoadedDataset]
    days: tuple[dt.date, ...]
    expected: Table | None
    expected_staging: Table | None

    @property
    def id(self) -> str:
        """The name of the case in the test suite, such as `flights/redelivered`."""
        return f"{self.loaded.name}/{self.name}"


def collect_cases(folder: Path) -> tuple[GoldenCase, ...]:
    """All golden cases of all dataset folders below `folder`.

    Raises:
        DatasetError: a dataset or one of its cases is invalid; a test suite must not miss any.
    """
    catalog = load_folder(folder)
    catalog.require_all()
    return tuple(
        read_case(loaded, case, [catalog.datasets[name] for name in loaded.dataset.upstream])
        for loaded in catalog.datasets.values()
        for case in loaded.cases
    )


def read_case(loaded: LoadedDataset, case: Case, upstreams: Sequence[LoadedDataset] = ()) -> GoldenCase:
    """Read one case's folder; `upstreams` are the datasets that it is built from.

    Raises:
        DatasetError: a file is missing, unexpected or cannot be read; names the file and what to do.
    """
    dataset, folder = loaded.dataset, case.folder
    types = dataset.types
    expected, staged = (
        read_table(folder / name, types) if (folder / name).is_file() else None for name in sorted(_EXPECTED)
    )
    if expected is None and staged is None:
        raise DatasetError(f"{folder}: there is no expected.csv; write the rows that the models must return")
    deliveries = _deliveries(dataset, folder, expected or staged) if dataset.source is not None else ()
    facts = {folder / f"{u.name}.csv": u for u in upstreams}
    if absent := [file for file in facts if not file.is_file()]:
        raise DatasetError(f"{absent[0]}: the case has no facts of this upstream; write the rows that it is built from")
    references = {
        name: file
        for name, reference in dataset.references.items()
        if (file := folder / f"{name}.{suffix_of(reference)}").is_file()
    }
    own = {"raw", f"raw.{suffix_of(dataset.source)}"} if dataset.source is not None else set()
    known = {*_EXPECTED, *own, *(p.name for p in references.values()), *(file.name for file in facts)}
    strange = sorted(path.name for path in folder.iterdir() if path.name not in known and path.name[0] != ".")
    if strange:
        raise DatasetError(f"{folder / strange[0]}: is no file of a case; rename or remove it")
    days = _days_delivered(dataset, deliveries) if dataset.source is not None else _days_expected(dataset, expected)
    return GoldenCase(loaded, case.name, deliveries, references, facts, days, expected, staged)


def _days_delivered(dataset: Dataset, deliveries: Iterable[CaseDelivery]) -> tuple[dt.date, ...]:
    # A case may have days before the history, or after it.
    due = {dataset.due(delivery.day) for delivery in deliveries}
    return tuple(sorted({day for last in due for day in day_range(dataset.first_brought_by(last), last)}))


def _days_expected(dataset: Dataset, expected: Table | None) -> tuple[dt.date, ...]:
    days = {row.get(dataset.partition_column) for row in (expected.rows if expected else ())}
    return tuple(sorted(day for day in days if isinstance(day, dt.date)))


def suffix_of(declared: Columns) -> str:
    """The suffix of a case's files: the declared format for text, and `csv` instead of other formats and tables."""
    return declared.format.value if isinstance(declared, Files) and declared.is_text else "csv"


def differences(expected: Table, found: Iterable[Row], key: Sequence[str]) -> tuple[str, ...]:
    """How found rows differ from the expected ones in the expected columns; empty if they agree.

    Naive timestamps among the found rows are local times, as Spark's client returns them.
    """
    columns = expected.columns
    wanted = Counter(tuple(_comparable(row[c]) for c in columns) for row in expected.rows)
    got = Counter(tuple(_comparable(row.get(c)) for c in columns) for row in found)
    named = [c for c in key if c in columns] or list(columns)

    def line(what: str, row: tuple[object, ...]) -> str:
        values = dict(zip(columns, row, strict=True))
        place = ", ".join(f"{c}={values[c]}" for c in named)
        rest = ", ".join(f"{c}={v}" for c, v in values.items() if c not in named)
        return f"{what} {place}" + (f": {rest}" if rest else "")

    missing = [line("expected, but not found:", row) for row in (wanted - got).elements()]
    return (*missing, *(line("found, but not expected:", row) for row in (got - wanted).elements()))


def _deliveries(dataset: Dataset, folder: Path, expected: Table | None) -> tuple[CaseDelivery, ...]:
    suffix = suffix_of(dataset.feed)
    single, several = folder / f"raw.{suffix}", folder / "raw"
    if single.is_file() == several.is_dir():
        raise DatasetError(f"{folder}: write either raw.{suffix} or raw/<delivery day>/<file>.{suffix}")
    if single.is_file():
        rows = expected.rows if expected else ()
        days = {row.get(dataset.partition_column) for row in rows}
        day = next(iter(days), None)
        if len(days) != 1 or not isinstance(day, dt.date):
            raise DatasetError(
                f"{single}: its delivery day is the only {dataset.partition_column} of the expected rows, but they have "
                f"{len(days)}; write raw/<delivery day>/<file>.{suffix}"
            )
        return (CaseDelivery(day, single, _arrival(day, 0)),)
    found = []
    for sub in sorted(several.iterdir()):
        try:
            day = parse_day(sub.name, "the delivery day")
        except InvalidDayError as error:
            raise DatasetError(f"{sub}: {error}") from error
        found += [CaseDelivery(day, file, _arrival(day, i)) for i, file in enumerate(sorted(sub.glob(f"*.{suffix}")))]
    if not found:
        raise DatasetError(f"{several}: has no *.{suffix} file; write raw/<delivery day>/<file>.{suffix}")
    return tuple(found)


def _arrival(day: dt.date, number: int) -> dt.datetime:
    return dt.datetime.combine(day + ONE_DAY, _ARRIVAL) + dt.timedelta(hours=number)


def _comparable(value: object) -> object:
    match value:
        case dt.datetime():
            return value.astimezone(dt.UTC)
        case float():
            # Engines compute sums and quotients with different last digits.
            return float(f"{value:.12g}")
        case Decimal():
            return value.normalize()
        case _:
            return value


_ARROW = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def lay_out(case: GoldenCase, sources: Path) -> None:
    """Write a case's deliveries and references below an empty sources folder, each where dataset.yaml expects it.

    Raises:
        DatasetError: two deliveries of the case have the same path.
    """
    table = case.loaded.dataset.source
    for delivery in case.deliveries:
        if isinstance(table, TableSource):
            write_deltalake(
                sources / table.table, _rows_of_day(table, delivery), partition_by=[table.day], mode="append"
            )
            continue
        source = case.loaded.dataset.landing
        target = sources / _place(source.template, delivery)
        if target.exists():
            raise DatasetError(f"{delivery.file}: {source.path} has room for one file a day; keep one of them")
        _write(delivery.file, target, source)
        seconds = delivery.delivered_at.timestamp()
        os.utime(target, (seconds, seconds))
    for name, reference in case.loaded.dataset.references.items():
        _write(case.references.get(name), sources / reference.path, reference)


def _rows_of_day(table: TableSource, delivery: CaseDelivery) -> pa.Table:
    rows = _arrow(read_table(delivery.file, table.types), table.types)
    named = rows.rename_columns([table.shown(name) for name in table.columns])
    own = [name for name in named.column_names if name.lower() == table.day.lower()]
    kind = named.schema.field(own[0]).type if own else pa.date32()
    day = pa.array([delivery.day] * len(rows), pa.date32()).cast(kind)
    return named.drop_columns(own).append_column(table.day, day)


def lay_out_upstreams(case: GoldenCase, layout: Layout) -> None:
    """Write the facts of a case's upstreams as their published tables."""
    for file, upstream in case.upstreams.items():
        dataset = upstream.dataset
        columns = dataset.types
        rows = _arrow(read_table(file, columns), columns)
        write_deltalake(str(layout.published_path(dataset.name)), rows, partition_by=[dataset.partition_column])


def _place(template: PathTemplate, delivery: CaseDelivery) -> PurePosixPath:
    path = PurePosixPath(template.filled(delivery.day))
    folder = PurePosixPath(*(_without_wildcards(part, "case") for part in path.parts[:-1]))
    name, stem = delivery.file.name, delivery.file.stem
    for own in (name, name + path.suffix):
        if fnmatch(own, path.name):
            return folder / own
    placed = folder / _without_wildcards(path.name, stem)
    # A stem that begins or ends with a digit may stand beside the day.
    return folder / _without_wildcards(path.name, f"_{stem}_") if template.doubt(placed.as_posix()) else placed


def _without_wildcards(shape: str, star: str) -> str:
    plain = re.sub(r"\[([^!\]])[^\]]*\]", r"\1", shape)
    return plain.replace("**", star).replace("*", star).replace("?", "x")


def _write(file: Path | None, target: Path, declared: Files) -> None:
    """Write a file of a case in its declared format; without a file, write a table without rows."""
    content = file.read_bytes() if file is not None and declared.is_text else _written(file, declared)
    target.parent.mkdir(parents=True, exist_ok=True)
    match target.suffix.lower() if declared.is_text else "":
        case ".gz":
            target.write_bytes(gzip.compress(content, mtime=0))
        case ".zst":
            target.write_bytes(pa.compress(content, "zstd", asbytes=True))
        case _:
            target.write_bytes(content)


def _written(file: Path | None, declared: Files) -> bytes:
    shown = [declared.shown(name) for name in declared.columns]
    match declared.format:
        case Format.csv:
            quote = declared.csv.quote
            cells = [
                one if one in declared.columns else f"{quote}{one.replace(quote, quote * 2)}{quote}" for one in shown
            ]
            line = declared.csv.delimiter.replace("\\t", "\t").join(cells) + "\n"
            return line.encode(declared.encoding) if declared.named_by is NamedBy.header else b""
        case Format.jsonl:
            return b""
        case Format.parquet:
            rows = Table((), ()) if file is None else read_table(file, declared.types)
            out = io.BytesIO()
            pq.write_table(_arrow(rows, declared.types).rename_columns(shown), out)
            return out.getvalue()
        case _:
            assert_never(declared.format)


def _arrow(table: Table, columns: Mapping[str, str]) -> pa.Table:
    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in columns.items()])
    return pa.Table.from_pylist([dict(row) for row in table.rows], schema=schema)


def _arrow_type(kind: str) -> pa.DataType:
    if not kind.startswith("decimal"):
        return _ARROW[kind]
    precision, scale = (int(part) for part in kind.removeprefix("decimal(").removesuffix(")").split(","))
    return pa.decimal128(precision, scale)
