"""Files read, hashed, and written whole, durable or private."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backfill_assets.core.errors import SourceError, StorageError
from backfill_assets.core.text import visible

Sync = Callable[[Path], None]
"""Brings a file or folder to the disk; a power cut after it has returned leaves it whole."""


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk; raises OSError if the disk refuses."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user may read, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def read_from(shown: str) -> Iterator[None]:
    """Turn errors of the file system about a file, `shown` to people, into ours: it may vanish after it was listed.

    Raises:
        SourceError: the file is gone, or cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{visible(shown)}: it cannot be read, or not any more ({error.strerror or error}); see that its folders may be read "
            "and it is delivered whole, under another name until then, and launch again"
        ) from error
