"""The Delta log as text: what delta-rs does not show, and which statistics go into the published log."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backfill_assets.core.errors import PreconditionError

LOG = "_delta_log"
SEALED = "_sealed_log"
"""What the log of a shadow is called once its files belong to the published table: no engine finds a table there."""

_COMMIT = re.compile(r"(\d{20})\.json")

Action = Mapping[str, Any]


@dataclass(frozen=True)
class ShadowLog:
    """A shadow as its log tells it: Delta schema fields by column, partition columns, protocol, files by path."""

    fields: Mapping[str, Action]
    partition_columns: tuple[str, ...]
    protocol: Action
    configuration: Mapping[str, str]
    adds: Mapping[str, Action]


def commits(log: Path) -> tuple[tuple[int, Path], ...]:
    """The JSON commits of a log folder, oldest first; compacted logs and checkpoints are left out."""
    if not log.is_dir():
        return ()
    found = ((_COMMIT.fullmatch(path.name), path) for path in log.iterdir())
    return tuple(sorted((int(match[1]), path) for match, path in found if match))


def commit_stamp(log: Path, version: int) -> tuple[int, ...]:
    """Tells the commit file of a version from any other that ever lay in its place; empty if it is cleaned up."""
    try:
        found = (log / f"{version:020}.json").stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def actions(commit: Path, kind: str) -> Iterator[Action]:
    """All actions of one kind in a commit."""
    for line in commit.read_text(encoding="utf-8").split("\n"):
        # Most lines of a release are file actions: only those asked for are parsed.
        if line.startswith(f'{{"{kind}"'):
            yield json.loads(line)[kind]


def shadow_log_folder(shadow: Path) -> Path | None:
    """The log of a shadow, sealed or not; a log written *after* the sealing is a straggler's and is not looked at."""
    for name in (SEALED, LOG):
        if (shadow / name).is_dir():
            return shadow / name
    return None


def read_shadow(shadow: Path) -> ShadowLog | None:
    """Replay the log of a shadow; none if it has no log.

    Raises:
        PreconditionError: commits are missing or cannot be read, so that the replay would be a guess.
    """
    folder = shadow_log_folder(shadow)
    if folder is None:
        return None
    found = commits(folder)
    if not found or [version for version, _ in found] != list(range(len(found))):
        raise PreconditionError(
            f"{folder}: expected the commits 0 to {found[-1][0] if found else 0}, found {[v for v, _ in found]}; "
            "build these days again"
        )
    try:
        return _replayed([commit for _, commit in found])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PreconditionError(f"{folder}: its commits cannot be read ({error}); build these days again") from error


def is_readable(shadow: Path) -> bool:
    """Whether a shadow has a log that can be replayed."""
    try:
        return read_shadow(shadow) is not None
    except (OSError, PreconditionError):
        return False


def _replayed(found: Sequence[Path]) -> ShadowLog:
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


def stats_texts(table: Path) -> dict[str, str]:
    """The statistics of every file that the table's JSON commits added, to the letter."""
    texts: dict[str, str] = {}
    for _, commit in commits(table / LOG):
        texts.update({add["path"]: add.get("stats") or "" for add in actions(commit, "add")})
    return texts


def removed_since(table: Path, moment: dt.datetime) -> frozenset[str]:
    """Paths of the files that left the table at `moment` or later."""
    edge = int(moment.timestamp() * 1000)
    return frozenset(
        removed["path"]
        for _, commit in commits(table / LOG)
        for removed in actions(commit, "remove")
        # Without a time nobody knows how long readers have had: keep it.
        if removed.get("deletionTimestamp") is None or removed["deletionTimestamp"] >= edge
    )


KEPT = ("numRecords", "nullCount")


def published_stats(text: str) -> str:
    """The number of records and the null counts of the log's statistics, as JSON text; no bounds.

    Bounds make readers drop rows in silence, whichever way they are carried over. As Spark writes them: its
    timestamps are cut to milliseconds, so that the maximum lies below the value; a float column with NaN has a
    minimum and no maximum; wide decimals lose digits. With only these left out, it is worse: delta-rs' PyArrow
    datasets take a missing bound of one column for `column >= null`, which no row meets, as soon as another column
    has one. Days are partitions, so all that a bound could save is opening one file of a day that was asked for.

    The result is empty where the log has no statistics, and then the file's `stats` must be null: one empty *text*
    among the files of a table makes delta-rs lose the statistics of all of them.
    """
    if not text.strip():
        return ""
    stats = json.loads(text)
    kept = {key: stats[key] for key in KEPT if key in stats}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False) if kept else ""
