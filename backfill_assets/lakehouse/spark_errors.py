"""Which of Spark's errors data and SQL cause, and which a disk that has no room."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException

from backfill_assets.core.errors import StorageError

_MODELS_FAULT: Final = ("0A", "21", "22", "23", "42", "54", "P0")
"""Classes of SQLSTATE that data and SQL cause; all others are the engine's own trouble."""
_NO_ROOM: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What the system says of a write that it has no room for; Spark has it among the causes of an error of its own."""


def is_of_data(error: PySparkException) -> bool:
    """Whether data or SQL are to blame for an error, not the engine."""
    return (error.getSqlState() or "").startswith(_MODELS_FAULT)


@contextmanager
def room_for(work: Path | str) -> Iterator[None]:
    """Turn Spark's errors about a full disk into a StorageError that begins with what Spark was busy with."""
    try:
        yield
    except PySparkException as error:
        full = next((said for said in _NO_ROOM if said in str(error)), None)
        if full is None or is_of_data(error):
            raise
        raise StorageError(
            f"{work}: Spark cannot write ({full}); make room on the disk of the warehouse, and of Spark's temporary files "
            "where that is another, and repeat the command: what it was writing is there whole or not at all"
        ) from None
