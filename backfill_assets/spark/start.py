"""Start the embedded server, detached from whoever starts it, and wait until it takes sessions."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

import backfill_assets
from backfill_assets.core.errors import PortTakenError, ServerStartError
from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask
from backfill_assets.spark.configuration import (
    DELTA_JAR,
    require_java,
    server_command,
    server_configuration,
    server_environment,
    write_configuration,
)
from backfill_assets.spark.registration import EngineFolder, ProcessRef, Registration
from backfill_assets.storage.files import write_private

START_SECONDS: Final = 600
"""How long a start may take; the first one on a machine downloads Delta's JARs."""

_POLL_SECONDS: Final = 0.3
_LOG_LINES: Final = 15
_TELLING: Final = ("ERROR", "Exception", "Error:", "UNRESOLVED", "not found", "Caused by", "FATAL")

# The shell leaves at once, so the program belongs to no process of ours and cannot become its zombie.
_DETACH: Final = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


@contextmanager
def downloads_alone(cache: Path | None = None) -> Iterator[None]:
    """Start one server at a time while Delta's JARs are not in Spark's `cache`: two downloads at once break each other.

    Raises:
        ServerStartError: another start of this user holds the lock for longer than a start may take.
    """
    folder = cache or _home() / ".ivy2.5.2"
    if (folder / "jars" / DELTA_JAR).is_file():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "backfill_assets.lock", timeout=START_SECONDS)
    try:
        lock.acquire()
    except Timeout as timeout:
        raise ServerStartError(
            f"Another process has been starting a Spark server for {START_SECONDS} s and holds {lock.lock_file}, so that only one "
            "downloads Delta's JARs; let it end, or end it, and try again."
        ) from timeout
    try:
        yield
    finally:
        lock.release()


def _home() -> Path:
    """The home folder as Java knows it: that of the user, whatever HOME says."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def start_server(settings: Settings, folder: EngineFolder) -> Registration:
    """Start a server and its watcher and register them; it is ready when `wait_until_ready` returns.

    The caller holds the folder's lock. Raises `JavaError`, `PortTakenError` or `ServerStartError`.
    """
    require_java(os.environ)
    port = _port(settings.spark_port)
    token = secrets.token_urlsafe(32)
    configuration = server_configuration(settings, folder, port)
    shutil.rmtree(folder.scratch, ignore_errors=True)  # left by a server that was killed
    folder.scratch.mkdir()
    if folder.log.exists():
        folder.log.replace(folder.log.with_suffix(".log.1"))
    write_private(folder.log, "")
    write_configuration(folder, configuration, token)
    folder.touch()
    server = _detached(server_command(folder), server_environment(os.environ, folder), folder)
    registration = Registration(
        host=socket.gethostname(),
        server=server,
        watcher=None,
        port=port,
        token=token,
        configuration=configuration,
    )
    # Before it is ready: should we be killed now, the next one must find it and not start a second.
    folder.write(registration)
    return registration


def start_watcher(settings: Settings, folder: EngineFolder, registration: Registration) -> Registration:
    """Give the server a process that stops it once it has been idle for `settings.spark_idle`."""
    root = str(Path(backfill_assets.__file__).resolve().parents[1])
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    idle = str(settings.spark_idle.total_seconds())
    command = [
        sys.executable,
        "-m",
        "backfill_assets.spark.watcher",
        str(settings.warehouse),
        idle,
    ]
    watched = registration.model_copy(update={"watcher": _detached(command, environ, folder)})
    folder.write(watched)
    return watched


def wait_until_ready(folder: EngineFolder, registration: Registration) -> None:
    """Return when the server takes an authenticated session.

    Raises `ServerStartError` with the telling lines of the log, or `PortTakenError`.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        match ask(registration.endpoint):
            case Answer.READY:
                return
            case Answer.REFUSED:
                raise _port_taken(registration.port)
            case Answer.SILENT if registration.server.find() is None:
                raise _start_error(folder, registration, "ended while it started")
            case Answer.SILENT:
                time.sleep(_POLL_SECONDS)
    raise _start_error(folder, registration, f"was not ready after {START_SECONDS} s")


def _detached(command: Sequence[str], environ: Mapping[str, str], folder: EngineFolder) -> ProcessRef:
    shell = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(folder.log), *command],
        cwd=folder.root,
        env=environ,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    try:
        return ProcessRef.of(int(shell.stdout))
    except psutil.NoSuchProcess:
        raise ServerStartError(f"{command[0]} ended at once. {_told(folder)}") from None


def _port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise _port_taken(wanted) from error
        return int(probe.getsockname()[1])


def _port_taken(port: int) -> PortTakenError:
    return PortTakenError(
        f"Port {port} of 127.0.0.1 is taken by another program. Set BACKFILL_ASSETS_SPARK_PORT to "
        "another port, or to 0 for a free one."
    )


def _start_error(folder: EngineFolder, registration: Registration, what: str) -> Exception:
    told = _told(folder)
    if "BindException" in told or "Address already in use" in told:
        return _port_taken(registration.port)
    return ServerStartError(f"The Spark server {what}. {told}")


def _told(folder: EngineFolder) -> str:
    lines = folder.log.read_text(encoding="utf-8", errors="replace").splitlines() if folder.log.exists() else []
    telling = [line for line in lines if any(word in line for word in _TELLING)] or lines
    return f"Its log {folder.log} says:\n" + "\n".join(line[:300] for line in telling[-_LOG_LINES:])
