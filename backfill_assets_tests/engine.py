"""One Spark server for a whole test run, shared by all its processes and by every folder that imports these fixtures."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask
from backfill_assets.spark.registration import ENGINE, Endpoint, EngineFolder
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets.spark.start import server_command, server_configuration, server_environment, write_configuration
from backfill_assets_tests.harness.shared import shared_folder
from backfill_assets_tests.harness.waiting import wait_for
from benchmarks.installation import end

ROOT = Path(__file__).resolve().parents[1]


def engine_environment(state: Path) -> dict[str, str]:
    """Give the variables with which a process uses the test server of a state folder."""
    return {
        "BACKFILL_ASSETS_STATE": str(state),
        "BACKFILL_ASSETS_SPARK_MEMORY": "3g",  # several tests at the same time, each with tables that Delta keeps
    }


def engine_settings(state: Path, **variables: str) -> Settings:
    """Give settings for a state folder; `query_timeout="2s"` stands for BACKFILL_ASSETS_QUERY_TIMEOUT."""
    named = {f"BACKFILL_ASSETS_{name.upper()}": value for name, value in variables.items()}
    return Settings.from_env(engine_environment(state) | named)


@pytest.fixture(scope="session")
def spark_server() -> SparkServer:
    """The server of this run, which ends with it; the first process starts it."""
    server = SparkServer(engine_settings(shared_folder() / "engine"))
    server.ensure()
    return server


@pytest.fixture
def spark_settings(spark_server: SparkServer) -> Settings:
    """Settings of the shared server."""
    return engine_settings(spark_server.folder.root.parent)


@pytest.fixture
def spark(spark_settings: Settings, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of the test's own on the shared server."""
    with open_session(spark_settings, request.node.nodeid.replace(",", ";")) as session:
        yield session


def start_python(code: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a Python process that can import the project; its output is text in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def works(server: SparkServer) -> bool:
    """Whether a server runs and has used a fifth of a core for two seconds: one without work uses some hundredths."""
    pid = server.status().pid
    try:
        return pid is not None and psutil.Process(pid).cpu_percent(interval=2) > 20
    except psutil.NoSuchProcess:
        return False


def java_processes(state: Path) -> list[psutil.Process]:
    """Give the Spark servers of this machine that belong to a state folder, by their command line."""
    marker = str(state / ENGINE / "spark.properties")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if marker in line and any("SparkSubmit" in part for part in line):
            found.append(process)
    return found


def free_port() -> int:
    """A port of this machine on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def foreign_server(settings: Settings, folder: Path, configuration: Mapping[str, str], url: str = "") -> Iterator[str]:
    """A server beside the embedded one, in a folder of its own, with settings that override the project's; gives its URL.

    `url` is that of a former server; without it, the server has a port and a token of its own.
    """
    port = (url and Endpoint.remote(url).port) or free_port()
    token = (url and Endpoint.remote(url).token) or secrets.token_urlsafe(32)
    home = EngineFolder(folder)
    home.scratch.mkdir(parents=True)
    write_configuration(home, {**server_configuration(settings, home, port), **configuration}, token)
    environ = server_environment(os.environ, home)
    with home.log.open("wb") as log:
        server = psutil.Popen(server_command(home), cwd=home.root, env=environ, stdout=log, stderr=log)
    found = f"sc://localhost:{port}/;token={token}"
    try:
        wait_for(lambda: ask(Endpoint.remote(found)) is Answer.READY, "the other server to be ready", 180)
        yield found
    finally:
        end([server])


@contextlib.contextmanager
def held_at(file: Path, pid: int) -> Iterator[None]:
    """Within the block, a process is paused before it reads the file; the block begins once it waits (Linux)."""
    aside = file.with_suffix(".aside")
    file.rename(aside)
    os.mkfifo(file)  # a process that opens it to read waits for one that opens it to write
    try:
        wait_for(lambda: _opens_a_pipe(pid), f"process {pid} to read {file}", 600)
        yield
    finally:
        with contextlib.suppress(OSError):  # no process waits any more
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        aside.replace(file)


def _opens_a_pipe(pid: int) -> bool:
    """Whether a thread of the process waits in the kernel for the other end of a named pipe."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            if (thread / "wchan").read_text() == "wait_for_partner":
                return True
    return False
