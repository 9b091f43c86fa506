"""How a session handles a server's errors: a real session, over a gRPC server of this process in place of Spark."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.proto import (
    AnalyzePlanResponse,
    ConfigResponse,
    InterruptResponse,
    KeyValue,
    ReleaseSessionResponse,
    SparkConnectServiceServicer,
)
from pyspark.sql.connect.proto.base_pb2_grpc import add_SparkConnectServiceServicer_to_server

from backfill_assets.core.errors import ServerLostError, SessionTakenOverError, StorageError
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import ProcessRef, Registration
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session

_CODES = grpc.StatusCode


class _Spark(SparkConnectServiceServicer):
    """Opens sessions and answers questions about settings, with an error once it has one."""

    def __init__(self) -> None:
        self.start = "the first start"
        self.error: tuple[grpc.StatusCode, str] | None = None

    def Config(self, request: Any, context: grpc.ServicerContext) -> ConfigResponse:  # noqa: N802  # Spark's name
        if self.error is not None:
            context.abort(*self.error)
        return ConfigResponse(
            session_id=request.session_id,
            server_side_session_id=self.start,
            # Nobody has set anything below the prefix that is asked for.
            pairs=[]
            if request.operation.HasField("get_all")
            else [KeyValue(key="spark.sql.session.timeZone", value="UTC")],
        )

    def AnalyzePlan(self, request: Any, _: grpc.ServicerContext) -> AnalyzePlanResponse:  # noqa: N802
        return AnalyzePlanResponse(session_id=request.session_id)

    def Interrupt(self, request: Any, _: grpc.ServicerContext) -> InterruptResponse:  # noqa: N802
        return InterruptResponse(session_id=request.session_id)

    def ReleaseSession(self, request: Any, _: grpc.ServicerContext) -> ReleaseSessionResponse:  # noqa: N802
        return ReleaseSessionResponse(session_id=request.session_id)


@pytest.fixture
def spark() -> _Spark:
    return _Spark()


@pytest.fixture
def port(spark: _Spark) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(4))
    add_SparkConnectServiceServicer_to_server(spark, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield port
    server.stop(None).wait()


@pytest.fixture
def remote(port: int, tmp_path: Path) -> Settings:
    """Another user runs the server."""
    return Settings.from_env(
        {"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_SPARK_URL": f"sc://localhost:{port}"}
    )


@pytest.fixture
def embedded(port: int, tmp_path: Path) -> Iterator[Settings]:
    """The server is registered as the warehouse's own, with a process in place of it and its watcher."""
    settings = Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path)})
    folder = SparkServer(settings).folder
    folder.root.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        own = ProcessRef.of(process.pid)
        folder.write(
            Registration(
                host=socket.gethostname(), server=own, watcher=own, port=port, token="hunter2", configuration={}
            )
        )
        yield settings
        process.kill()


def _use(session: SparkSession) -> None:
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"


def _break(settings: Settings, spark: _Spark, code: grpc.StatusCode, message: str) -> None:
    """Use a session, and use it again when the server answers with an error."""
    with open_session(settings, "step-7") as session:
        _use(session)
        spark.error = code, message
        _use(session)


def test_a_session_that_another_server_answers_names_the_new_start(spark: _Spark, remote: Settings) -> None:
    def use_twice() -> None:
        with open_session(remote, "step-7") as session:
            _use(session)
            spark.start = "the second start"
            _use(session)

    with pytest.raises(ServerLostError, match=r"sc://localhost:\d+ was started again while step-7.*backfill resume"):
        use_twice()


def test_the_new_start_is_named_even_if_the_work_has_swallowed_the_first_error(spark: _Spark, remote: Settings) -> None:
    def use_on() -> None:
        with open_session(remote, "step-7") as session:
            _use(session)
            spark.start = "the second start"
            with contextlib.suppress(Exception):
                _use(session)
            _use(session)

    with pytest.raises(ServerLostError, match="was started again while step-7") as lost:
        use_on()
    assert "NO_ACTIVE_SESSION" in str(lost.value.__cause__)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (_CODES.INTERNAL, "[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted."),
        (_CODES.INTERNAL, "[INVALID_HANDLE.SESSION_NOT_FOUND] The handle is invalid. Session not found."),
        (
            _CODES.INTERNAL,
            "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.OPERATION_NOT_FOUND on the server but responses were",
        ),
        (_CODES.UNAUTHENTICATED, "Invalid authentication token"),
    ],
    ids=["changed", "forgotten", "in mid-result", "token"],
)
def test_a_server_that_has_forgotten_the_session_or_its_token_was_started_again(
    spark: _Spark, embedded: Settings, code: grpc.StatusCode, message: str
) -> None:
    with pytest.raises(ServerLostError, match=r"started again while step-7 used it, or its token was.*backfill resume"):
        _break(embedded, spark, code, message)


def test_a_session_that_a_newer_attempt_has_ended_leaves_the_work_to_it(spark: _Spark, remote: Settings) -> None:
    with pytest.raises(SessionTakenOverError, match=r"step-7 was ended by a newer attempt.*or start it again"):
        _break(remote, spark, _CODES.INTERNAL, "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.")


_GONE = (
    "Cannot call methods on a stopped SparkContext.",
    "Job 3 cancelled because SparkContext was shut down",
    "SparkContext has been shutdown",
)


@pytest.mark.parametrize("message", _GONE, ids=["stopped", "was", "has been"])
def test_a_server_of_ones_own_that_went_away_may_have_too_little_memory(
    spark: _Spark, embedded: Settings, message: str
) -> None:
    remedy = r"went away while step-7.*backfill resume.*BACKFILL_ASSETS_SPARK_MEMORY.*server\.log"
    with pytest.raises(ServerLostError, match=remedy):
        _break(embedded, spark, _CODES.INTERNAL, message)


def test_a_remote_server_that_went_away_has_to_be_started_by_its_owner(spark: _Spark, remote: Settings) -> None:
    remedy = r"went away while step-7.*backfill resume.*does not start by itself \(BACKFILL_ASSETS_SPARK_URL\)"
    with pytest.raises(ServerLostError, match=remedy) as lost:
        _break(remote, spark, _CODES.INTERNAL, _GONE[0])
    assert "SPARK_MEMORY" not in str(lost.value)


def test_a_full_disk_is_named_with_the_work(spark: _Spark, remote: Settings) -> None:
    with pytest.raises(StorageError, match=r"^step-7: Spark cannot write \(No space left on device\)"):
        _break(remote, spark, _CODES.INTERNAL, "java.io.IOException: No space left on device")


def test_any_other_error_arrives_as_it_is(spark: _Spark, embedded: Settings) -> None:
    with pytest.raises(PySparkException, match="no such function"):
        _break(embedded, spark, _CODES.INTERNAL, "no such function")
