"""Reads Delta tables as domain values."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import parse_day
from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.release import SHADOW, CommitKind, DataFile, ReleaseKind, TableCommit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta import statistics
from backfill_assets.delta.opening import (
    LOG,
    Action,
    actions,
    commit_name,
    commits,
    error_text,
    is_table,
    opened,
    table_at,
)
from backfill_assets.storage.location import Location

SEALED = "_sealed_log"
"""The name of a shadow's log after its files belong to the published table: engines find no table there."""

_PLAIN = re.compile(r"[A-Za-z0-9_=.+-]+(/[A-Za-z0-9_=.+-]+)*")


@dataclass(frozen=True)
class ShadowLog:
    """The content of a shadow's log: Delta schema fields by column, partition columns, protocol, files by path."""

    fields: Mapping[str, Action]
    partition_columns: tuple[str, ...]
    protocol: Action
    configuration: Mapping[str, str]
    adds: Mapping[str, Action]


def plain_path(path: str) -> str:
    """Return the path if a Delta log writes it without escapes and it only leads downwards.

    Raises:
        PreconditionError: the path is absolute, has `..`, or needs escapes.
    """
    if not _PLAIN.fullmatch(path) or ".." in path.split("/") or "." in path.split("/"):
        raise PreconditionError(
            f"file {path!r}: expected a plain relative path below the published table; build its day again"
        )
    return path


def shadow_log_folder(shadow: Location) -> Location | None:
    """The log of a shadow, sealed or not; ignores a log that a late writer made *after* the sealing."""
    # In a bucket the first commit arrives last, and leaves first.
    log, sealed = shadow / LOG, shadow / SEALED
    if (sealed / commit_name(0)).is_there():
        return sealed
    if sealed.is_folder() and not (log / commit_name(0)).is_there():
        return sealed  # it is damaged, and whoever reads it says so
    return log if log.is_folder() else None


def read_shadow(shadow: Location) -> ShadowLog | None:
    """Replay the log of a shadow; None if it has no log.

    Raises:
        PreconditionError: commits are missing or cannot be read, so the replay would be a guess.
    """
    folder = shadow_log_folder(shadow)
    if folder is None:
        return None
    found = commits(folder)
    if folder.name == LOG and shadow_log_folder(shadow) != folder:
        return read_shadow(shadow)  # it was sealed meanwhile
    if not found or [version for version, _ in found] != list(range(len(found))):
        raise PreconditionError(
            f"{folder}: expected the commits 0 to {found[-1][0] if found else 0}, found {[v for v, _ in found]}; "
            "build these days again"
        )
    try:
        return _replayed([commit for _, commit in found])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PreconditionError(f"{folder}: its commits cannot be read ({error}); build these days again") from error


def is_readable(shadow: Location) -> bool:
    """Whether a shadow has a log that can be replayed."""
    try:
        return read_shadow(shadow) is not None
    except (OSError, PreconditionError):
        return False


def _replayed(found: Sequence[Location]) -> ShadowLog:
    metadata: Action = {}
    protocol: Action = {}
    adds: dict[str, Action] = {}
    for commit in found:
        metadata = next(actions(commit, "metaData"), metadata)
        protocol = next(actions(commit, "protocol"), protocol)
        for removed in actions(commit, "remove"):
            adds.pop(removed["path"], None)
        adds.update({added["path"]: added for added in actions(commit, "add")})
    schema = json.loads(metadata["schemaString"])
    return ShadowLog(
        fields={field["name"]: field for field in schema["fields"]},
        partition_columns=tuple(metadata["partitionColumns"]),
        protocol=protocol,
        configuration=metadata.get("configuration") or {},
        adds=adds,
    )


SCHEMA_COMMIT = "backfill_assets_schema"
"""Metadata key of the commits by which this project creates the table, adds columns or sets its retention."""

FilesByDay = Mapping[dt.date, tuple[DataFile, ...]]


def sealed_path(path: str) -> str:
    """The path that a file of a shadow's log has once the shadow is sealed; empty for files outside of shadows."""
    return path.replace(f"/{LOG}/", f"/{SEALED}/", 1) if f"/{SHADOW}/" in path else ""


