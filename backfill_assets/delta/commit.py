"""One commit of the published table: its preconditions and the actions that it writes."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import BackfillError, LayoutError, PreconditionError, ReadBackError, StorageError
from backfill_assets.core.release import SHADOW, DataFile, Manifest, ReleaseKind
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.opening import error_text, table_at
from backfill_assets.delta.reading import SCHEMA_COMMIT, plain_path
from backfill_assets.delta.schema import Field, parts_with_rules, table_fields
from backfill_assets.delta.shadows import missing
from backfill_assets.storage.location import Location

REFUSED_FEATURES: Final = ("columnMapping", "deletionVectors")
_CONSTRAINT: Final = "delta.constraints."
GENERATED: Final = "delta.generationExpression"
"""Field metadata with the expression of a generated column."""
LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Field metadata with the declared type of a column of type CHAR or VARCHAR, which Delta stores as a string."""
_LONGEST: Final = re.compile(r"(?:var)?char\((\d+)\)")
_RULES_OF_FIELDS: Final = ("delta.invariants", "delta.identity.", LENGTH)
"""Prefixes of field metadata that make an engine reject or generate values."""


def require_partitioning(what: str, dataset: Dataset, found: Sequence[str]) -> None:
    """Refuse a table that is not partitioned by exactly the dataset's partition column.

    Raises:
        PreconditionError: names what was expected and found.
    """
    if tuple(found) != (dataset.partition_column,):
        raise PreconditionError(
            f"{what}: expected to be partitioned by column {dataset.partition_column}, found {', '.join(found) or 'none'}; "
            "partitioning cannot be changed in place: publish under a new dataset name"
        )


def require_plain(what: str, features: Iterable[str], configuration: Mapping[str, str]) -> None:
    """Refuse column mapping and deletion vectors: a file moved to another table would be read wrongly.

    Raises:
        PreconditionError: names the feature.
    """
    listed = set(features)
    refused = [name for name in REFUSED_FEATURES if name in listed]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        refused.append("columnMapping")
    if configuration.get("delta.enableDeletionVectors", "false") == "true":
        refused.append("deletionVectors")
    if refused:
        raise PreconditionError(
            f"{what}: expected a table without column mapping and deletion vectors, found {', '.join(sorted(set(refused)))}; "
            "files of such a table cannot be swapped. Write it without these features"
        )


def require_own_rules(what: str, dataset: Dataset, table: DeltaTable) -> None:
    """Refuse a table with a rule that no blocking check of the dataset enforces: engines do not check swapped files.

    Raises:
        PreconditionError: names each rule.
    """
    always_null = {f"column {name} {LENGTH}" for name in dataset.dropped_columns}
    missing = {n: sql for n, sql in own_rules(table).items() if n not in always_null and not dataset.enforces(sql)}
    if missing:
        raise PreconditionError(
            f"{what}: expected that dataset.yaml declares the table's own rules, found {_named(missing)}; a release swaps "
            "files, and engines do not check their rows. Declare NOT NULL as nullable: false of the column, a constraint under "
            "checks.rules with the same text, a generated column and CHAR or VARCHAR with the text in brackets, all of them "
            "blocking; or drop them in the table, as rules of parts of columns must be: ALTER TABLE … DROP CONSTRAINT, or ALTER "
            "COLUMN … DROP NOT NULL"
        )


def require_rules_as_before(manifest: Manifest, table: DeltaTable, root: Location) -> None:
    """Refuse to bring files back into a table that has a new rule since they left it: their rows may break the rule.

    If the log of that time was cleaned up, they are not compared.

    Raises:
        PreconditionError: names each new rule.
    """
    version = table.transaction_version(manifest.undoes)
    rules = own_rules(table)
    if version is None or not rules:
        return
    with contextlib.suppress(DeltaError):
        before = own_rules(table_at(root, version - 1))
        if new := {name: sql for name, sql in rules.items() if before.get(name) != sql}:
            raise PreconditionError(
                f"release {manifest.release}: expected the table's own rules as before {manifest.undoes}, found {_named(new)}, "
                "which the files that come back were never checked against; build these days again instead, or drop the rule"
            )


def own_rules(table: DeltaTable) -> Mapping[str, str]:
    """A table's own rules by name: the condition that every row meets, as SQL, or empty for what no condition says."""
    rules = {f"constraint {name}": sql for name, sql in constraints_of(table.metadata().configuration).items()}
    for field in table_fields(table):
        column = f"column {field['name']}"
        rules |= {} if field["nullable"] else {f"{column} NOT NULL": f"{field['name']} IS NOT NULL"}
        rules |= {f"{column} {key}": sql for key, sql in column_rules(field).items()}
        rules |= {f"column {part}": "" for part in parts_with_rules(field["type"], field["name"])}
    return rules


