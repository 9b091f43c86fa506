"""Opens Delta tables, and reads their logs as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.storage.location import Location

__all__ = ["DeltaError", "DeltaTable"]  # for the rooms that name them; all else goes through this room

LOG = "_delta_log"

_COMMIT = re.compile(r"(\d{20})\.json")
_ORNAMENT = re.compile(r"\x1b\[\d+m|↳")
_FRAME = re.compile(r"\d+: ")

Action = Mapping[str, Any]


def commits(log: Location) -> tuple[tuple[int, Location], ...]:
    """The JSON commits of a log folder, oldest first; without compacted logs and checkpoints."""
    return commits_among(log.listed())


def commits_among(entries: Iterable[Location]) -> tuple[tuple[int, Location], ...]:
    """The same of the entries of a log folder that have been listed."""
    found = ((_COMMIT.fullmatch(path.name), path) for path in entries)
    return tuple(sorted((int(match[1]), path) for match, path in found if match))


def commit_name(version: int) -> str:
    """The name of the commit of a version in a log folder."""
    return f"{version:020}.json"


@dataclass(frozen=True)
class MarkedCommit:
    """A commit that Spark has made, with this mark as its `userMetadata`."""

    table: Location
    version: int
    mark: str

    @property
    def file(self) -> Location:
        """The file of this version in the log."""
        return self.table / LOG / commit_name(self.version)

    def read_back(self) -> tuple[Action, ...]:
        """Read it once more; returns the files that it added, from the same text that has its mark.

        Raises:
            StorageError: it is gone, or somebody has written over it; its rows are in no version of the table.
        """
        text = _text(self.table, self.version)
        if _said_in(text, self.file).get("userMetadata") != self.mark:
            raise self.replaced()
        return tuple(_in_text(text, "add"))

    def replaced(self) -> StorageError:
        """What there is to say if it no longer counts."""
        return StorageError(
            f"{self.table}: Spark committed version {self.version}, and another commit is there now: another program, or a "
            "Spark server that asks another ledger, writes this table too. Nothing of this batch counts: end the other writer, "
            "and launch again"
        )

    def is_there(self) -> bool:
        """Whether the commit of this version has this mark."""
        return commit_info(self.table, self.version).get("userMetadata") == self.mark


def commit_info(table: Location, version: int) -> Action:
    """What the commit of a version says of itself; empty if it is not in the log, or no longer.

    Raises:
        PreconditionError: the commit is damaged.
        StorageError: the disk or the store fails.
    """
    return _said_in(_text(table, version), table / LOG / commit_name(version))


def _text(table: Location, version: int) -> str:
    """The text of a commit; empty if it is not in the log."""
    with reached(table):
        try:
            return (table / LOG / commit_name(version)).text()
        except FileNotFoundError:
            return ""


def _said_in(text: str, commit: Location) -> Action:
    try:
        return next(_in_text(text, "commitInfo"), {})
    except ValueError as error:
        raise PreconditionError(f"{commit} is damaged ({error}); see: backfill doctor") from error


def actions(commit: Location, kind: str) -> Iterator[Action]:
    """All actions of one kind in a commit."""
    return _in_text(commit.text(), kind)


def _in_text(text: str, kind: str) -> Iterator[Action]:
    for line in text.split("\n"):
        # Parse only the wanted kind: most lines of a release are file actions.
        if line.startswith(f'{{"{kind}"'):
            yield json.loads(line)[kind]


@contextmanager
def reached(place: Location) -> Iterator[None]:
    """Turn what delta-rs says of a disk or a store that fails into our error.

    Raises:
        StorageError: the disk or the store fails, or did so when the answer to a commit was on its way.
    """
    try:
        yield
    except (OSError, CommitFailedError) as error:
        raise StorageError(
            f"{place}: the disk or the store fails, or somebody else was faster ({error_text(error)}); repeat the command: it "
            "continues where this one stopped"
        ) from error


def newest_commit(place: Location) -> int:
    """The version of the newest commit in a table's log; -1 if it has none."""
    return max((version for version, _ in commits(place / LOG)), default=-1)