def active_files(table: DeltaTable, root: Location, dataset: Dataset) -> FilesByDay:
    """The files of a loaded version by day, with the log's text of their statistics.

    If the log no longer has that text, only the number of records is kept.

    Raises:
        PreconditionError: a file has no day, because its partition value is null.
    """
    found = add_actions(table, "path", "size_bytes", "modification_time", "num_records", "partition")
    # Statistics without a number of records are not worth a search through the whole log.
    counted = {add["path"] for add in found if add["num_records"] is not None}
    texts = statistics.texts(root / LOG, table.version(), counted)
    files = []
    for add in found:
        day = (add["partition"] or {}).get(dataset.partition_column)
        if day is None:
            raise PreconditionError(
                f"{root}: file {add['path']}: expected a day in {dataset.partition_column}, found null; "
                "rows without a day cannot be released or replaced: remove them from the table"
            )
        stats = texts[add["path"]] if add["path"] in texts else _count_only(add["num_records"])
        files.append(DataFile(add["path"], add["size_bytes"], day, add["modification_time"], stats))
    return _by_day(files)


def add_actions(table: DeltaTable, *columns: str) -> list[dict[str, Any]]:
    """Some columns of the active files of a loaded version.

    Raises:
        PreconditionError: a partition is a day that Python does not have.
    """
    # `pa.table` would work too, but loads pandas to find out whether its argument is a data frame.
    found = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()
    try:
        return list(found.select(list(columns)).to_pylist())
    except OverflowError:
        raise PreconditionError(
            f"{table.table_uri} has rows of a day outside of the years 1 to 9999; delete them"
        ) from None


def sizes_at(root: Location, version: int) -> Mapping[str, int]:
    """The size of each active file of a version in bytes, by its path below the table.

    Raises:
        PreconditionError: the log cannot be read, or no longer has that version.
    """
    try:
        return {add["path"]: add["size_bytes"] for add in add_actions(table_at(root, version), "path", "size_bytes")}
    except DeltaError as error:
        raise PreconditionError(
            f"{root}: version {version} cannot be read ({error_text(error)}); see: backfill doctor"
        ) from error


def shadow_files(log: ShadowLog, folder: str, dataset: Dataset, days: Collection[dt.date]) -> FilesByDay:
    """The files of a shadow by day, relative to the published table, with the statistics that may be published.

    Raises:
        PreconditionError: a file has a deletion vector, no day, or a path that needs escapes.
    """
    wanted = frozenset(days)
    files = []
    for path, add in log.adds.items():
        if add.get("deletionVector"):
            raise PreconditionError(
                f"{folder}/{path}: expected a file without deletion vector, found one; build its day again"
            )
        text = add["partitionValues"].get(dataset.partition_column)
        if not text:
            raise PreconditionError(f"{folder}/{path}: expected a day in {dataset.partition_column}, found null")
        day = parse_day(text, dataset.partition_column)
        if day in wanted:
            stats = statistics.published_stats(add.get("stats") or "")
            file = DataFile(plain_path(f"{folder}/{path}"), add["size"], day, add["modificationTime"], stats)
            files.append(file)
    return _by_day(files)


def commits_of(table: DeltaTable, most: int | None = None) -> tuple[TableCommit, ...]:
    """The commits that the log still has, newest first; all, or at most `most`."""
    found = (_commit(entry) for entry in table.history(most))
    return tuple(sorted(found, key=lambda commit: commit.version, reverse=True))


def _commit(entry: Mapping[str, Any]) -> TableCommit:
    at = dt.datetime.fromtimestamp(int(entry.get("timestamp") or 0) / 1000, dt.UTC)
    release, manifest, version = entry.get("release"), entry.get("manifest"), int(entry["version"])
    does = next((kind for kind in ReleaseKind if kind.value == entry.get("kind")), None)
    operation = str(entry.get("operation") or "")
    if release and manifest and does:
        return TableCommit(version, at, CommitKind.release, operation, str(release), str(manifest), does)
    # Other writers may use one of these keys for something else.
    return TableCommit(version, at, CommitKind.schema if entry.get(SCHEMA_COMMIT) else CommitKind.foreign, operation)


