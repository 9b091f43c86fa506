"""The registered Spark server of a folder: its process, its address, and what a client needs to connect."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psutil
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backfill_assets.core.errors import EngineError, ForeignServerError
from backfill_assets.storage.disk import write_private

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""The variable in which Spark's own clients look for the token."""
_HARMLESS: Final = ("use_ssl=", "user_id=", "user_agent=", "session_id=", "grpc_max_message_size=")
"""Options that Spark's client knows; all others in a URL are sent with each call as headers, such as keys of services."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to connect to: its Spark Connect URL without secrets, and its token and headers."""

    url: str
    token: str | None = field(default=None, repr=False)
    embedded: bool = False
    headers: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def remote(cls, url: str) -> Endpoint:
        """Read a configured URL; moves its token to `token` and headers to `headers`, so that the URL can be shown."""
        parts = urlsplit(url)
        address, *options = (parts.netloc + parts.path.removeprefix("/")).split(";")
        tokens = [unquote(option[len("token=") :]) for option in options if option.startswith("token=")]
        rest = [_encoded(option) for option in options if option and not option.startswith("token=")]
        shown = [option for option in rest if option.startswith(_HARMLESS)]
        headers = [option for option in rest if not option.startswith(_HARMLESS)]
        path = "/;" + ";".join(shown) if shown else ""
        return cls(urlunsplit(("sc", address, path, "", "")), tokens[-1] if tokens else None, headers=tuple(headers))

    @classmethod
    def local(cls, port: int, token: str) -> Endpoint:
        """The embedded server, by host name: to an IP address, the client sends a token only with TLS."""
        return cls(f"sc://localhost:{port}", token, embedded=True)

    @property
    def full_url(self) -> str:
        """The URL to connect with, including headers but not the token."""
        if not self.headers:
            return self.url
        return f"{self.url}{'' if '/;' in self.url else '/'};{';'.join(self.headers)}"

    @property
    def port(self) -> int | None:
        """The port in the URL."""
        return urlsplit(self.url).port

    @property
    def host(self) -> str | None:
        """The host in the URL, in lower case."""
        return urlsplit(self.url).hostname


def _encoded(option: str) -> str:
    """The option with its value percent-encoded: Spark's client reads a slash in it as a path."""
    name, sign, value = option.partition("=")
    return f"{name}{sign}{quote(unquote(value), safe='')}"


def client_environment(endpoint: Endpoint) -> dict[str, str]:
    """The environment variables that Spark's own clients need, such as Dagster's `LazyPySparkResource`."""
    return {} if endpoint.token is None else {TOKEN_VARIABLE: endpoint.token}


LOCK_SECONDS: Final = 660
"""How long to wait for a process that starts or stops the server; longer than the first start may take."""

_STOP_SECONDS: Final = 30
_BOOT_SECONDS: Final = 1.5
"""How far apart two looks at the time from the boot to the start of one process may be."""
_CLOCK_SECONDS: Final = 600.0
"""How far its start by the calendar may move; a machine that was started again since has another one."""


class ProcessRef(BaseModel):
    """One process of this machine; its start time distinguishes it from a later one with the same number."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: float = Field(description="seconds since 1970, from the operating system")
    since_boot: float = Field(description="seconds from the boot of the machine to the start of the process")

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """A reference to the running process `pid`; raises `psutil.NoSuchProcess` if it has ended."""
        started = psutil.Process(pid).create_time()
        return cls(pid=pid, started=started, since_boot=started - psutil.boot_time())

    def find(self) -> psutil.Process | None:
        """The process, if it is still the same one and still runs."""
        try:
            process, now = psutil.Process(self.pid), ProcessRef.of(self.pid)
            # The boot time is a whole second, which moves as the clock is corrected: by one back and forth, by minutes over weeks.
            same = (
                abs(now.since_boot - self.since_boot) < _BOOT_SECONDS
                and abs(now.started - self.started) < _CLOCK_SECONDS
            )
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def terminate(self) -> None:
        """Terminate the process, and kill it if it does not end; returns when it is gone."""
        process = self.find()
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)


class Registration(BaseModel):
    """The content of `server.json`: the server of a folder."""

    model_config = ConfigDict(frozen=True)

    host: str
    server: ProcessRef
    watcher: ProcessRef | None
    port: int
    token: str = Field(repr=False)
    configuration: dict[str, str] = Field(description="Spark's settings at start, without the token")

    @property
    def started_at(self) -> datetime:
        """When the server was started, in UTC."""
        return datetime.fromtimestamp(self.server.started, UTC)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint for clients."""
        return Endpoint.local(self.port, self.token)


ENGINE: Final = "backfill_spark"
"""The folder of the embedded server, in the one that the settings name; whatever else is there is not touched."""


class EngineFolder:
    """The folder of an embedded server; only its user may read it, because it holds the token."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registration = self.root / "server.json"
        self.last_used = self.root / "last_used"
        self.log = self.root / "server.log"
        self.properties = self.root / "spark.properties"
        self.configuration = self.root / "conf"
        self.scratch = self.root / "tmp"
        self.tables = self.root / "tables"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for starting, adopting or stopping the server; raises `EngineError` after `LOCK_SECONDS`."""
        lock = FileLock(self.root / "server.lock", timeout=LOCK_SECONDS)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = lock.acquire()
        except PermissionError as error:
            raise self._foreign_user() from error
        except Timeout as error:
            raise EngineError(
                f"{lock.lock_file} has been held for {LOCK_SECONDS} s by a process that starts or stops "
                f"the Spark server. See {self.log}, end that process and try again."
            ) from error
        with held:
            yield

    def read(self) -> Registration | None:
        """The registration, or None if there is none; raises `EngineError` if it cannot be read."""
        try:
            return Registration.model_validate_json(self.registration.read_bytes())
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise self._foreign_user() from error
        except ValidationError as error:
            # The parser's message would quote the file, including the token.
            raise EngineError(
                f"{self.registration} cannot be read ({error.error_count()} errors). If no Spark server of this "
                "folder runs, delete the file and try again."
            ) from None

    def write(self, registration: Registration) -> None:
        """Replace the registration in one step."""
        draft = self.registration.with_suffix(".new")
        write_private(draft, registration.model_dump_json(indent=2))
        draft.replace(self.registration)

    def remove(self) -> None:
        """Remove the registration and the token."""
        self.registration.unlink(missing_ok=True)
        self.properties.unlink(missing_ok=True)

    def touch(self) -> None:
        """Record that the server is used now."""
        self.last_used.touch(mode=0o600)
        # The time of this host, because it is compared with that: a file server may have another.
        now = time.time()
        os.utime(self.last_used, (now, now))

    def seconds_unused(self) -> float:
        """How long the server has not been used; raises `FileNotFoundError` if it was never used."""
        return time.time() - self.last_used.stat().st_mtime

    def _foreign_user(self) -> ForeignServerError:
        return ForeignServerError(
            f"{self.root} belongs to another user: give your own server another folder (BACKFILL_ASSETS_SPARK_FOLDER), or name "
            "one server for both in BACKFILL_ASSETS_SPARK_URL."
        )