def column_rules(field: Field) -> Mapping[str, str]:
    """The rules in a column's metadata by key: the condition that every row meets, as SQL, or empty as in `own_rules`."""
    name, found = field["name"], dict[str, str]()
    for key, value in sorted(field["metadata"].items()):
        if key == GENERATED:
            found[key] = f"{name} <=> ({value})"
        elif key == LENGTH and (longest := _LONGEST.fullmatch(str(value))):
            found[key] = f"{name} IS NULL OR length({name}) <= {longest[1]}"
        elif key.startswith(_RULES_OF_FIELDS):
            found[key] = ""
    return found


def _named(rules: Mapping[str, str]) -> str:
    return ", ".join(
        name if not sql or name.endswith(" NOT NULL") else f"{name} ({sql})" for name, sql in rules.items()
    )


def constraints_of(configuration: Mapping[str, str | None]) -> Mapping[str, str]:
    """The CHECK constraints in a table's configuration: SQL by name."""
    found = {
        key.removeprefix(_CONSTRAINT): sql or "" for key, sql in configuration.items() if key.startswith(_CONSTRAINT)
    }
    return dict(sorted(found.items()))


def require_plain_table(root: Location, dataset: Dataset, table: DeltaTable) -> None:
    """Refuse a table to which no release can be committed.

    Raises:
        PreconditionError: names feature, rule or partition column.
    """
    protocol, what, configuration = table.protocol(), f"published table {root}", table.metadata().configuration
    require_plain(what, (*(protocol.reader_features or ()), *(protocol.writer_features or ())), configuration)
    require_own_rules(what, dataset, table)
    require_partitioning(what, dataset, table.metadata().partition_columns)


_KEPT: Final = {
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 1 week",
}  # fmt: skip
"""Table properties, each with what Delta does where it is not set."""
_INTERVAL: Final = re.compile(
    r"(?:interval)?(?:\s*\d+\s+(?:microsecond|millisecond|second|minute|hour|day|week)s?)+", re.IGNORECASE
)
_PART_OF_INTERVAL: Final = re.compile(r"(\d+)\s+(\w+?)s?\b")


def kept_too_short(configuration: Mapping[str, str | None], needed: dt.timedelta) -> dict[str, str]:
    """The settings that keep a table's log or files for less than needed, with the needed values; longer ones stay."""
    wanted = f"interval {needed // dt.timedelta(seconds=1)} seconds"
    return {name: wanted for name, unset in _KEPT.items() if _interval(configuration.get(name) or unset) < needed}


def keep_long_enough(table: DeltaTable, needed: dt.timedelta) -> None:
    """Raise a table's retention if a VACUUM could remove its log or deleted files earlier than needed."""
    if short := kept_too_short(table.metadata().configuration, needed):
        marked = CommitProperties(custom_metadata={SCHEMA_COMMIT: "retention"})
        table.alter.set_table_properties(short, commit_properties=marked)


def _interval(text: str) -> dt.timedelta:
    """An interval in Delta's format; zero if it cannot be read, so that it is set again."""
    parts = _PART_OF_INTERVAL.findall(text.lower()) if _INTERVAL.fullmatch(text.strip()) else []
    return sum((dt.timedelta(**{f"{unit}s": int(number)}) for number, unit in parts), dt.timedelta(0))


Active = Mapping[dt.date, Sequence[DataFile]]


def require_own_dataset(manifest: Manifest, dataset: str) -> None:
    """Refuse the manifest of another dataset."""
    if manifest.dataset != dataset:
        raise PreconditionError(
            f"release {manifest.release}: expected a manifest of {dataset}, found one of {manifest.dataset}"
        )


def require_each_day_once(manifest: Manifest) -> None:
    """Refuse a manifest that has no day or swaps a day twice."""
    counts = Counter(swap.day for swap in manifest.days)
    twice = [day for day, count in counts.items() if count > 1]
    if twice or not counts:
        raise PreconditionError(
            f"release {manifest.release}: expected each day once, found {format_days(twice)} twice"
            if twice
            else f"release {manifest.release}: expected at least one day, found none"
        )


def require_files_of_their_day(manifest: Manifest) -> None:
    """Refuse a file whose partition is not the day of its swap."""
    for swap in manifest.days:
        for file in (*swap.add, *swap.remove):
            if file.day != swap.day:
                raise PreconditionError(
                    f"release {manifest.release}: file {file.path}: expected the day {swap.day}, found {file.day}"
                )


def require_files_of_the_unit(manifest: Manifest) -> None:
    """Refuse to publish a file that is not below the shadows of the release's unit."""
    prefix = f"{SHADOW}/{manifest.unit}/"
    for file in manifest.added:
        if not plain_path(file.path).startswith(prefix):
            raise PreconditionError(
                f"release {manifest.release}: file {file.path}: expected a file of the unit, below {prefix}"
            )


