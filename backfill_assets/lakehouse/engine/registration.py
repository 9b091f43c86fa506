"""Who runs the server of a warehouse: the registration in its `_engine` folder, and the lock around it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backfill_assets.core.errors import EngineError, ForeignServerError
from backfill_assets.lakehouse.engine.endpoint import Endpoint
from backfill_assets.storage.files import write_private

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
