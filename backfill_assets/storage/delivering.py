"""Writes a file into the sources folder as a careful supplier does: complete and on the disk, or not at all."""

from __future__ import annotations

import datetime as dt
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from backfill_assets.core.errors import StorageError
from backfill_assets.storage.disk import OnDisk

_UNFINISHED: Final = ".part"
_HERE: Final = socket.gethostname()[:32]
_LONGEST: Final = dt.timedelta(days=1)
"""No file is written for longer than this."""


@contextmanager
def delivering(path: Path, at: dt.datetime, is_same: Callable[[Path, Path], bool]) -> Iterator[Path]:
    """Yield the path of an unfinished file, which no landing finds; write it within the context.

    Then it replaces the file at `path`, with `at` as its time of last change, unless `is_same(old, new)` says that nothing
    changed. If the writing fails it is removed. What killed processes left in the folder is removed first.

    Raises:
        StorageError: the disk is full, or this user may not write there; `path` is as before.
    """
    part = path.with_name(f".{path.name}~{_HERE}~{os.getpid()}.{threading.get_native_id()}{_UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            tidy(path.parent)
        try:
            yield part
            if path.is_file() and is_same(path, part):
                return
            OnDisk(part).sync()
            os.utime(part, (at.timestamp(), at.timestamp()))
            part.replace(path)
            OnDisk(path.parent).sync()
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}); free space there or let this user write, and launch again"
        ) from error


def left_behind(folder: Path) -> Iterator[Path]:
    """Unfinished files whose writer is dead, or on another host and silent for longer than any writing takes."""
    for left in sorted(folder.glob(f".*~*~*{_UNFINISHED}")):
        host, thread = left.name.split("~")[-2:]
        with suppress(FileNotFoundError, OverflowError, ValueError):  # it is gone, or its name is not one of ours
            is_dead = host == _HERE and not psutil.pid_exists(int(thread.partition(".")[0]))
            if is_dead or time.time() - left.stat().st_mtime > _LONGEST.total_seconds():
                yield left


def tidy(folder: Path) -> None:
    """Remove the files that are `left_behind` in a folder; raises OSError if one cannot be removed."""
    for left in left_behind(folder):
        left.unlink(missing_ok=True)
