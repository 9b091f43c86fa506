"""The Spark server: find it, start it once for all processes, show its status, stop it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from backfill_assets.core.errors import EngineError, ForeignServerError
from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask
from backfill_assets.spark.registration import ENGINE, Endpoint, EngineFolder, Registration
from backfill_assets.spark.start import (
    WHERE_A_STORE_IS,
    downloads_alone,
    packages_of,
    start_server,
    start_watcher,
    store_configuration,
    wait_until_ready,
)


class ServerState(Enum):
    """The state of the server, determined without starting one."""

    STOPPED = "stopped"
    RUNNING = "running"
    SILENT = "silent"
    ELSEWHERE = "elsewhere"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status that `backfill spark status` shows; fields that do not apply to the state are None."""

    state: ServerState
    url: str | None = None
    host: str | None = None
    pid: int | None = None
    started_at: datetime | None = None
    last_used: datetime | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    log: Path | None = None


class SparkServer:
    """The Spark server that these settings use: the embedded one of their folder, unless `settings.spark_url` names another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = EngineFolder(settings.spark_folder / ENGINE)

    def ensure(self, say: Callable[[str], object] = lambda _: None) -> Endpoint:
        """The endpoint of the running server; starts the embedded one if none runs, and says so before.

        Many processes may call this at the same time; exactly one starts a server. Raises `EngineError`: `JavaError`,
        `PortTakenError`, `ForeignServerError` or `ServerStartError`.
        """
        if self._settings.spark_url is not None:
            return Endpoint.remote(self._settings.spark_url)
        with self.folder.locked():
            registration = self._adopted()
            if registration is None:
                say(f"starting Spark, which takes a minute; its log: {self.folder.log}")
                registration = self._started()
            self._require_store(registration)
            self.folder.touch()
        return registration.endpoint

    def status(self) -> ServerStatus:
        """The current status; starts nothing and takes no lock."""
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

    def obstacle(self) -> str:
        """Why this process cannot use a server now: a registration of another host, no answer; or empty. Starts none."""
        if self._settings.spark_url is not None:
            endpoint = Endpoint.remote(self._settings.spark_url)
            match ask(endpoint):
                case Answer.READY:
                    return ""
                case Answer.REFUSED:
                    return f"The Spark server at {endpoint.url} refuses the token of BACKFILL_ASSETS_SPARK_URL."
                case Answer.SILENT:
                    return f"The Spark server at {endpoint.url} (BACKFILL_ASSETS_SPARK_URL) does not answer; start it."
        try:
            registration = self._own()
            if registration is not None and registration.server.find() is not None:
                self._require_store(registration)
        except EngineError as error:
            return str(error)
        return ""

    def stop(self) -> bool:
        """Stop the embedded server, even if it is in use; False if none ran.

        Raises `EngineError` for a server that is not ours to stop.
        """
        if self._settings.spark_url is not None:
            raise EngineError(
                "BACKFILL_ASSETS_SPARK_URL names a server that is not ours to stop; unset it to stop the embedded one."
            )
        with self.folder.locked():
            registration = self._own()
            if registration is None:
                return False
            ran = registration.server.find() is not None
            self._end(registration)
            return ran

    def keep_busy(self, endpoint: Endpoint) -> None:
        """Record that a session of the server is open: an embedded one must not idle out.

        Raises:
            OSError: the disk is full, or the folder may not be written to.
        """
        if endpoint.embedded:
            self.folder.touch()

    def _require_store(self, registration: Registration) -> None:
        """Refuse a server that was started for places elsewhere, and cannot open those in this bucket, or would open others."""
        own = store_configuration(self._settings, self.folder)
        theirs = {
            name: value for name, value in registration.configuration.items() if name in {*own, *WHERE_A_STORE_IS}
        }
        # Without an address, a bucket is one of AWS: a server that has an address would find another bucket of this name.
        if own and own != theirs:
            raise EngineError(
                f"The Spark server (process {registration.server.pid}) was started for other places than "
                f"{self._settings.warehouse} and {self._settings.sources}, and does not know their store: stop it while "
                "nothing is running (backfill spark stop); the next use starts one that does."
            )

    def _own(self) -> Registration | None:
        registration = self.folder.read()
        if registration is not None and registration.host != socket.gethostname():
            raise ForeignServerError(
                f"The Spark server of {self.folder.root} is registered by the host {registration.host} "
                f"(process {registration.server.pid}, since {registration.started_at:%Y-%m-%d %H:%M} UTC), and this host is "
                f"{socket.gethostname()}. Give this host another folder (BACKFILL_ASSETS_SPARK_FOLDER), or name one server for "
                f"both in BACKFILL_ASSETS_SPARK_URL. If that host is gone for good, delete {self.folder.registration}."
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
        # The starting process was killed half-way, or the server is broken: waiting shows which.
        try:
            wait_until_ready(self.folder, registration)
        except EngineError:
            self._end(registration)
            return None
        return start_watcher(self._settings, self.folder, registration)

    def _started(self) -> Registration:
        with downloads_alone(packages_of(self._settings)):
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
