"""Makes files of shadows and logs durable, sets them aside, checks and deletes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from urllib.parse import unquote

from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.core.release import SHADOW, DataFile
from backfill_assets.delta.opening import LOG, actions, commit_name, commits, commits_among, newest_commit
from backfill_assets.delta.reading import plain_path, shadow_log_folder
from backfill_assets.storage.location import Location, Sync, move_into, parents_up_to, remove_all, sync

_CHECKPOINTS = "[0-9]*.checkpoint*"
_LAST_CHECKPOINT = "_last_checkpoint"


@contextmanager
def _confirmed(place: Location) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(
            f"{error.filename} is gone, although it was just written for {place}; find out what deletes files there, "
            "or which worker of Spark has another folder under this path, and repeat the command: only files on the disk count"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{place}: the disk does not confirm what was written ({error.strerror or error}); check the disk, and "
            "repeat the command: unconfirmed files do not count"
        ) from error


def sync_shadow(root: Location, folder: str, files: Iterable[str], bring: Sync) -> None:
    """Sync a shadow's log and data files to the disk, with all their folders: engines do not do that.

    Raises:
        StorageError: the disk does not confirm them.
    """
    shadow = root / folder
    log = shadow_log_folder(shadow)
    with _confirmed(shadow):
        _bring_with_folders(
            shadow, [*(root / file for file in files), *([path for _, path in commits(log)] if log else [])], bring
        )


def sync_commits(root: Location, above: int, bring: Sync) -> None:
    """Sync the commits and checkpoints after version `above` to the disk: delta-rs only hands them to the system.

    Raises:
        StorageError: the disk does not confirm them.
    """
    with _confirmed(root / LOG):
        for path in _log_files(root / LOG, above):
            bring(path)
        bring(root / LOG)


def keep(root: Location, files: Iterable[str], bring: Sync = sync) -> None:
    """Sync data files of a table and its complete log to the disk, with all their folders.

    The complete log, because the writer of an earlier commit may have died before its sync, and a log must have no gap.

    Raises:
        StorageError: the disk does not confirm them, or a file lies elsewhere.
    """

    def bring_if_there(path: Location) -> None:
        # Another commit may have removed a file again, and engines clean up old commits.
        with suppress(FileNotFoundError):
            bring(path)

    data = [root / unquote(file) for file in files]
    for path in data:
        _require_below(path, root)
    with _confirmed(root):
        _bring_with_folders(root, [*data, *_log_files(root / LOG, -1)], bring_if_there)


def _require_below(path: Location, root: Location) -> None:
    try:
        path.relative_to(root)
    except ValueError as error:
        raise StorageError(
            f"{root}: its log names a file of another folder ({path}), as no commit of this project does; end the other writer, "
            "and see: backfill doctor"
        ) from error


@contextmanager
def kept(root: Location, bring: Sync = sync) -> Iterator[None]:
    """Sync to the disk what the block commits to a table, with all folders; engines do not do that.

    Raises:
        StorageError: the disk does not confirm it, or a commit names a file that lies elsewhere.
    """
    above = newest_commit(root)
    yield
    new = [path for version, path in commits(root / LOG) if version > above]
    if new:
        keep(root, [add["path"] for commit in new for add in actions(commit, "add")], bring)


def _log_files(log: Location, above: int) -> Iterator[Location]:
    """The commits after a version, then their checkpoints and the pointer to the newest one."""
    entries = list(log.listed())
    yield from (path for version, path in commits_among(entries) if version > above)
    checkpoints = sorted(path for path in entries if fnmatchcase(path.name, _CHECKPOINTS))
    yield from (path for path in checkpoints if int(path.name.partition(".")[0]) > above)
    yield from (path for path in entries if path.name == _LAST_CHECKPOINT)


def _bring_with_folders(root: Location, paths: Sequence[Location], bring: Sync) -> None:
    """Sync files below `root` to the disk, then their folders, and the two above `root`, which may be new too."""
    for path in paths:
        bring(path)
    inner = {folder for path in paths for folder in parents_up_to(path, root)}
    for folder in sorted(inner | ({root.parent, root.parent.parent} if paths else set())):
        bring(folder)


def set_aside(folder: Location, version: int, aside: Location, bring: Sync) -> None:
    """Move a commit out of the log in `folder`, with its checksums and its checkpoint, into `aside`.

    Skips files that are already gone. Moves the commit last: while it is there, a later run can complete the move.
    """
    set_aside_checkpoint(folder, version, aside, bring)
    name = f"{version:020}"
    # A remaining checksum would make Spark refuse the next commit of this version.
    names = (f"{name}.crc", f".{name}.crc.crc", f".{name}.json.crc", f"{name}.json")
    move_into(aside, [folder / file for file in names], bring)


def set_aside_checkpoint(folder: Location, version: int, aside: Location, bring: Sync) -> None:
    """Move the checkpoint of a version out of the log in `folder` into `aside`, with the pointer to the newest one."""
    if found := checkpoint_files(folder, version):
        # The pointer first: without it, readers search for the newest checkpoint.
        move_into(aside, [folder / _LAST_CHECKPOINT, *found], bring)


def checkpoint_files(folder: Location, version: int) -> tuple[Location, ...]:
    """The checkpoint files of a version in a log folder."""
    return tuple(sorted(folder.fitting(f"{version:020}.checkpoint*")))


def set_aside_torn(root: Location, aside: Location, bring: Sync) -> bool:
    """Move the newest commit of a table into `aside` if it is incomplete; returns whether it was.

    Only a complete commit counts, so moving an incomplete one loses nothing.
    """
    found = commits(root / LOG)
    if not found or not _torn(found[-1][1]):
        return False
    set_aside(root / LOG, found[-1][0], aside, bring)
    return True


def _torn(commit: Location) -> bool:
    try:
        actions = [json.loads(line) for line in commit.text().split("\n") if line.strip()]
    except ValueError:
        return True
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    # Other writers may name a release of their own, and only ours has a manifest, too.
    releases = {info["release"] for info in infos if info.get("release") and info.get("manifest")}
    # The transaction is the last line of a release: without it, file actions may be missing too.
    return not actions or not releases <= {action["txn"]["appId"] for action in actions if "txn" in action}


_PARQUET = b"PAR1"
"""Parquet files begin and end with this."""
_FOLDER = re.compile(r"_shadow/[A-Za-z0-9_.-]+/[0-9]+")


def shadow_folder(folder: str) -> str:
    """Return the name of a shadow's folder, `_shadow/<unit>/<attempt>`.

    Raises:
        PreconditionError: it has another form.
    """
    if not _FOLDER.fullmatch(folder) or ".." in folder.split("/"):
        raise PreconditionError(f"{folder!r} is not a shadow; expected _shadow/<unit>/<attempt number>")
    return folder


def missing(root: Location, files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """The files that do not exist below `root` as regular Parquet files of their size; a link counts as missing."""
    wanted = tuple(files)
    gone = lost(root, {f.path: f.size for f in wanted})
    return tuple(f for f in wanted if f.path in gone)


def lost(root: Location, sizes: Mapping[str, int]) -> frozenset[str]:
    """The same for paths, each with the size in bytes that its file should have.

    Raises:
        PreconditionError: a path is not a plain one below `root`.
    """
    return root.altered({plain_path(path): size for path, size in sizes.items()}, _PARQUET)


def delete(root: Location, paths: Iterable[str]) -> None:
    """Delete files below `_shadow/` of a table; see `PublishedTable.delete`."""
    files = [_deletable(root, path) for path in sorted(paths)]
    logs = {file.parent for file in files if file.parent.name == LOG}
    # Spark creates folders in a log that always stay empty.
    folders = {path for log in logs for path in log.fitting("*")}
    top = root / SHADOW
    folders |= {folder for file in files for folder in parents_up_to(file, top) if folder != top}
    # The logs go first, and of each its first commit: a half-deleted folder must not look like a table.
    ranks = {file: 2 if file.parent not in logs else int(file.name != commit_name(0)) for file in files}
    for turn in range(3):
        remove_all(root, [file for file in files if ranks[file] == turn])
    remove_all(root, (), folders)


def _deletable(root: Location, path: str) -> Location:
    parts = path.split("/")
    if len(parts) < 2 or parts[0] != SHADOW or {"", ".", ".."} & set(parts):  # noqa: PLR2004  # a file in it
        raise PreconditionError(f"{path!r} is not a file below {SHADOW}/; only such files may be deleted")
    if root.below(path) != root / path:
        raise PreconditionError(f"{path!r} goes through a link; only files below {SHADOW}/ itself may be deleted")
    return root / path
