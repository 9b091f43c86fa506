"""Sessions that leave nothing running on the server, and Spark's errors as the project's own."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Final, NoReturn, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.proto import ExecutePlanRequest
from pyspark.sql.connect.session import SparkSession as ConnectSession

from backfill_assets.campaign.execution import PINNED
from backfill_assets.core.errors import (
    EngineError,
    QueryTimeoutError,
    ServerLostError,
    SessionTakenOverError,
)
from backfill_assets.core.text import format_duration
from backfill_assets.settings import Settings
from backfill_assets.spark.client import (
    channel_builder,
    release_session,
    remind,
    set_settings,
    settings_of,
    take_session,
)
from backfill_assets.spark.driver import room_for, stopped
from backfill_assets.spark.registration import Endpoint
from backfill_assets.spark.server import SparkServer

_TICK_SECONDS: Final = 1.0
_REMIND_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 15.0
_TAKEN_OVER: Final = "INVALID_HANDLE.SESSION_CLOSED"
_STARTED_AGAIN: Final = (
    "INVALID_HANDLE.SESSION_CHANGED",
    "INVALID_HANDLE.SESSION_NOT_FOUND",
    "[RESPONSE_ALREADY_RECEIVED]",  # in the middle of a result, the server no longer knows who it is for
    "Received incorrect server side session identifier",
    "[NO_ACTIVE_SESSION]",  # Spark's client closes itself when another session answers
    "StatusCode.UNAUTHENTICATED",  # the embedded server has a new token after each start
)
_WENT_AWAY: Final = (
    "statuscode.unavailable",
    "failed to connect",
    # A server that is stopped, not killed, still answers for a moment.
    "stopped sparkcontext",
    "sparkcontext was shut down",
    "sparkcontext has been shutdown",
)
_LOST_WORKERS: Final = ("executorlostfailure", "fetchfailedexception")
_GO_ON: Final = "Passed days stay; start the rest again, a unit or a campaign with backfill resume."


@contextlib.contextmanager
def open_session(
    settings: Settings, tag: str, conf: Mapping[str, str] | None = None, say: Callable[[str], object] = lambda _: None
) -> Iterator[SparkSession]:
    """Open a separate session on the server, and start the embedded one if needed; the session ends with the block.

    `conf` are Spark settings of this session only; the settings in `PINNED`, which decide the resulting rows, override it.
    `say` is called if the server has to be started.

    `tag` names the work (run and step): work that an older attempt with the same tag left running is
    interrupted first, and that attempt can do nothing more. If the block ends with any exception,
    including a cancelled Dagster run, all Spark work of the session is interrupted.

    Raises `EngineError`: what `SparkServer.ensure` raises; one that names settings of the server that would decide
    rows, too; `QueryTimeoutError` at the end of the
    block if an operation in it ran longer than `settings.query_timeout`; `SessionTakenOverError`
    if a newer attempt took over; `ServerLostError` if the server went away or was replaced by another one.
    Raises `StorageError` if the disk is full and no more specific error says so.
    """
    server = SparkServer(settings)
    endpoint = server.ensure(say)
    operations = _Operations(_checked(tag))
    session = _connect(endpoint, tag, operations)
    keeper = _Keeper(
        session, operations, settings.query_timeout,
        lambda: server.keep_busy(endpoint), lambda: remind(endpoint, session.session_id),
    )  # fmt: skip
    failed = True
    try:
        keeper.start()
        _set(session, {**(conf or {}), **PINNED})
        _require_no_other_rows(session, endpoint)
        yield cast("SparkSession", session)
        failed = False
    except BaseException as error:
        stopped(cast("SparkSession", session), error)
        if isinstance(error, Exception):
            _raise_named(error, endpoint, tag, keeper)
        raise
    finally:
        keeper.stop()
        # Calls still on their way when the block ends must not open the session again and work without a client.
        _close(endpoint, session, for_good=failed)


class _Operations(ConnectSession.Hook):
    """The operations that a session has started, with their start times; a hook of Spark's client."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._started: dict[str, float] = {}
        self._lock = threading.Lock()

    def on_execute_plan(self, request: ExecutePlanRequest) -> ExecutePlanRequest:
        # Spark's own tags belong to one thread; operations in a step's other threads need the tag as well.
        if self._tag not in request.tags:
            request.tags.append(self._tag)
        if not request.operation_id:
            request.operation_id = str(uuid.uuid4())  # noqa: TID251  # an id of Spark's protocol
        with self._lock:
            self._started[request.operation_id] = time.monotonic()
        return request

    def older_than(self, seconds: float) -> list[str]:
        limit = time.monotonic() - seconds
        with self._lock:
            return [operation for operation, started in self._started.items() if started < limit]

    def forget(self, operation: str) -> None:
        with self._lock:
            self._started.pop(operation, None)


