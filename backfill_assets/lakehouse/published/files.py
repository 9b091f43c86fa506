"""Files below a published table: found, checked, sealed and removed, never outside its own folders."""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.core.release import DataFile, StoredFile, shadow_of
from backfill_assets.lakehouse.layout import below
from backfill_assets.lakehouse.published.durable import sync
from backfill_assets.lakehouse.published.log import LOG, SEALED, is_readable

SHADOW = "_shadow"
_MAGIC = b"PAR1"
_PLAIN = re.compile(r"[A-Za-z0-9_=.+-]+(/[A-Za-z0-9_=.+-]+)*")
_FOLDER = re.compile(r"_shadow/[A-Za-z0-9_.-]+/[0-9]+")


def plain_path(path: str) -> str:
    """Return a path that a Delta log writes without escapes and that leads downwards only.

    Raises:
        PreconditionError: the path is absolute, has `..`, or needs escapes.
    """
    if not _PLAIN.fullmatch(path) or ".." in path.split("/") or "." in path.split("/"):
        raise PreconditionError(
            f"file {path!r}: expected a plain relative path below the published table; build its day again"
        )
    return path


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


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, and durably.

    Raises:
        StorageError: the disk is full, or nobody may write there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); make room there or let this user write, "
            "and repeat the command: it goes on where this one ended"
        ) from error


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
