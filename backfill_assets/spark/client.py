"""Talk to a Spark Connect server below the level of a session: ask whether it is ready, take a session, release it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import uuid
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, cast

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto import (
    AnalyzePlanRequest,
    ConfigRequest,
    KeyValue,
    ReleaseSessionRequest,
    SparkConnectServiceStub,
    UserContext,
)

from backfill_assets.core.errors import ServerLostError
from backfill_assets.spark.registration import Endpoint

_USER: Final = "backfill_assets"
_RPC_SECONDS: Final = 30
_REFUSALS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Answer(Enum):
    """What a server said when asked for a session."""

    READY = "ready"
    REFUSED = "refused"
    SILENT = "silent"


def set_settings(client: Any, conf: Mapping[str, str]) -> None:
    """Set Spark settings of a session through its client in one call, instead of one call each."""
    pairs = [KeyValue(key=name, value=value) for name, value in conf.items()]
    client.config(ConfigRequest.Operation(set=ConfigRequest.Set(pairs=pairs)))


def settings_of(client: Any, prefix: str) -> dict[str, str]:
    """The Spark settings of a session below a prefix that somebody has set: the server's configuration, or the session."""
    answer = client.config(ConfigRequest.Operation(get_all=ConfigRequest.GetAll(prefix=prefix)))
    return {f"{prefix}{name.removeprefix(prefix)}": value for name, value in answer.pairs}


def channel_builder(endpoint: Endpoint, session_id: str) -> DefaultChannelBuilder:
    """Prepare a separate connection to `endpoint` for the session `session_id` (a UUID)."""
    _kept_open()
    # A server on this machine is never reached through a proxy.
    options = [("grpc.enable_http_proxy", 0)] if endpoint.embedded else None
    builder = DefaultChannelBuilder(endpoint.full_url, options)
    builder.set("session_id", session_id)
    # Part of a session's identity on the server: $USER would differ between shell and daemon.
    if builder.userId is None:
        builder.set("user_id", _USER)
    if endpoint.token is not None:
        builder.set("token", endpoint.token)
    return builder


def ask(endpoint: Endpoint, seconds: float = 5) -> Answer:
    """Say whether the server takes an authenticated session; waits at most `seconds`."""
    if endpoint.embedded and not _listens(endpoint.port):
        return Answer.SILENT
    session_id = str(uuid.uuid4())  # noqa: TID251  # an id of Spark's protocol, for this call only
    with _calls(endpoint, session_id) as (stub, user, metadata):
        request = AnalyzePlanRequest(
            session_id=session_id, user_context=user, spark_version=AnalyzePlanRequest.SparkVersion()
        )
        try:
            stub.AnalyzePlan(request, timeout=seconds, metadata=metadata)
        except grpc.RpcError as error:
            return _answer(error)
    with contextlib.suppress(ServerLostError):  # an empty session costs the server nothing until it expires
        release_session(endpoint, session_id)
    return Answer.READY


def take_session(endpoint: Endpoint, key: str) -> str:
    """End every session that an older attempt holds under `key`, with all its work; return the id of a new one.

    A session that is ended this way can never be opened again: the server refuses every further
    request of an older attempt that is still alive. Raises `ServerLostError` if the server does not
    answer or refuses the token.
    """
    # The ids are derived from the key, so that a new attempt finds the sessions of a killed one.
    for generation in itertools.count():
        session_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"backfill_assets:{key}:{generation}"))
        release_session(endpoint, session_id, for_good=True)
        try:
            _ask_session(endpoint, session_id)
        except grpc.RpcError as error:
            if "SESSION_CLOSED" not in str(error):
                raise _lost(endpoint, error) from error
        else:
            return session_id
    raise AssertionError("unreachable: there is always a next generation")


def remind(endpoint: Endpoint, session_id: str) -> None:
    """Let the server know that a session is in use; whoever uses it next learns if it is gone."""
    with contextlib.suppress(grpc.RpcError):
        _ask_session(endpoint, session_id)


def _ask_session(endpoint: Endpoint, session_id: str) -> None:
    with _calls(endpoint, session_id) as (stub, user, metadata):
        request = ConfigRequest(session_id=session_id, user_context=user)
        request.operation.get.keys.append("spark.sql.session.timeZone")
        stub.Config(request, timeout=_RPC_SECONDS, metadata=metadata)


def release_session(endpoint: Endpoint, session_id: str, *, for_good: bool = False) -> None:
    """End a session and interrupt its work; does nothing if there is none.

    Its id may be opened again unless `for_good`. Raises `ServerLostError` if the server does not answer.
    """
    with _calls(endpoint, session_id) as (stub, user, metadata):
        request = ReleaseSessionRequest(session_id=session_id, user_context=user, allow_reconnect=not for_good)
        try:
            stub.ReleaseSession(request, timeout=_RPC_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            raise _lost(endpoint, error) from error


@contextlib.contextmanager
def _calls(endpoint: Endpoint, session_id: str) -> Iterator[tuple[Any, UserContext, list[tuple[str, str]]]]:
    builder = channel_builder(endpoint, session_id)
    channel = builder.toChannel()
    try:
        stub: Any = SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]
        yield stub, UserContext(user_id=str(builder.userId)), list(builder.metadata())
    finally:
        channel.close()


def _answer(error: grpc.RpcError) -> Answer:
    # Every error of a call is also a grpc.Call, but its type does not say so.
    return Answer.REFUSED if cast("grpc.Call", error).code() in _REFUSALS else Answer.SILENT


def _lost(endpoint: Endpoint, error: grpc.RpcError) -> ServerLostError:
    if _answer(error) is Answer.REFUSED:
        return ServerLostError(
            f"The Spark server at {endpoint.url} refuses our token. Check the one in "
            "BACKFILL_ASSETS_SPARK_URL (;token=) or in SPARK_CONNECT_AUTHENTICATE_TOKEN."
        )
    detail = cast("grpc.Call", error).details()
    return ServerLostError(f"The Spark server at {endpoint.url} gave no session: {str(detail)[:500]}")


@functools.cache
def _kept_open() -> grpc.Channel:
    """A channel that is never used and never closed.

    Closing the last channel of a process ends gRPC's threads while it holds Python's lock. If another thread releases a
    token's credentials at that moment, it waits for that lock, and the process hangs forever with all that it holds. Seen
    once in some 5,000 calls, and reported as https://github.com/grpc/grpc/pull/42247.
    """
    return grpc.insecure_channel("127.0.0.1:1")


def _listens(port: int | None) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return port is not None and probe.connect_ex(("127.0.0.1", port)) == 0