def require_exactly_the_active_files(manifest: Manifest, active: Active) -> None:
    """Refuse unless the files to remove are exactly the active files of each day; names each day that differs."""
    lines = []
    for swap in manifest.days:
        expected = {f.identity for f in swap.remove}
        found = {f.identity for f in active.get(swap.day, ())}
        if expected != found:
            lines.append(f"{swap.day}: expected {_paths(expected)}, found {_paths(found)}")
    if lines:
        raise PreconditionError(
            f"release {manifest.release}: the published files are not the ones that it was planned to replace: "
            f"{'; '.join(lines)}. Check these days again and repeat the release"
        )


def require_named_files(manifest: Manifest, active: Active) -> None:
    """Refuse a baseline unless it names exactly the active files of each of its days."""
    lines = [
        f"{swap.day}: expected {_paths({f.identity for f in swap.add})}, found {_paths(found)}"
        for swap in manifest.days
        if {f.identity for f in swap.add} != (found := {f.identity for f in active.get(swap.day, ())})
    ]
    if lines:
        raise PreconditionError(
            f"baseline {manifest.release}: another writer is at work: {'; '.join(lines)}. End it first"
        )


def require_new_files(manifest: Manifest, active: Active) -> None:
    """Refuse files that readers already see, or that are added twice."""
    seen = {f.path for files in active.values() for f in files}
    twice = {path for path, count in Counter(f.path for f in manifest.added).items() if count > 1}
    for file in manifest.added:
        if file.path in seen or file.path in twice:
            found = "it is already active" if file.path in seen else "it is added twice"
            raise PreconditionError(
                f"release {manifest.release}: file {file.path}: expected a file that is not in the table, found that {found}"
            )


def require_files_on_disk(manifest: Manifest, root: Location) -> None:
    """Refuse files that are missing or have another size."""
    lost = missing(root, manifest.added)
    if lost:
        names = ", ".join(f"{f.path} ({f.size} bytes)" for f in lost[:5])
        raise PreconditionError(
            f"release {manifest.release}: expected {len(manifest.added)} files below {root}, found that {len(lost)} are "
            f"missing or altered: {names}. Build {format_days(f.day for f in lost)} again"
        )


def _paths(identities: Iterable[tuple[str, int, str]]) -> str:
    return ", ".join(f"{path} ({size} bytes)" for path, size, _ in sorted(identities)) or "no file"


_DATA_CHANGE = True


def _partition(file: DataFile, dataset: Dataset) -> Mapping[str, str | None]:
    return {dataset.partition_column: file.day.isoformat()}


def _removals(manifest: Manifest, dataset: Dataset, now: int) -> list[RemoveAction]:
    """The actions that remove the old files of the days; `now` is in milliseconds since 1970."""
    return [RemoveAction(f.path, _DATA_CHANGE, now, f.size, dict(_partition(f, dataset))) for f in manifest.removed]


def _additions(manifest: Manifest, dataset: Dataset) -> list[AddAction]:
    """The actions that add the new files."""
    return [
        # Null, not empty: one empty text makes delta-rs lose the statistics of all files.
        AddAction(f.path, f.size, _partition(f, dataset), f.modified, _DATA_CHANGE, f.stats or None)  # type: ignore[arg-type]
        for f in manifest.added
    ]


def write(table: DeltaTable, manifest: Manifest, dataset: Dataset, at: dt.datetime) -> None:
    """Write the commit on exactly the loaded version; passes on the errors of delta-rs."""
    metadata = manifest.metadata()
    note = json.dumps(metadata, sort_keys=True, ensure_ascii=False)
    moved: list[AddAction | RemoveAction] = []
    if manifest.kind is not ReleaseKind.baseline:
        moved += [*_removals(manifest, dataset, int(at.timestamp() * 1000)), *_additions(manifest, dataset)]
    table.create_write_transaction(
        moved,
        mode="append",
        schema=table.schema(),
        partition_by=[dataset.partition_column],
        commit_properties=CommitProperties(
            custom_metadata={**metadata, "userMetadata": note},
            app_transactions=[Transaction(manifest.release, table.version() + 1)],
            max_commit_retries=0,
        ),
    )


def refused(manifest: Manifest, root: Location, error: Exception) -> BackfillError:
    """Why a commit was not made, and what to do about it."""
    if isinstance(error, OSError):
        return StorageError(
            f"release {manifest.release}: its commit cannot be written ({error_text(error)}); free disk space for {root} or "
            "let this user write there, and repeat the command: nothing was changed"
        )
    return PreconditionError(f"release {manifest.release}: Delta refused the commit: {error_text(error)}")


@contextlib.contextmanager
def in_doubt(manifest: Manifest) -> Iterator[None]:
    """After a commit was tried, report an unreadable log as `ReadBackError`, not as a failed commit."""
    try:
        yield
    except (DeltaError, OSError, LayoutError, PreconditionError, StorageError) as error:
        raise ReadBackError(
            f"release {manifest.release}: it may be committed, but its table cannot be read now ({error}); "
            "fix that, and run: backfill reconcile"
        ) from error