def table_at(place: Location, version: int | None = None) -> DeltaTable:
    """The Delta table at a place, at its newest version or another one.

    Raises:
        DeltaError: its log cannot be read, or has no such version.
        StorageError: the disk or the store fails.
    """
    with reached(place):
        return _at(place, version)


def _at(place: Location, version: int | None) -> DeltaTable:
    return DeltaTable(str(place), version=version, storage_options=place.storage_options)


class Newest:
    """The newest version of one table, opened again only after a new commit: in a bucket, an opening takes some twenty requests.

    Only for what an open table has in memory: version, files, columns. What reads its log, or changes the table, opens one of its
    own. Raises like `table_at`.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], DeltaTable] | None = None

    def of(self, place: Location) -> DeltaTable:
        """The table at this place, at its newest version."""
        with reached(place):
            if self._kept is not None:
                stamp, table = self._kept
                newer = place / LOG / commit_name(table.version() + 1)
                if stamp == _stamp(place, table.version()) and not newer.stamp():
                    return table
            # Before and after: what is put in its place meanwhile must not be taken for it.
            before = _stamp(place, newest_commit(place))
            table = _at(place, None)
            after = _stamp(place, table.version())
            # After a clean-up its commit may be gone; then nothing tells it from another table.
            self._kept = (after, table) if before == after and after[-1] else None
            return table


def _stamp(place: Location, version: int) -> tuple[object, ...]:
    return str(place), version, (place / LOG / commit_name(version)).stamp()


def is_table(path: Location) -> bool:
    """Whether this folder is a Delta table: its log has a commit or a checkpoint; raises what keeps it from looking."""
    # Delta-rs would hold Python's lock while it asks: no lease is renewed meanwhile. Most logs still have their first commit,
    # and a long log takes long to list.
    return (path / LOG / commit_name(0)).is_there() or any(
        place.name.endswith(".json") or ".checkpoint." in place.name for place in (path / LOG).listed()
    )


def tables_in(folder: Location) -> tuple[Location, ...]:
    """The Delta tables directly in a folder, by name."""
    return tuple(path for path in sorted(folder.listed()) if is_table(path))


def opened(place: Location, version: int | None = None) -> DeltaTable:
    """A table of others at a version; raises ValueError if there is none yet, or delta-rs would read another folder."""
    # Delta-rs would look for each version in between, which takes for ever.
    if version is not None and version > (newest := newest_commit(place)):
        raise ValueError(f"there is no version {version}, the newest is {newest}")
    if place.storage_options is not None and {"?", "#"} & set(str(place)):
        raise ValueError("because of the ? or # in its path, another place would be read; rename the folder")
    # Its log is read from the path as if that were part of a URL.
    if (other := unquote(str(place))) != str(place):
        raise ValueError(f"because of the % in its path, {other} would be read; rename the folder")
    return _at(place, version)


def rows_of(root: Location, columns: list[str] | None = None, version: int | None = None) -> pa.Table:
    """The rows of a table at its newest version or another one, all columns or some.

    Uses Arrow's own file system: with that of delta-rs, Arrow threads close files in Python even while the interpreter
    exits, and the process aborts after its work is done (delta-io/delta-rs#2184).

    Raises:
        DeltaError: the folder has no complete Delta table, or not this version.
    """
    return table_at(root, version).to_pyarrow_table(columns=columns, filesystem=_files_below(root))


def _files_below(root: Location) -> FileSystem:
    options = root.storage_options
    if options is None:
        return SubTreeFileSystem(str(root), LocalFileSystem())
    scheme, _, address = options.get("AWS_ENDPOINT_URL", "https://").partition("://")
    store = S3FileSystem(region=options["AWS_REGION"], scheme=scheme, endpoint_override=address or None)
    return SubTreeFileSystem(str(root).removeprefix("s3://"), store)


def error_text(error: Exception) -> str:
    """The message of a delta-rs error on one line, without its stack trace."""
    lines = (_ORNAMENT.sub("", line).strip() for line in str(error).splitlines())
    return ": ".join(takewhile(lambda line: not _FRAME.match(line), lines)) or type(error).__name__