class _Keeper(threading.Thread):
    """Keeps the server and an open session alive, and interrupts operations that run too long."""

    def __init__(
        self,
        session: ConnectSession,
        operations: _Operations,
        timeout: timedelta,
        keep_busy: Callable[[], None],
        remind: Callable[[], None],
    ) -> None:
        super().__init__(name=f"spark-session-{session.session_id}", daemon=True)
        self._session = session
        self._operations = operations
        self._keep_busy = keep_busy
        self._remind = remind
        self._ended = threading.Event()
        self.timeout = timeout
        self._timed_out = False
        self._interrupting = threading.Lock()

    def run(self) -> None:
        reminded = time.monotonic()
        while not self._ended.wait(_TICK_SECONDS):
            if time.monotonic() - reminded > _REMIND_SECONDS:
                # A server forgets a session that does nothing for an hour, and a batch may wait longer for another driver.
                reminded = time.monotonic()
                self._remind()
            with contextlib.suppress(OSError):  # a full disk must not stop the check of the operations
                self._keep_busy()
            for operation in self._operations.older_than(self.timeout.total_seconds()):
                self._interrupt(operation)

    def stop(self) -> None:
        self._ended.set()

    @property
    def timed_out(self) -> bool:
        """Whether an operation was interrupted; waits for an interrupt in progress: the operation may fail before it returns."""
        with self._interrupting:
            return self._timed_out

    def _interrupt(self, operation: str) -> None:
        # The server names what it interrupted; an empty answer means that the operation had already ended.
        with self._interrupting, contextlib.suppress(Exception):
            if self._session.interruptOperation(operation):
                self._timed_out = True
            else:
                self._operations.forget(operation)


def _checked(tag: str) -> str:
    if not tag or "," in tag:
        raise EngineError(f"The tag {tag!r} cannot mark Spark operations; use a name without commas.")
    return tag


def _connect(endpoint: Endpoint, tag: str, operations: _Operations) -> ConnectSession:
    # `pyspark.sql.functions` reads from this variable whether it is used with Spark Connect; Spark's builder sets it
    # as well, but would also make the session the default of the process, shared by all threads.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    builder = channel_builder(endpoint, take_session(endpoint, tag))
    session = ConnectSession(connection=builder, hook_factories=[lambda _: operations])
    if endpoint.embedded:
        # The default of ten minutes of retries is for networks; a local server that does not answer is gone.
        session.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=4000)])
    return session


def _set(session: ConnectSession, conf: Mapping[str, str]) -> None:
    try:
        set_settings(session.client, conf)
    except PySparkException as error:
        if "CONFIG" not in str(error.getCondition()):
            raise
        raise EngineError(
            f"The Spark server refuses a setting that every session needs: {error}. Ask the server's administrator to allow it"
        ) from error


def _require_no_other_rows(session: ConnectSession, endpoint: Endpoint) -> None:
    """Refuse a server that brings Spark's earlier behaviour back: the same models would build other rows on it."""
    legacy = settings_of(session.client, "spark.sql.legacy.")
    if other := {name: value for name, value in legacy.items() if PINNED.get(name) != value}:
        listed = ", ".join(f"{name}={value}" for name, value in sorted(other.items()))
        raise EngineError(
            f"The Spark server at {endpoint.url} sets {listed}: with it, models may build other rows than on another server. "
            "Remove that from the server's configuration (spark-defaults.conf, or --conf), and start it again."
        )


def _close(endpoint: Endpoint, session: ConnectSession, *, for_good: bool) -> None:
    # Otherwise the client stays in memory until the process ends, which for a daemon can take weeks.
    atexit.unregister(session.client._on_exit)  # noqa: SLF001
    # A server that hangs must not block a process that has finished its work; the server forgets the session by itself.
    closing = threading.Thread(
        target=_release,
        args=(endpoint, session),
        kwargs={"for_good": for_good},
        name=f"spark-close-{session.session_id}",
        daemon=True,
    )
    closing.start()
    closing.join(_CLOSE_SECONDS)


def _release(endpoint: Endpoint, session: ConnectSession, *, for_good: bool) -> None:
    # In this order: Spark's client first reports to the server, in the background, which results it has read.
    session.client.close()
    with contextlib.suppress(ServerLostError):  # then the session is gone as well
        release_session(endpoint, session.session_id, for_good=for_good)


def _raise_named(error: Exception, endpoint: Endpoint, tag: str, keeper: _Keeper) -> NoReturn:
    if keeper.timed_out:
        raise QueryTimeoutError(
            f"A Spark operation of {tag} ran longer than {format_duration(keeper.timeout)} and was "
            "interrupted. Set BACKFILL_ASSETS_QUERY_TIMEOUT to more, or give the run fewer days."
        ) from error
    text = str(error)
    if _TAKEN_OVER in text:
        raise SessionTakenOverError(
            f"The Spark session of {tag} was ended by a newer attempt, or by the server after an hour "
            "without work. Its unfinished work does not count; leave the work to the newer attempt, "
            "or start it again."
        ) from error
    if any(mark in text for mark in _STARTED_AGAIN):
        raise ServerLostError(
            f"The Spark server at {endpoint.url} was started again while {tag} used it, or its token was changed: "
            f"unfinished work of this session does not count. {_GO_ON}"
        ) from error
    if any(mark in text.lower() for mark in _WENT_AWAY):
        raise ServerLostError(
            f"The Spark server at {endpoint.url} went away while {tag} used it. {_GO_ON} {_remedy(endpoint)}"
        ) from error
    if any(mark in text.lower() for mark in _LOST_WORKERS):
        raise ServerLostError(
            f"The Spark server at {endpoint.url} lost workers while {tag} used it, more often than it tries again. {_GO_ON} "
            "If they ran out of memory, give them more, or the run fewer days."
        ) from error
    with room_for(tag):
        raise error


def _remedy(endpoint: Endpoint) -> str:
    if not endpoint.embedded:
        return "First check that server, which does not start by itself (BACKFILL_ASSETS_SPARK_URL)."
    return (
        "A new server starts by itself. If this one ran out of memory, raise BACKFILL_ASSETS_SPARK_MEMORY; its log is "
        "server.log (or server.log.1) in the folder of the server (BACKFILL_ASSETS_SPARK_FOLDER)."
    )
