"""The server of a warehouse: find it, start it once for all processes, tell about it, stop it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from backfill_assets.domain.errors import EngineError, ForeignServerError
from backfill_assets.lakehouse.engine.client import Answer, ask
from backfill_assets.lakehouse.engine.endpoint import Endpoint
from backfill_assets.lakehouse.engine.launch import start_server, start_watcher, wait_until_ready
from backfill_assets.lakehouse.engine.registration import EngineFolder, Registration
from backfill_assets.settings import Settings


class ServerState(Enum):
    """What can be said about a warehouse's server without starting one."""

    STOPPED = "stopped"
    RUNNING = "running"
    SILENT = "silent"
    ELSEWHERE = "elsewhere"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What `backfill spark status` shows; fields that do not apply to the state are None."""

    state: ServerState
    url: str | None = None
    host: str | None = None
    pid: int | None = None
    started_at: datetime | None = None
    last_used: datetime | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    log: Path | None = None


class SparkServer:
    """The one Spark server of a warehouse and user: embedded, unless `settings.spark_url` names another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = EngineFolder(settings.warehouse)

    def ensure(self) -> Endpoint:
        """Give the endpoint of the running server; starts the embedded one if none runs.

        Many processes may call this at once, exactly one starts a server. Raises `EngineError`:
        `JavaError`, `PortTakenError`, `ForeignServerError` or `ServerStartError`.
        """
        if self._settings.spark_url is not None:
            return Endpoint.remote(self._settings.spark_url)
        with self.folder.locked():
            registration = self._adopted() or self._started()
            self.folder.touch()
        return registration.endpoint

    def status(self) -> ServerStatus:
        """Say what runs; starts nothing, waits for nobody."""
        if self._settings.spark_url is not None:
            return ServerStatus(ServerState.REMOTE, url=Endpoint.remote(self._settings.spark_url).url)
        registration = self.folder.read() if self.folder.root.exists() else None
        if registration is None:
            return ServerStatus(ServerState.STOPPED)
        return ServerStatus(
            state=_state(registration),
            url=registration.endpoint.url,
            host=registration.host,
            pid=registration.server.pid,
            started_at=registration.started_at,
            last_used=self._last_used(),
            configuration=registration.configuration,
            log=self.folder.log,
        )

    def stop(self) -> bool:
        """Stop the embedded server, whoever uses it; False if none ran.

        Raises `EngineError` for a server that is not ours to stop.
        """
        if self._settings.spark_url is not None:
            raise EngineError(
                "BACKFILL_ASSETS_SPARK_URL names a server that somebody else runs; unset it to stop the embedded one."
            )
        with self.folder.locked():
            registration = self._own()
            if registration is None:
                return False
            ran = registration.server.find() is not None
            self._end(registration)
            return ran

    def _own(self) -> Registration | None:
        registration = self.folder.read()
        if registration is not None and registration.host != socket.gethostname():
            raise ForeignServerError(
                f"The Spark server of this warehouse is registered by the host {registration.host} "
                f"(process {registration.server.pid}, since {registration.started_at:%Y-%m-%d %H:%M} UTC), "
                f"this host is {socket.gethostname()}. Two servers on one warehouse lose commits: stop it "
                "there with `backfill spark stop`, or set BACKFILL_ASSETS_SPARK_URL to one server for both. "
                f"If that host is gone for good, delete {self.folder.registration}."
            )
        return registration

    def _adopted(self) -> Registration | None:
        registration = self._own()
        if registration is None:
            return None
        if registration.server.find() is None:
            self._end(registration)
            return None
        if ask(registration.endpoint) is not Answer.READY:
            return self._waited_for(registration)
        watched = registration.watcher is not None and registration.watcher.find() is not None
        return registration if watched else start_watcher(self._settings, self.folder, registration)

    def _waited_for(self, registration: Registration) -> Registration | None:
        # Its starter was killed half-way, or it is broken: time tells which.
        try:
            wait_until_ready(self.folder, registration)
        except EngineError:
            self._end(registration)
            return None
        return start_watcher(self._settings, self.folder, registration)

    def _started(self) -> Registration:
        registration = start_server(self._settings, self.folder)
        try:
            registration = start_watcher(self._settings, self.folder, registration)
            wait_until_ready(self.folder, registration)
        except BaseException:
            self._end(registration)
            raise
        return registration

    def _end(self, registration: Registration) -> None:
        if registration.watcher is not None:
            registration.watcher.terminate()
        registration.server.terminate()
        self.folder.remove()

    def _last_used(self) -> datetime | None:
        try:
            return datetime.fromtimestamp(self.folder.last_used.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None


def _state(registration: Registration) -> ServerState:
    if registration.host != socket.gethostname():
        return ServerState.ELSEWHERE
    if registration.server.find() is None:
        return ServerState.STOPPED
    return ServerState.RUNNING if ask(registration.endpoint) is Answer.READY else ServerState.SILENT
