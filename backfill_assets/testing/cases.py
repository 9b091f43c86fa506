"""Golden cases: small inputs of a dataset and the rows that its models must make of them.

A case is a folder `cases/<case>/` with `raw.<suffix>`, or with `raw/<delivery day>/<file>` for several deliveries, which
arrive in the order of their names; `<reference>.<suffix>` for each reference that it needs, the others being empty;
`<upstream>.csv` with the facts of each upstream that the dataset is built from; and
`expected.csv`, `expected_staging.csv` or both. Files have the format that dataset.yaml declares (Parquet is written as
CSV), expected rows are CSV with empty cells for null. Only the columns that an expected file names are compared.
"""

from __future__ import annotations

import csv
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from backfill_assets.core.days import ONE_DAY, day_range, parse_day
from backfill_assets.core.errors import DatasetError, InvalidDayError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Case, LoadedDataset
from backfill_assets.dataset.sources import Format

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

_ARRIVAL = dt.time(6, tzinfo=dt.UTC)
_EXPECTED = {"expected.csv", "expected_staging.csv"}


@dataclass(frozen=True)
class CaseDelivery:
    """One source file of a case: its delivery day, where it stands, and when it arrives."""

    day: dt.date
    file: Path
    delivered_at: dt.datetime


@dataclass(frozen=True)
class CaseUpstream:
    """The facts of an upstream that a case is built from, as CSV with columns of that dataset."""

    loaded: LoadedDataset
    file: Path


@dataclass(frozen=True)
class GoldenCase:
    """A golden case, read and checked.

    `days` are the business days that its deliveries may hold; `expected` are the fact's rows of these days and
    `expected_staging` the staged ones, where the case says them.
    """

    loaded: LoadedDataset
    name: str
    deliveries: tuple[CaseDelivery, ...]
    references: Mapping[str, Path]
    upstreams: tuple[CaseUpstream, ...]
    days: tuple[dt.date, ...]
    expected: Table | None
    expected_staging: Table | None

    @property
    def id(self) -> str:
        """What the test suite calls it: `flights/redelivered`."""
        return f"{self.loaded.name}/{self.name}"


def collect_cases(folder: Path) -> tuple[GoldenCase, ...]:
    """All golden cases of all dataset folders below `folder`.

    Raises:
        DatasetError: a dataset or one of its cases is not as it must be; a test suite has to know of all of them.
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
        DatasetError: a file is missing, superfluous or cannot be read; names it and what to do.
    """
    dataset, folder = loaded.dataset, case.folder
    types = {name: column.type for name, column in dataset.columns.items()}
    expected, staged = (
        read_table(folder / name, types) if (folder / name).is_file() else None for name in sorted(_EXPECTED)
    )
    if expected is None and staged is None:
        raise DatasetError(f"{folder}: there is no expected.csv; write the rows that the models must yield")
    deliveries = _deliveries(dataset, folder, expected or staged) if dataset.source is not None else ()
    facts = tuple(CaseUpstream(u, folder / f"{u.name}.csv") for u in upstreams)
    if absent := [fact.file for fact in facts if not fact.file.is_file()]:
        raise DatasetError(f"{absent[0]}: the case has no facts of this upstream; write the rows that it is built from")
    references = {
        name: folder / f"{name}.{suffix_of(reference.format)}"
        for name, reference in dataset.references.items()
        if (folder / f"{name}.{suffix_of(reference.format)}").is_file()
    }
    own = {"raw", f"raw.{suffix_of(dataset.source.format)}"} if dataset.source is not None else set()
    known = {*_EXPECTED, *own, *(p.name for p in references.values()), *(fact.file.name for fact in facts)}
    strange = sorted(path.name for path in folder.iterdir() if path.name not in known and path.name[0] != ".")
    if strange:
        raise DatasetError(f"{folder / strange[0]}: belongs to no part of the case; rename or remove it")
    days = _days_delivered(dataset, deliveries) if dataset.source is not None else _days_expected(dataset, expected)
    return GoldenCase(loaded, case.name, deliveries, references, facts, days, expected, staged)


def _days_delivered(dataset: Dataset, deliveries: Iterable[CaseDelivery]) -> tuple[dt.date, ...]:
    late = dt.timedelta(days=dataset.landing.late_days)
    return tuple(sorted({day for d in deliveries for day in day_range(d.day - late, d.day)}))


def _days_expected(dataset: Dataset, expected: Table | None) -> tuple[dt.date, ...]:
    days = {row.get(dataset.partition_column) for row in (expected.rows if expected else ())}
    return tuple(sorted(day for day in days if isinstance(day, dt.date)))


def suffix_of(kind: Format) -> str:
    """How the files of a case end: as the format, but Parquet is written as CSV."""
    return "csv" if kind is Format.parquet else kind.value


def differences(expected: Table, found: Iterable[Row], key: Sequence[str]) -> tuple[str, ...]:
    """How found rows differ from the expected ones in the columns that these name; nothing means that they agree.

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

    lacking = [line("expected, but not found:", row) for row in (wanted - got).elements()]
    return (*lacking, *(line("found, but not expected:", row) for row in (got - wanted).elements()))


def _deliveries(dataset: Dataset, folder: Path, expected: Table | None) -> tuple[CaseDelivery, ...]:
    suffix = suffix_of(dataset.landing.format)
    single, several = folder / f"raw.{suffix}", folder / "raw"
    if single.is_file() == several.is_dir():
        raise DatasetError(f"{folder}: write either raw.{suffix} or raw/<delivery day>/<file>.{suffix}")
    if single.is_file():
        rows = expected.rows if expected else ()
        days = {row.get(dataset.partition_column) for row in rows}
        day = next(iter(days), None)
        if len(days) != 1 or not isinstance(day, dt.date):
            raise DatasetError(
                f"{single}: its delivery day is the one {dataset.partition_column} of the expected rows, which have "
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
        raise DatasetError(f"{several}: holds no *.{suffix} file; write raw/<delivery day>/<file>.{suffix}")
    return tuple(found)


def _arrival(day: dt.date, number: int) -> dt.datetime:
    return dt.datetime.combine(day + ONE_DAY, _ARRIVAL) + dt.timedelta(hours=number)


def _comparable(value: object) -> object:
    match value:
        case dt.datetime():
            return value.astimezone(dt.UTC)
        case float():
            # Sums and quotients differ in their last digits from engine to engine.
            return float(f"{value:.12g}")
        case Decimal():
            return value.normalize()
        case _:
            return value
