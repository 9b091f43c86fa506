"""Reading files that people wrote: regular ones, of a page or a few, in UTF-8; everything else is refused unread."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import DatasetError

MAX_BYTES: Final = 1024 * 1024


def content_of(file: Path, most: int = MAX_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        DatasetError: it cannot be read, is a pipe or a device, or has more than `most` bytes; `args` are the message and
            no line.
    """
    try:
        # A pipe that nobody writes to would be waited for, and a device may never end.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:  # noqa: PTH123  # the descriptor tells what was opened; the path may have changed
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DatasetError("this is no regular file; name one", None)
            content = opened.read(most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DatasetError(
            f"the file cannot be read: {reason}; name one that is there and may be read", None
        ) from error
    if len(content) > most:
        raise DatasetError(
            f"the file is larger than {most // 1024} KiB; such a file is some pages long: take out what is not needed",
            None,
        )
    return content


def decoded(content: bytes) -> str:
    """The text of a file.

    Raises:
        DatasetError: it is no UTF-8; `args` are the message and the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"byte {error.start} is no UTF-8; save the file as UTF-8", line) from error
