"""Opens Delta tables, and reads their logs as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from backfill_assets.storage.location import Location

LOG = "_delta_log"

_COMMIT = re.compile(r"(\d{20})\.json")
_ORNAMENT = re.compile(r"\x1b\[\d+m|↳")
_FRAME = re.compile(r"\d+: ")

Action = Mapping[str, Any]


def commits(log: Location) -> tuple[tuple[int, Location], ...]:
    """The JSON commits of a log folder, oldest first; without compacted logs and checkpoints."""
    found = ((_COMMIT.fullmatch(path.name), path) for path in log.listed())
    return tuple(sorted((int(match[1]), path) for match, path in found if match))


def actions(commit: Location, kind: str) -> Iterator[Action]:
    """All actions of one kind in a commit."""
    for line in commit.text().split("\n"):
        # Parse only the wanted kind: most lines of a release are file actions.
        if line.startswith(f'{{"{kind}"'):
            yield json.loads(line)[kind]


def table_at(place: Location, version: int | None = None) -> DeltaTable:
    """The Delta table at a place, at its newest version or another one; raises DeltaError if it cannot be read."""
    return DeltaTable(str(place), version=version, storage_options=place.storage_options)


def has_table(place: Location) -> bool:
    """Whether delta-rs finds a table at a place."""
    return DeltaTable.is_deltatable(str(place), storage_options=place.storage_options)


def is_table(path: Location) -> bool:
    """Whether this folder is a Delta table."""
    return any((path / LOG).fitting("*.json"))


def tables_in(folder: Location) -> tuple[Location, ...]:
    """The Delta tables directly in a folder, by name."""
    return tuple(path for path in sorted(folder.listed()) if is_table(path))


def opened(place: Location, version: int | None = None) -> DeltaTable:
    """A table of others at a version; raises ValueError if there is none yet, or delta-rs would read another folder."""
    # Delta-rs would look for each version in between, which takes for ever.
    if version is not None and version > (newest := max((number for number, _ in commits(place / LOG)), default=-1)):
        raise ValueError(f"there is no version {version}, the newest is {newest}")
    # Its log is read from the path as if that were part of a URL.
    if (other := unquote(str(place))) != str(place):
        raise ValueError(f"because of the % in its path, {other} would be read; rename the folder")
    return table_at(place, version)


def rows_of(root: Location, columns: list[str] | None = None, version: int | None = None) -> pa.Table:
    """The rows of a table at its newest version or another one, all columns or some.

    Uses Arrow's own file system: with that of delta-rs, Arrow threads close files in Python even while the interpreter
    exits, and the process aborts after its work is done (delta-io/delta-rs#2184).

    Raises:
        DeltaError: the folder has no complete Delta table, or not this version.
    """
    files = SubTreeFileSystem(str(root), LocalFileSystem())
    return table_at(root, version).to_pyarrow_table(columns=columns, filesystem=files)


def error_text(error: Exception) -> str:
    """The message of a delta-rs error on one line, without its stack trace."""
    lines = (_ORNAMENT.sub("", line).strip() for line in str(error).splitlines())
    return ": ".join(takewhile(lambda line: not _FRAME.match(line), lines)) or type(error).__name__
