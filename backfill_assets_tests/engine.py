"""One Spark server for a whole test run, shared by all its processes and by every folder that imports these fixtures."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from backfill_assets.settings import Settings
from backfill_assets.spark.registration import ENGINE
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.harness.shared import shared_folder
from backfill_assets_tests.harness.waiting import wait_for

ROOT = Path(__file__).resolve().parents[1]


def engine_environment(state: Path) -> dict[str, str]:
    """Give the variables with which a process uses the test server of a state folder."""
    return {
        "BACKFILL_ASSETS_STATE": str(state),
        "BACKFILL_ASSETS_SPARK_MEMORY": "3g",  # several tests at the same time, each with tables that Delta keeps
        # At night nobody may need it for an hour; the next one, started by whoever comes first, would have other settings.
        "BACKFILL_ASSETS_SPARK_IDLE": "4h",
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
