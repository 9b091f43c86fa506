"""Files of shadows and of logs: made durable, sealed, set aside, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.core.release import DataFile
from backfill_assets.delta.reading import LOG, actions, commits, plain_path, shadow_log_folder
from backfill_assets.storage.files import Sync, altered, fitting, move_into, sync, text_of

_CHECKPOINTS = "[0-9]*.checkpoint*"
_LAST_CHECKPOINT = "_last_checkpoint"


@contextmanager
def _confirmed(place: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(
            f"{error.filename} is gone, although it has just been written for {place}; see who removes files there, and repeat "
            "the command: what is not on the disk does not count"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{place}: the disk does not confirm what was written ({error.strerror or error}); see to the disk, and repeat "
            "the command: what is not confirmed does not count"
        ) from error


def sync_shadow(root: Path, folder: str, files: Iterable[str], bring: Sync) -> None:
    """Bring a shadow's log and data files to the disk, with all folders on the way: no engine does that by itself.

    Raises:
        StorageError: the disk does not confirm them.
    """
    shadow = root / folder
    log = shadow_log_folder(shadow)
    with _confirmed(shadow):
        _bring_with_folders(
            shadow, [*(root / file for file in files), *([path for _, path in commits(log)] if log else [])], bring
        )


def sync_commits(root: Path, above: int, bring: Sync) -> None:
    """Bring the commits and checkpoints after version `above` to the disk: delta-rs only hands them to the system.

    Raises:
        StorageError: the disk does not confirm them.
    """
    with _confirmed(root / LOG):
        for path in _log_files(root / LOG, above):
            bring(path)
        bring(root / LOG)


def keep(root: Path, files: Iterable[str], bring: Sync = sync) -> None:
    """Bring data files of a table and all of its log to the disk, with all folders on the way.

    All of the log, as whoever wrote an earlier commit may have died before it was there, and a log with a gap is none.

    Raises:
        StorageError: the disk does not confirm them.
    """

    def bring_what_is_left(path: Path) -> None:
        # Somebody else's commit may have removed a file again, and engines clean up old commits.
        with suppress(FileNotFoundError):
            bring(path)

    with _confirmed(root):
        found = [*(root / unquote(file) for file in files), *_log_files(root / LOG, -1)]
        _bring_with_folders(root, found, bring_what_is_left)


@contextmanager
def kept(root: Path, bring: Sync = sync) -> Iterator[None]:
    """Bring to the disk what the block commits to a table, with all folders on the way; no engine does that by itself.

    Raises:
        StorageError: the disk does not confirm it.
    """
    above = max((version for version, _ in commits(root / LOG)), default=-1)
    yield
    new = [path for version, path in commits(root / LOG) if version > above]
    if new:
        keep(root, [add["path"] for commit in new for add in actions(commit, "add")], bring)


def _log_files(log: Path, above: int) -> Iterator[Path]:
    """The commits after a version, then their checkpoints and the pointer to the newest one."""
    yield from (path for version, path in commits(log) if version > above)
    yield from (path for path in sorted(fitting(log, _CHECKPOINTS)) if int(path.name.partition(".")[0]) > above)
    yield from fitting(log, _LAST_CHECKPOINT)


def _bring_with_folders(root: Path, paths: Sequence[Path], bring: Sync) -> None:
    """Bring files below `root` to the disk, then the folders on the way, and the two above it that may be new as well."""
    for path in paths:
        bring(path)
    inner = {parent for path in paths for parent in path.parents if parent.is_relative_to(root)}
    for folder in sorted(inner | ({root.parent, root.parent.parent} if paths else set())):
        bring(folder)


def set_aside(folder: Path, version: int, aside: Path, bring: Sync) -> None:
    """Move a commit out of the log in `folder`, with its checksums and its checkpoint, into `aside`.

    What is gone already is fine. The commit goes last: as long as it lies there, whoever comes after one that died goes on
    with it.
    """
    set_aside_checkpoint(folder, version, aside, bring)
    name = f"{version:020}"
    # A checksum that stayed behind would make Spark refuse the next commit of this version.
    names = (f"{name}.crc", f".{name}.crc.crc", f".{name}.json.crc", f"{name}.json")
    move_into(aside, [folder / file for file in names], bring)


def set_aside_checkpoint(folder: Path, version: int, aside: Path, bring: Sync) -> None:
    """Move the checkpoint of a version out of the log in `folder` into `aside`, with the pointer to the newest one."""
    if found := checkpoint_files(folder, version):
        # The pointer first: without one, readers look for the newest checkpoint that there is.
        move_into(aside, [folder / _LAST_CHECKPOINT, *found], bring)


def checkpoint_files(folder: Path, version: int) -> tuple[Path, ...]:
    """The files of the checkpoint of a version in a log's folder."""
    return tuple(sorted(fitting(folder, f"{version:020}.checkpoint*")))


def set_aside_torn(root: Path, aside: Path, bring: Sync) -> bool:
    """Move the newest commit of a table into `aside` if it was cut while it was written; whether it was.

    A commit counts only when all of it is there, so that nothing is lost with one of which a part is missing.
    """
    found = commits(root / LOG)
    if not found or not _torn(found[-1][1]):
        return False
    set_aside(root / LOG, found[-1][0], aside, bring)
    return True


def _torn(commit: Path) -> bool:
    try:
        actions = [json.loads(line) for line in text_of(commit).split("\n") if line.strip()]
    except ValueError:
        return True
    releases = {action["commitInfo"].get("release") for action in actions if "commitInfo" in action} - {None}
    # The transaction stands on the last line of a release: without it, files may be missing before it.
    return not actions or not releases <= {action["txn"]["appId"] for action in actions if "txn" in action}


_PARQUET = b"PAR1"
"""What Parquet files begin and end with."""
_FOLDER = re.compile(r"_shadow/[A-Za-z0-9_.-]+/[0-9]+")


def shadow_folder(folder: str) -> str:
    """Return the name of a shadow's folder, `_shadow/<unit>/<attempt>`.

    Raises:
        PreconditionError: it is anything else.
    """
    if not _FOLDER.fullmatch(folder) or ".." in folder.split("/"):
        raise PreconditionError(f"{folder!r} is no shadow; expected _shadow/<unit>/<attempt number>")
    return folder


def missing(root: Path, files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """The files that are not below `root` as regular Parquet files of their size; a link counts as missing."""
    wanted = tuple(files)
    lost = altered(root, {plain_path(f.path): f.size for f in wanted}, _PARQUET)
    return tuple(f for f in wanted if f.path in lost)
