"""Which remote Spark server works in a warehouse: a note beside its tables, so that no second server starts to work there.

Spark commits to a folder by looking whether the next file of the log exists and then renaming its own into that place; only
within one server are these two one step. Source: `LocalLogStore.java` of Delta's storage module, and docs/storage.md.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from backfill_assets.core.errors import EngineError

FRESH_SECONDS: Final = 120
"""For how long after its last use another server is taken to be at work; sessions renew the note each second."""

_LOCK_SECONDS: Final = 60


def same_server(one: str, other: str) -> bool:
    """Whether two URLs name one server, whatever options of a session they carry."""
    return one.partition("/;")[0] == other.partition("/;")[0]


class RemoteNote:
    """The file `_remote_spark` of a warehouse: the URL of the server that was used last, without secrets."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self.path = warehouse / "_remote_spark"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to look who works here and to begin; raises `EngineError` if it cannot be had."""
        self._warehouse.mkdir(parents=True, exist_ok=True)
        # Several users may share a warehouse, and with it this lock.
        lock = FileLock(self.path.with_suffix(".lock"), timeout=_LOCK_SECONDS, mode=0o666)
        try:
            lock.acquire()
        except Timeout as error:
            raise EngineError(
                f"{lock.lock_file} has been held for {_LOCK_SECONDS} s by a process that asks which Spark server works in "
                "this warehouse; end that process and try again."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def at_work(self) -> str | None:
        """The URL of the remote server that works here or did just now, if one does."""
        try:
            # A note from the future is none of somebody at work: that one would have renewed it since the clock was set back.
            age = abs(time.time() - self.path.stat().st_mtime)
            return self.path.read_text(encoding="utf-8") if age < FRESH_SECONDS else None
        except FileNotFoundError:
            return None

    def write(self, url: str) -> None:
        """Say that the server at `url` works here from now on."""
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(url, encoding="utf-8")
        draft.replace(self.path)

    def renew(self, url: str) -> None:
        """Say that the server at `url` still works here; a note of another server is left alone, and none is begun.

        Raises:
            OSError: there is no note, the folder may not be written to, or the disk is full.
        """
        if not same_server(self.path.read_text(encoding="utf-8"), url):
            return
        try:
            os.utime(self.path)
        except PermissionError:
            # Another user wrote it last, and only its owner may set its time.
            self.write(url)

    def remove(self) -> None:
        """Say that no remote server works here."""
        self.path.unlink(missing_ok=True)
