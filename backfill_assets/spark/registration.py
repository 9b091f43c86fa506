"""Who runs the Spark server of a warehouse, where it is, and what a client needs to get in."""

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
from backfill_assets.storage.files import write_private

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""The variable in which Spark's own clients look for the token."""
_HARMLESS: Final = ("use_ssl=", "user_id=", "user_agent=", "session_id=", "grpc_max_message_size=")
"""What Spark's client knows by name; whatever else stands in a URL goes with each call as a header, as keys of services do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to connect to: its Spark Connect URL without secrets, and the token and headers that it wants."""

    url: str
    token: str | None = field(default=None, repr=False)
    embedded: bool = False
    headers: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def remote(cls, url: str) -> Endpoint:
        """Read a configured URL; its token moves to `token` and headers to `headers`, so that the URL can be shown."""
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
        """The embedded server; by name, because the client demands TLS for a token sent to an address."""
        return cls(f"sc://localhost:{port}", token, embedded=True)

    @property
    def full_url(self) -> str:
        """The URL to connect with: with headers, still without the token."""
        if not self.headers:
            return self.url
        return f"{self.url}{'' if '/;' in self.url else '/'};{';'.join(self.headers)}"

    @property
    def port(self) -> int | None:
        """The port in the URL."""
        return urlsplit(self.url).port

    @property
    def host(self) -> str | None:
        """The host in the URL, in small letters."""
        return urlsplit(self.url).hostname


def _encoded(option: str) -> str:
    """The option with its value percent-encoded: Spark's client takes a slash in it for a path."""
    name, sign, value = option.partition("=")
    return f"{name}{sign}{quote(unquote(value), safe='')}"


def client_environment(endpoint: Endpoint) -> dict[str, str]:
    """Give the variables that Spark's own clients need, such as Dagster's `LazyPySparkResource`."""
    return {} if endpoint.token is None else {TOKEN_VARIABLE: endpoint.token}


LOCK_SECONDS: Final = 660
"""How long to wait for a process that starts or stops the server: longer than a first start may take."""

_STOP_SECONDS: Final = 30


class ProcessRef(BaseModel):
    """One process of this machine, told apart from a later one with the same number by its start time."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: float = Field(description="seconds since 1970, as the operating system tells it")

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """Point at the running process `pid`; raises `psutil.NoSuchProcess` if it has ended."""
        return cls(pid=pid, started=psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """Give the process if it is still that one and still runs."""
        try:
            process = psutil.Process(self.pid)
            # A second of slack: the boot time that start times are counted from is corrected now and then.
            same = abs(process.create_time() - self.started) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def terminate(self) -> None:
        """End the process, kindly first; returns when it is gone."""
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
    """What `server.json` says about the server of a warehouse."""

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
        """Where clients connect."""
        return Endpoint.local(self.port, self.token)


class EngineFolder:
    """The `_engine` folder of a warehouse; readable by its user only, because it holds the token."""

    def __init__(self, warehouse: Path) -> None:
        self.root = warehouse / "_engine"
        self.registration = self.root / "server.json"
        self.last_used = self.root / "last_used"
        self.log = self.root / "server.log"
        self.properties = self.root / "spark.properties"
        self.configuration = self.root / "conf"
        self.scratch = self.root / "tmp"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to start, adopt or stop the server; raises `EngineError` after `LOCK_SECONDS`."""
        lock = FileLock(self.root / "server.lock", timeout=LOCK_SECONDS)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire()
        except PermissionError as error:
            raise self._foreign_user() from error
        except Timeout as error:
            raise EngineError(
                f"{lock.lock_file} has been held for {LOCK_SECONDS} s by a process that starts or stops "
                f"the Spark server. See {self.log}, end that process and try again."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def read(self) -> Registration | None:
        """Give the registration, or None where there is none; an unreadable one raises `EngineError`."""
        try:
            return Registration.model_validate_json(self.registration.read_bytes())
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise self._foreign_user() from error
        except ValidationError as error:
            # The parser's message would quote the file, and with it the token.
            raise EngineError(
                f"{self.registration} cannot be understood ({error.error_count()} errors). If no Spark "
                "server of this warehouse runs on any host, delete the file and try again."
            ) from None

    def write(self, registration: Registration) -> None:
        """Replace the registration in one step."""
        draft = self.registration.with_suffix(".new")
        write_private(draft, registration.model_dump_json(indent=2))
        draft.replace(self.registration)

    def remove(self) -> None:
        """Forget the registration, and the token with it."""
        self.registration.unlink(missing_ok=True)
        self.properties.unlink(missing_ok=True)

    def touch(self) -> None:
        """Note that somebody uses the server now."""
        self.last_used.touch(mode=0o600)
        # This host's time, by which it is read again: a file server may have another.
        now = time.time()
        os.utime(self.last_used, (now, now))

    def seconds_unused(self) -> float:
        """How long nobody has used the server; raises `FileNotFoundError` if nobody ever has."""
        return time.time() - self.last_used.stat().st_mtime

    def _foreign_user(self) -> ForeignServerError:
        return ForeignServerError(
            f"{self.root} belongs to another user. Two Spark servers on one warehouse lose commits (docs/storage.md): "
            "use a warehouse of your own (BACKFILL_ASSETS_WAREHOUSE), or let that user stop their server and remove the "
            "folder, and both name one server by BACKFILL_ASSETS_SPARK_URL."
        )


FRESH_SECONDS: Final = 120
"""For how long after its last use another server is taken to be at work; sessions renew the note each second."""

_LOCK_SECONDS: Final = 60


def same_server(one: str, other: str) -> bool:
    """Whether two URLs name one server, whatever options of a session they carry."""
    return one.partition("/;")[0] == other.partition("/;")[0]


class RemoteNote:
    """The file `_remote_spark` of a warehouse: the URL of the server that was used last, without secrets."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self.path = warehouse / "_remote_spark"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to look who works here and to begin; raises `EngineError` if it cannot be had."""
        self._warehouse.mkdir(parents=True, exist_ok=True)
        # Several users may share a warehouse, and with it this lock.
        lock = FileLock(self.path.with_suffix(".lock"), timeout=_LOCK_SECONDS, mode=0o666)
        try:
            lock.acquire()
        except Timeout as error:
            raise EngineError(
                f"{lock.lock_file} has been held for {_LOCK_SECONDS} s by a process that asks which Spark server works in "
                "this warehouse; end that process and try again."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def at_work(self) -> str | None:
        """The URL of the remote server that works here or did just now, if one does."""
        try:
            # A note from the future is none of somebody at work: that one would have renewed it since the clock was set back.
            age = abs(time.time() - self.path.stat().st_mtime)
            return self.path.read_text(encoding="utf-8") if age < FRESH_SECONDS else None
        except FileNotFoundError:
            return None

    def write(self, url: str) -> None:
        """Say that the server at `url` works here from now on."""
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(url, encoding="utf-8")
        draft.replace(self.path)

    def renew(self, url: str) -> None:
        """Say that the server at `url` still works here; a note of another server is left alone, and none is begun.

        Raises:
            OSError: there is no note, the folder may not be written to, or the disk is full.
        """
        if not same_server(self.path.read_text(encoding="utf-8"), url):
            return
        try:
            os.utime(self.path)
        except PermissionError:
            # Another user wrote it last, and only its owner may set its time.
            self.write(url)

    def remove(self) -> None:
        """Say that no remote server works here."""
        self.path.unlink(missing_ok=True)
