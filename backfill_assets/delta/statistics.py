"""The statistics of a Delta log's files: the text that the log has of them, and what of it is published."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from backfill_assets.delta.opening import actions, commits_among
from backfill_assets.storage.location import Location

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

KEPT = ("numRecords", "nullCount")


def published_stats(text: str) -> str:
    """The number of records and the null counts of the log's statistics, as JSON text; without bounds.

    Bounds make readers drop rows silently. Spark's own bounds are wrong: it cuts timestamps to milliseconds, so the
    maximum is below the value; a float column with NaN has a minimum but no maximum; wide decimals lose digits.
    Leaving out only these is worse: if another column has a bound, delta-rs' PyArrow datasets read a missing bound as
    `column >= null`, which no row meets. Days are partitions, so a bound could only save opening one file of a
    requested day.

    The result is empty if the log has no statistics; then the file's `stats` must be null: one empty *text* among the
    files of a table makes delta-rs lose the statistics of all of them.
    """
    if not text.strip():
        return ""
    stats = json.loads(text)
    kept = {key: stats[key] for key in KEPT if key in stats}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False) if kept else ""


def texts(log: Location, version: int, files: Collection[str]) -> Mapping[str, str]:
    """The log's text of the statistics of at least these files of a version, by path, as far as the log still has it; "" for none.

    Reads the newest checkpoint and the commits after it. All commits are read if that checkpoint cannot be read, does not have the
    text of a file, as with engines that keep it in another form, or if the log lacks a commit after it.
    """
    entries = list(log.listed())
    commits = [(number, commit) for number, commit in commits_among(entries) if number <= version]
    since, found = _of_checkpoint(entries, version)
    if [number for number, _ in commits if number > since] != list(range(since + 1, version + 1)):
        # There is a newer one in another form; what a file had at this one may be wrong by now.
        since, found = -1, {}
    found |= _of_commits(commit for number, commit in commits if number > since)
    if found.keys() >= set(files):
        return found
    return _of_commits(commit for number, commit in commits if number <= since) | found


def _of_commits(commits: Iterable[Location]) -> dict[str, str]:
    return {add["path"]: add.get("stats") or "" for commit in commits for add in actions(commit, "add")}


def _of_checkpoint(entries: Iterable[Location], version: int) -> tuple[int, dict[str, str]]:
    """The version of the newest checkpoint up to a version, and the texts in it; -1 if there is none that can be read."""
    checkpoints = {int(match[1]): place for place in entries if (match := _CHECKPOINT.fullmatch(place.name))}
    newest = max((number for number in checkpoints if number <= version), default=-1)
    if newest < 0:
        return -1, {}
    try:
        read = pq.ParquetFile(pa.BufferReader(checkpoints[newest].end())).read(["add.path", "add.stats"])
        adds = read.column("add").to_pylist() if "add" in read.column_names else []
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        return -1, {}  # it is damaged, or was removed meanwhile
    return newest, {add["path"]: add["stats"] for add in adds if add and add.get("stats")}