def _count_only(records: int | None) -> str:
    return "" if records is None else f'{{"numRecords":{records}}}'


def _by_day(files: Iterable[DataFile]) -> FilesByDay:
    grouped: dict[dt.date, list[DataFile]] = defaultdict(list)
    for file in files:
        grouped[file.day].append(file)
    return {day: tuple(sorted(grouped[day], key=lambda f: f.path)) for day in sorted(grouped)}


def held_by_day(place: Location, column: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
    """A digest (hex) by day of the table's files for it; of all files if it is not partitioned by `column`.

    Raises:
        DeltaError: the folder has no complete Delta table.
        ValueError: delta-rs would read another folder.
    """
    table = opened(place)
    known = _besides_files(table, _in_order(table.schema().to_json()))
    by_day = column in table.metadata().partition_columns
    files: dict[dt.date | None, list[str]] = {}
    for add in add_actions(table, "path", *(["partition"] if by_day else [])):
        files.setdefault(add["partition"][column] if by_day else None, []).append(add["path"])
    if not by_day:
        return dict.fromkeys(days, digest([*known, sorted(files.get(None, []))]))
    return {day: digest([*known, sorted(files.get(day, []))]) for day in days}


def _besides_files(table: DeltaTable, columns: object) -> list[object]:
    """What decides which rows a version has, besides its files: a column that is added or renamed changes no file."""
    # A deletion vector removes rows from a file that keeps its name.
    vectors = "deletionVectors" in (table.protocol().reader_features or ())
    return [table.metadata().id, columns, *([table.version()] if vectors else [])]


def _in_order(schema: str) -> str:
    """The JSON of a schema, where delta-rs writes the metadata of fields in any order, with that in order."""

    def in_order(found: dict[str, Any]) -> dict[str, Any]:
        return found if "type" in found else dict(sorted(found.items()))

    return json.dumps(json.loads(schema, object_hook=in_order), separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class HeldDay:
    """What a version of a table has of a day by its log: a digest (hex) of its files with their sizes, its rows and bytes.

    Rows are 0 if the log does not count them.
    """

    files: str
    rows: int
    size: int


def held_days(table: DeltaTable, column: str) -> Mapping[object, HeldDay]:
    """What a loaded version has of each value of a partition column."""
    known = _besides_files(table, json.loads(table.schema().to_json()))
    found: dict[object, list[Mapping[str, Any]]] = {}
    for add in add_actions(table, "path", "size_bytes", "num_records", "partition"):
        found.setdefault(add["partition"][column], []).append(add)
    return {
        day: HeldDay(
            digest([*known, sorted((add["path"], add["size_bytes"]) for add in adds)]),
            sum(add["num_records"] or 0 for add in adds),
            sum(add["size_bytes"] for add in adds),
        )
        for day, adds in found.items()
    }


def files_of_days(table: DeltaTable, column: str, days: Collection[dt.date]) -> Mapping[str, dt.date]:
    """The files of some days in a loaded version, by path relative to the table, each with its day."""
    files = {f["path"]: f["partition"][column] for f in add_actions(table, "path", "partition")}
    asked = frozenset(days)
    return {file: day for file, day in files.items() if day in asked}


def rows_by_day(path: Location, partition: str, days: Collection[dt.date]) -> Mapping[dt.date, int]:
    """Number of rows by day, from the table's log only."""
    counts = dict.fromkeys(days, 0)
    for file in add_actions(table_at(path), "num_records", "partition"):
        if (day := file["partition"][partition]) in counts:
            counts[day] += file["num_records"]
    return counts


def digests_by_day(path: Location, partition: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
    """The digest of a table's files by day, as `write_days` returns it; empty if there is no table."""
    if not is_table(path):
        return {}
    table = table_at(path)
    if "deletionVectors" in (table.protocol().reader_features or ()):
        # A deletion vector removes rows from a file that keeps its name; `write_days` makes none.
        return {}
    files: dict[dt.date, list[str]] = {day: [] for day in days}
    for file, day in files_of_days(table, partition, days).items():
        files[day].append(file)
    return {day: digest(sorted(own)) for day, own in files.items()}
