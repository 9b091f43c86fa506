"""Golden cases: small inputs of a dataset and the rows that its models must return for them.

A case is a folder `cases/<case>/` with `raw.<suffix>`, or with `raw/<delivery day>/<file>` for several deliveries, which
arrive in the order of their names; `<reference>.<suffix>` for each reference that it needs (all others are empty);
`<upstream>.csv` with the facts of each upstream that the dataset is built from; and `expected.csv`, `expected_staging.csv`
or both. Text files have the format that dataset.yaml declares; instead of other formats and tables, write CSV. Expected rows
are CSV: an empty cell is null, and values with parts are JSON. Only the columns that an expected file names are compared.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import assert_never

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
from backfill_assets.testing.tables import Table, as_arrow, read_table

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
    rows = as_arrow(read_table(delivery.file, table.types), table.types)
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
        rows = as_arrow(read_table(file, columns), columns)
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
            pq.write_table(as_arrow(rows, declared.types).rename_columns(shown), out)
            return out.getvalue()
        case _:
            assert_never(declared.format)
