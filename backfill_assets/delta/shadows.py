"""Files of shadows and of logs: made durable, sealed, set aside, checked, removed."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.core.release import DataFile, StoredFile, shadow_of
from backfill_assets.delta.reading import LOG, SEALED, actions, commits, is_readable, plain_path, shadow_log_folder
from backfill_assets.storage.files import Sync, sync
from backfill_assets.storage.layout import below

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
    yield from (path for path in sorted(log.glob(_CHECKPOINTS)) if int(path.name.partition(".")[0]) > above)
    if (last := log / _LAST_CHECKPOINT).exists():
        yield last


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
    found = [folder / file for file in names if (folder / file).exists()]
    if not found:
        return
    aside.mkdir(parents=True, exist_ok=True)
    for file in found:
        file.replace(_free(aside / file.name))
    bring(aside)
    bring(folder)


def set_aside_checkpoint(folder: Path, version: int, aside: Path, bring: Sync) -> None:
    """Move the checkpoint of a version out of the log in `folder` into `aside`, with the pointer to the newest one."""
    found = sorted(folder.glob(f"{version:020}.checkpoint*"))
    if not found:
        return
    aside.mkdir(parents=True, exist_ok=True)
    # The pointer first: without one, readers look for the newest checkpoint that there is.
    for file in (folder / _LAST_CHECKPOINT, *found):
        if file.exists():
            file.replace(_free(aside / file.name))
    bring(aside)
    bring(folder)


def set_aside_torn(root: Path, aside: Path, bring: Sync) -> bool:
    """Move the newest commit of a table into `aside` if it was cut while it was written; whether it was.

    A commit counts only when all of it is there, so that nothing is lost with one of which a part is missing.
    """
    found = commits(root / LOG)
    if not found or not _torn(found[-1][1]):
        return False
    set_aside(root / LOG, found[-1][0], aside, bring)
    return True


def _free(path: Path) -> Path:
    """The path, or with a number after it where one of the same name was set aside before."""
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def _torn(commit: Path) -> bool:
    try:
        actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").split("\n") if line.strip()]
    except ValueError:
        return True
    releases = {action["commitInfo"].get("release") for action in actions if "commitInfo" in action} - {None}
    # The transaction stands on the last line of a release: without it, files may be missing before it.
    return not actions or not releases <= {action["txn"]["appId"] for action in actions if "txn" in action}


SHADOW = "_shadow"
_MAGIC = b"PAR1"
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
    home = root.resolve()
    linked: dict[str, bool] = {"": False}
    return tuple(
        f
        for f in files
        if _size(home, plain_path(f.path)) != f.size
        or _is_linked(home, f.path, linked)
        or not _is_whole(f"{home}/{f.path}", f.size)
    )


def unreleasable(root: Path, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """The files of shadows that are missing, or of which the shadow's log cannot be read: a release takes from both."""
    lost = set(missing(root, files))
    damaged = {shadow for shadow in {shadow_of(f.path) for f in files} if not is_readable(root / shadow)}
    return tuple(f for f in files if f in lost or shadow_of(f.path) in damaged)


def _is_whole(path: str, size: int) -> bool:
    """Whether a file begins and ends as Parquet does: a disk that lost what it holds can still know its size."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.pread(descriptor, 4, 0) == _MAGIC == os.pread(descriptor, 4, max(size - 4, 0))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_linked(home: Path, path: str, known: dict[str, bool]) -> bool:
    """Whether a folder on the way to a file is a link; each folder is asked once, there are thousands of files."""
    folder = path.rpartition("/")[0]
    if folder not in known:
        known[folder] = os.path.islink(f"{home}/{folder}") or _is_linked(home, folder, known)  # noqa: PTH114 - Path costs more than the look
    return known[folder]


def seal(shadow: Path) -> None:
    """Rename a shadow's log, so that no engine takes the folder for a table; doing it again changes nothing.

    Raises:
        StorageError: the folder may not be written to.
    """
    if (shadow / SEALED).exists():
        return
    try:
        (shadow / LOG).rename(shadow / SEALED)
    except FileNotFoundError:
        # Nothing was written into this shadow, or another process sealed it this very moment.
        return
    except OSError as error:
        raise StorageError(
            f"{shadow / LOG} cannot be renamed ({error.strerror}), which is the last step of its release: readers see it "
            "already; let this user write there, and repeat the command"
        ) from error
    sync(shadow)


def stored(root: Path) -> tuple[StoredFile, ...]:
    """Every regular file under `_shadow/`; links are neither listed nor followed."""
    home = root.resolve()
    return tuple(sorted(_walk(home / SHADOW, home), key=lambda f: f.path)) if (home / SHADOW).is_dir() else ()


def delete(root: Path, paths: Iterable[str]) -> None:
    """Remove files under `_shadow/`, and the folders that this leaves empty; a file that is gone already is fine.

    Raises:
        PreconditionError: a path is not below `_shadow/` of this table or is a link; nothing has been removed then.
    """
    home = root.resolve()
    # The log goes first: a folder that is half removed must not look like a table.
    targets = [_deletable(home, path) for path in sorted(paths, key=lambda p: (f"/{LOG}/" not in p, p))]
    for target in targets:
        target.unlink(missing_ok=True)
    # Spark makes folders in a log that nothing is ever put into.
    empty = {inner for log in {t.parent for t in targets if t.parent.name == LOG} for inner in _folders_in(log)}
    left = {parent for t in targets for parent in _inner_parents(t, home)} | empty
    for folder in sorted(left, key=_depth, reverse=True):
        try:
            folder.rmdir()
        except OSError:
            continue  # not empty, or gone: somebody else's files are none of our business


def _size(home: Path, path: str) -> int:
    try:
        found = os.lstat(f"{home}/{path}")
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _walk(folder: Path, home: Path) -> Iterable[StoredFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), home)
            elif entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                modified = dt.datetime.fromtimestamp(found.st_mtime, dt.UTC)
                yield StoredFile(Path(entry.path).relative_to(home).as_posix(), modified, found.st_size)


def _deletable(home: Path, path: str) -> Path:
    target = home / path
    parts = Path(path).parts
    if len(parts) < 2 or parts[0] != SHADOW or ".." in parts or target.is_symlink():  # noqa: PLR2004  # a file in it
        raise PreconditionError(f"{path!r} is not a file below {SHADOW}/; only such files may be removed")
    if target.parent.exists() and below(home, path) != target:
        raise PreconditionError(f"{path!r} goes through a link; only files below {SHADOW}/ itself may be removed")
    return target


def _inner_parents(target: Path, home: Path) -> Iterable[Path]:
    return (parent for parent in target.parents if parent.is_relative_to(home / SHADOW) and parent != home / SHADOW)


def _folders_in(folder: Path) -> Iterable[Path]:
    return (path for path in folder.glob("*") if path.is_dir() and not path.is_symlink())


def _depth(folder: Path) -> int:
    return len(folder.parts)
