"""The server of a warehouse: find it, start it once for all processes, show its status, stop it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import EngineError, ForeignServerError
from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask
from backfill_assets.spark.registration import (
    FRESH_SECONDS,
    Endpoint,
    EngineFolder,
    Registration,
    RemoteNote,
    same_server,
)
from backfill_assets.spark.start import downloads_alone, start_server, start_watcher, wait_until_ready

_LOSE: Final = "Two Spark servers on one warehouse lose commits (docs/storage.md)"
_EMBEDDED: Final = "the embedded server"


class ServerState(Enum):
    """The state of a warehouse's server, determined without starting one."""

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
    """The one Spark server of a warehouse and user: embedded, unless `settings.spark_url` names another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = EngineFolder(settings.warehouse)
        self.note = RemoteNote(settings.warehouse)

    def ensure(self, say: Callable[[str], object] = lambda _: None) -> Endpoint:
        """The endpoint of the running server; starts the embedded one if none runs, and says so before.

        Many processes may call this at the same time; exactly one starts a server. A second server is refused while another
        one works in this warehouse, because commits would be lost. Raises `EngineError`: `JavaError`, `PortTakenError`,
        `ForeignServerError` or `ServerStartError`.
        """
        if self._settings.spark_url is not None:
            return self._alone(Endpoint.remote(self._settings.spark_url))
        with self.folder.locked():
            registration = self._adopted()
            if registration is None:
                self._refuse_second(_EMBEDDED)
                say(f"starting Spark, which takes a minute; its log: {self.folder.log}")
                registration = self._started()
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
        """Why this process may not use a server now, such as another one working in the warehouse; or empty. Starts none."""
        try:
            if self._settings.spark_url is not None:
                remote = Endpoint.remote(self._settings.spark_url)
                if not self._refuse_beside_embedded(remote):
                    self._refuse_second(remote.url)
            else:
                registration = self._own()
                if registration is None or _dead(registration):
                    self._refuse_second(_EMBEDDED)
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
        """Record that a session of the server is open: an embedded one must not idle out, no other one may start to work.

        Raises:
            OSError: the disk is full, or the warehouse may not be written to.
        """
        if endpoint.embedded:
            self.folder.touch()
        else:
            self.note.renew(endpoint.url)

    def _alone(self, remote: Endpoint) -> Endpoint:
        with self.note.locked():
            if self._refuse_beside_embedded(remote):
                return remote
            self._refuse_second(remote.url)
            before = self.note.at_work()
            self.note.write(remote.url)
            try:
                # Check again: an embedded server registers itself first and then reads the note.
                self._refuse_beside_embedded(remote)
            except ForeignServerError:
                if before is None:
                    self.note.remove()
                raise
        return remote

    def _refuse_beside_embedded(self, remote: Endpoint) -> bool:
        """Refuse another server beside the embedded one; returns whether `remote` is the embedded one itself."""
        registration = self.folder.read() if self.folder.root.exists() else None
        if registration is None or _dead(registration):
            return False
        if _same_server(registration, remote):
            return True
        raise ForeignServerError(
            f"BACKFILL_ASSETS_SPARK_URL names {remote.url}, but the embedded server of this warehouse runs on "
            f"{registration.host} (process {registration.server.pid}, since {registration.started_at:%Y-%m-%d %H:%M} UTC). "
            f"{_LOSE}: unset the variable there and run `backfill spark stop`, or unset the variable here as well."
        )

    def _refuse_second(self, wanted: str) -> None:
        at_work = self.note.at_work()
        if at_work is not None and not same_server(at_work, wanted):
            raise ForeignServerError(
                f"The Spark server {at_work} works in {self._settings.warehouse} or did so in the last {FRESH_SECONDS} s, so "
                f"{wanted} must not: {_LOSE}. Let all use one server (BACKFILL_ASSETS_SPARK_URL; of a campaign also "
                f"execution.compute), or wait until the other one has finished: {self.note.path} is then no longer renewed."
            )

    def _own(self) -> Registration | None:
        registration = self.folder.read()
        if registration is not None and registration.host != socket.gethostname():
            raise ForeignServerError(
                f"The Spark server of this warehouse is registered by the host {registration.host} "
                f"(process {registration.server.pid}, since {registration.started_at:%Y-%m-%d %H:%M} UTC), "
                f"and this host is {socket.gethostname()}. {_LOSE}: stop it "
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
        # The starting process was killed half-way, or the server is broken: waiting shows which.
        try:
            wait_until_ready(self.folder, registration)
        except EngineError:
            self._end(registration)
            return None
        return start_watcher(self._settings, self.folder, registration)

    def _started(self) -> Registration:
        with downloads_alone():
            registration = start_server(self._settings, self.folder)
            try:
                registration = start_watcher(self._settings, self.folder, registration)
                wait_until_ready(self.folder, registration)
                # Check again: a remote server writes its note first and then looks for a registration.
                self._refuse_second(_EMBEDDED)
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


def _same_server(registration: Registration, remote: Endpoint) -> bool:
    """Whether a URL names the embedded server of this host."""
    here = {"localhost", "127.0.0.1", "::1", socket.gethostname()}
    return registration.host == socket.gethostname() and remote.port == registration.port and remote.host in here


def _dead(registration: Registration) -> bool:
    """Whether a server is known to have ended; this is unknown for a server on another host."""
    return registration.host == socket.gethostname() and registration.server.find() is None


def _state(registration: Registration) -> ServerState:
    if registration.host != socket.gethostname():
        return ServerState.ELSEWHERE
    if registration.server.find() is None:
        return ServerState.STOPPED
    return ServerState.RUNNING if ask(registration.endpoint) is Answer.READY else ServerState.SILENT
