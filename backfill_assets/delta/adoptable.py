"""Looks at a Delta table that was there before: what it has, and why releases could not be committed to it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import TypeAdapter, ValidationError

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import BackfillError, InvalidNameError, PreconditionError
from backfill_assets.core.release import TableCommit
from backfill_assets.core.text import checked_name
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.sources import ColumnType
from backfill_assets.delta import commit, schema, shadows
from backfill_assets.delta.opening import error_text, opened
from backfill_assets.delta.reading import add_actions, commits_of
from backfill_assets.storage.location import Location

_TYPE: Final = TypeAdapter[str](ColumnType)
_KNOWN_FEATURES: Final = frozenset({
    "appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz",
})  # fmt: skip
"""Features of writers with which a release leaves a correct table; others are refused until somebody has tried them."""
_REFUSED_SETTINGS: Final = {
    "delta.appendOnly": "a release replaces files: set it to false",
    "delta.setTransactionRetentionDuration": "releases are found by their transactions: unset it",
    "delta.compatibility.symlinkFormatManifest.enabled": "releases do not write these manifests, so their readers would "
    "see old rows: set it to false",
}


@dataclass(frozen=True)
class FoundColumn:
    """A column of a table; `rules` are conditions that each row meets, as `column_rules` gives them."""

    name: str
    type: str
    nullable: bool
    comment: str = ""
    rules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FoundTable:
    """A Delta table at its newest version.

    `constraints` are its own SQL conditions by name; `rows` is None if its log does not count them all; `last` is its newest
    commit. `problems` say what keeps it from being adopted as it is, one sentence each.
    """

    folder: Location
    columns: tuple[FoundColumn, ...]
    partition: str
    comment: str
    constraints: Mapping[str, str]
    days: tuple[dt.date, ...]
    files: int
    rows: int | None
    version: int
    last: TableCommit
    problems: tuple[str, ...]

    def require_no_problems(self) -> None:
        """Refuse a table that cannot be adopted as it is; raises PreconditionError, which names every problem."""
        if self.problems:
            raise PreconditionError(f"{self.folder} cannot be adopted as it is: {'; '.join(self.problems)}")


def look_at(folder: Location) -> FoundTable:
    """The Delta table in a folder; its log is read, and both ends of each file.

    Raises:
        PreconditionError: there is no Delta table, or it cannot be read.
    """
    return _found(folder, _opened(folder))


def _found(folder: Location, table: DeltaTable) -> FoundTable:
    metadata, fields = table.metadata(), schema.table_fields(table)
    adds = add_actions(table, "path", "size_bytes", "num_records", "partition")
    partitions = tuple(metadata.partition_columns)
    days = {(add["partition"] or {}).get(partitions[0]) for add in adds} if len(partitions) == 1 else set()
    counts = [add["num_records"] for add in adds]
    return FoundTable(
        folder=folder,
        columns=tuple(_column(one) for one in fields),
        partition=partitions[0] if partitions else "",
        comment=metadata.description or "",
        constraints=commit.constraints_of(metadata.configuration),
        days=tuple(sorted(day for day in days if isinstance(day, dt.date))),
        files=len(adds),
        rows=None if None in counts else sum(counts),
        version=table.version(),
        last=commits_of(table, 1)[0],
        problems=(*_problems(folder, table, adds), *(p for one in fields for p in _column_problems(one))),
    )


def require_adoptable(folder: Location, dataset: Dataset) -> FoundTable:
    """Check everything that a release of the dataset to this table needs; changes nothing, and returns the table.

    Raises:
        PreconditionError: names each column, feature or rule that does not fit, with what was expected and found.
    """
    table = _opened(folder)
    found = _found(folder, table)
    found.require_no_problems()
    commit.require_plain_table(folder, dataset, table)
    types = {**dataset.audit_columns, **schema.without_dropped(schema.table_types(table), dataset)}
    remedy = "Declare the columns of the table in dataset.yaml, or list those that no model fills in dropped_columns"
    schema.require_same(f"table {folder}", schema.declared_types(dataset), types, remedy)
    outside = [day for day in found.days if day < dataset.start or (dataset.end is not None and day > dataset.end)]
    if outside:
        raise PreconditionError(
            f"{folder}: it has rows of {format_days(outside, most=3)}, outside of {dataset.start}..{dataset.end or ''}; correct "
            "start and end in dataset.yaml, or remove end if the history goes on"
        )
    return found


def _opened(folder: Location) -> DeltaTable:
    try:
        return opened(folder)
    except TableNotFoundError:
        raise PreconditionError(f"{folder}: there is no Delta table; name the folder that has its _delta_log") from None
    except (DeltaError, ValueError) as error:
        raise PreconditionError(f"{folder}: its Delta log cannot be read ({error_text(error)})") from error


def _column(found: schema.Field) -> FoundColumn:
    (kind,) = schema.types_of([found]).values()
    comment = str(found["metadata"].get("comment") or "")
    return FoundColumn(found["name"], kind, bool(found["nullable"]), comment, commit.column_rules(found))


def _problems(folder: Location, table: DeltaTable, adds: list[dict[str, Any]]) -> Iterator[str]:
    metadata, protocol = table.metadata(), table.protocol()
    partitions = metadata.partition_columns
    types = schema.table_types(table)
    if len(partitions) != 1 or types.get(partitions[0]) != "date":
        found = ", ".join(f"{name} ({types.get(name)})" for name in partitions) or "no column"
        yield (
            f"it is partitioned by {found}, and a release swaps the files of whole days: write it again as a table that is "
            "partitioned by one column of type date, and adopt that one"
        )
    elif any((add["partition"] or {}).get(partitions[0]) is None for add in adds):
        yield f"it has rows without a day ({partitions[0]} is null); delete them, or give them their day"
    configuration = metadata.configuration
    try:
        commit.require_plain(
            "it", (*(protocol.reader_features or ()), *(protocol.writer_features or ())), configuration
        )
    except PreconditionError as error:
        yield str(error).removeprefix("it: ")
    for name, why in _REFUSED_SETTINGS.items():
        if (configuration.get(name) or "false").lower() != "false":
            yield f"it has {name}, and {why}"
    if unknown := sorted(set(protocol.writer_features or ()) - _KNOWN_FEATURES - set(commit.REFUSED_FEATURES)):
        yield f"it has the features {', '.join(unknown)}, which nobody has tried with releases: drop them"
    yield from _file_problems(folder, {add["path"]: add["size_bytes"] for add in adds})


def _file_problems(folder: Location, sizes: Mapping[str, int]) -> Iterator[str]:
    try:
        lost = sorted(shadows.lost(folder, sizes))
    except PreconditionError:
        yield (
            "some of its files lie elsewhere, as in a shallow clone, or have names with special characters: copy it into a "
            "table of its own"
        )
        return
    if lost:
        yield (
            f"it names files that are missing, altered or behind a link: {len(lost)}, first {lost[0]}; restore them, or remove "
            "them from its log (FSCK REPAIR TABLE in Databricks)"
        )


def _column_problems(found: schema.Field) -> Iterator[str]:
    column = _column(found)
    try:
        checked_name(column.name, "column")
    except InvalidNameError as error:
        yield str(error)
    try:
        _TYPE.validate_python(column.type)
    except (ValidationError, BackfillError):
        yield f"column {column.name}: its type {column.type} cannot be declared in dataset.yaml; drop or convert it"
