"""A Spark standalone cluster on this machine, from the installed pyspark: a master, workers, and a Spark Connect server on them.

`python -m tools.cluster --folder /tmp/cluster --workers 2` prints the variable that names the server, and runs until Ctrl-C. It
takes warehouse, sources and the keys of their store from the environment, as `backfill` does.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask
from backfill_assets.spark.registration import Endpoint, EngineFolder
from backfill_assets.spark.start import (
    downloads_alone,
    packages_of,
    require_java,
    server_command,
    server_configuration,
    server_environment,
    write_configuration,
)

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 300
_POLL_SECONDS: Final = 0.3
_DEPLOY: Final = "org.apache.spark.deploy"


class ClusterError(Exception):
    """A process of the cluster has ended, or does not answer."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster: the address of its master, that of the master's page, and its processes."""

    master: str
    page: str
    folder: EngineFolder
    environ: Mapping[str, str]

    def workers(self) -> int:
        """How many workers the master can use."""
        try:
            with urlopen(f"{self.page}/json/", timeout=10) as answer:  # noqa: S310  # our own address
                return int(json.load(answer)["aliveworkers"])
        except (OSError, URLError):
            return -1

    def configuration(self, memory: str) -> Mapping[str, str]:
        """What Spark has to be told to work on it, with executors of this memory."""
        return {
            "spark.master": self.master,
            "spark.executor.memory": memory,
            # Spark's own secret is known to one process only.
            "spark.authenticate": "false",
            "spark.network.crypto.enabled": "false",
        }


@dataclass(frozen=True)
class Server:
    """A running Spark Connect server: its URL and its process."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def standalone(folder: Path, environ: Mapping[str, str]) -> Iterator[Cluster]:
    """Run a master, with its files in `folder`; it ends with the block.

    Raises:
        ClusterError: it does not start.
        JavaError: Java is missing or too old.
    """
    require_java(environ)
    home = EngineFolder(folder)
    home.scratch.mkdir(parents=True)
    write_configuration(home, {}, "")
    port, page = free_port(), free_port()
    own = server_environment(environ, home)
    cluster = Cluster(f"spark://{_HOST}:{port}", f"http://{_HOST}:{page}", home, own)
    with _running(cluster, "master.Master", "--port", str(port), "--webui-port", str(page)) as master:
        _wait(lambda: cluster.workers() >= 0, "the master", master)
        yield cluster


@contextmanager
def worker(
    cluster: Cluster, number: int, cores: int, memory: str, environ: Mapping[str, str], within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker; its executors have its environment, such as the keys of a store. `within` is a command that runs commands."""
    before, own = cluster.workers(), server_environment(environ, cluster.folder)
    words = (
        "--cores",
        str(cores),
        "--memory",
        memory,
        "--webui-port",
        "0",
        "-d",
        str(cluster.folder.scratch / f"worker_{number}"),
    )
    with _running(cluster, "worker.Worker", *words, cluster.master, environ=own, within=within) as started:
        _wait(lambda: cluster.workers() > before, f"worker {number}", started)
        yield started


@contextmanager
def connect(settings: Settings, folder: Path, configuration: Mapping[str, str], url: str = "") -> Iterator[Server]:
    """Run a Spark Connect server in a folder of its own, with `configuration` over the project's; it ends with the block.

    It has a port and a token of its own, or those of a former server, which it replaces: `url`.

    Raises:
        ClusterError: it does not start.
    """
    former = Endpoint.remote(url) if url else None
    port = (former and former.port) or free_port()
    token = (former and former.token) or secrets.token_urlsafe(32)
    home = EngineFolder(folder)
    home.scratch.mkdir(parents=True, exist_ok=True)
    write_configuration(home, {**server_configuration(settings, home, port), **configuration}, token)
    found = f"sc://localhost:{port}/;token={token}"
    environ = server_environment(os.environ, home)
    with home.log.open("ab") as log, downloads_alone(packages_of(settings)):
        server = subprocess.Popen(server_command(home), cwd=home.root, env=environ, stdout=log, stderr=log)
        try:
            _wait(lambda: ask(Endpoint.remote(found)) is Answer.READY, "the Spark Connect server", server)
            yield Server(found, server)
        finally:
            _end(server)


@contextmanager
def _running(
    cluster: Cluster, name: str, *words: str, environ: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    program = str(Path(cluster.environ["SPARK_HOME"]) / "bin" / "spark-class")
    with cluster.folder.log.open("ab") as log:
        command = [*within, program, f"{_DEPLOY}.{name}", "--host", _HOST, *words]
        started = subprocess.Popen(
            command, cwd=cluster.folder.root, env=environ or cluster.environ, stdout=log, stderr=log
        )
        try:
            yield started
        finally:
            _end(started)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(done: Callable[[], bool], what: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not done():
        if process.poll() is not None:
            raise ClusterError(f"{what} ended with code {process.returncode}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} does not answer after {_START_SECONDS} s")
        time.sleep(_POLL_SECONDS)


def free_port() -> int:
    """A port of this machine on which no process listens."""
    with socket.socket() as one:
        one.bind((_HOST, 0))
        return int(one.getsockname()[1])


def main() -> None:
    """Run a cluster until Ctrl-C."""
    asked = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    asked.add_argument("--folder", type=Path, required=True, help="a new folder for logs and temporary files")
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--cores", type=int, default=1, help="of each worker")
    asked.add_argument("--memory", default="1g", help="of each worker")
    given = asked.parse_args()
    # Otherwise it would end at once, and leave its servers behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as running:
        cluster = running.enter_context(standalone(given.folder / "cluster", os.environ))
        for number in range(given.workers):
            running.enter_context(worker(cluster, number, given.cores, given.memory, os.environ))
        settings = Settings.from_env(os.environ)
        url = running.enter_context(
            connect(settings, given.folder / "connect", cluster.configuration(given.memory))
        ).url
        sys.stdout.write(f"export BACKFILL_ASSETS_SPARK_URL='{url}'\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
