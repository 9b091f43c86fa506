"""Which driver is behind a session, and what its errors mean; loads nothing of Spark's client, which takes a second."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.core.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

_DATA_PROBLEMS: Final = ("0A", "21", "22", "23", "42", "54", "P0")
"""Classes of SQLSTATE for problems of data and SQL; all others are problems of the engine."""
_NO_ROOM: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The system's messages for a write without room; Spark has them among the causes of its own errors."""
_KEYS: Final = (
    "look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, which may have expired or be missing, and at the "
    "rights of their user; an embedded server has those of its start: backfill spark stop"
)
_STORE: Final[Mapping[str, str]] = {
    "AccessDeniedException": _KEYS,
    "ExpiredToken": _KEYS,
    "NoAwsCredentialsException": _KEYS,
    "UnknownStoreException": "create the bucket, or correct BACKFILL_ASSETS_WAREHOUSE, BACKFILL_ASSETS_SOURCES or AWS_ENDPOINT_URL",
    "AWS": "look at AWS_ENDPOINT_URL and at the store, and repeat the command: what it was writing is there completely or not",
}
"""What Hadoop's client for S3 says after it has tried again by itself, and what helps."""


def is_of_data(error: PySparkException) -> bool:
    """Whether an error comes from data or SQL, not from the engine."""
    return (error.getSqlState() or "").startswith(_DATA_PROBLEMS)


def driver_of(session: SparkSession) -> str:
    """The name of the Spark driver behind a session, unlike that of every other one: a table has one writing driver at a time."""
    # An embedded server's id is only the time of its start, and its address that of every host; its port is random.
    parts = (session.conf.get(f"spark.{name}", "") or "" for name in ("app.id", "driver.host", "driver.port"))
    return " ".join(parts).strip() or cast("ConnectSession", session).session_id


def stopped(session: SparkSession, error: BaseException) -> bool:
    """Interrupt all work of a session that failed with this error, and say whether there was none: a commit may be on its way.

    After Ctrl-C, or in a run that was cancelled, Spark's client has interrupted it already, and the server does not say so.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415  # the session has loaded Spark's client

    cast("ConnectSession", session).client.set_retry_policies([DefaultPolicy(max_retries=2, max_backoff=500)])
    try:
        was_idle = not session.interruptAll()
    except Exception:  # noqa: BLE001 - the caller must see the original error; a server that does not answer may still work
        return False
    return was_idle and isinstance(error, Exception) and "OPERATION_CANCELED" not in str(error)


@contextmanager
def room_for(work: str) -> Iterator[None]:
    """Turn Spark's errors about a full disk, or a store that fails, into a StorageError that begins with the name of the work."""
    try:
        yield
    except PySparkException as error:
        if (said := next((one for one in _STORE if one in str(error)), "")) and "s3a" in str(error):
            found = next(line for line in str(error).splitlines() if said in line).strip()[:300]
            raise StorageError(f"{work}: Spark cannot use the store: {found}; {_STORE[said]}") from None
        full = next((said for said in _NO_ROOM if said in str(error)), None)
        if full is None or is_of_data(error):
            raise
        raise StorageError(
            f"{work}: Spark cannot write ({full}); make room on the disk of the warehouse, and on that of Spark's temporary files "
            "if it is another, and repeat the command: what it was writing is there completely or not at all"
        ) from None
