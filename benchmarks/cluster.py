"""A Spark cluster whose workers come and go, and whose executors and server can be killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from backfill_assets.settings import Settings
from tools.cluster import Server, connect, standalone, worker


class SparkCluster:
    """A standalone cluster in `folder`, and a Spark Connect server on it; `memory` is that of a worker and its executor."""

    def __init__(self, folder: Path, memory: str = "1g") -> None:
        self._folder = folder
        self._memory = memory
        self._running = ExitStack()
        self._of_workers = ExitStack()
        self._of_server = ExitStack()
        self._workers: list[psutil.Process] = []

    def start(self, settings: Settings, workers: int) -> str:
        """Start everything; returns the URL of the server."""
        self._settings = settings
        self._cluster = self._running.enter_context(standalone(self._folder / "cluster", os.environ))
        for _ in range(workers):
            self.add_worker()
        self._connect("")
        return self._server.url

    def stop(self) -> None:
        """End everything."""
        self._of_server.close()
        self._of_workers.close()
        self._running.close()

    def add_worker(self, environ: Mapping[str, str] = os.environ, within: Sequence[str] = ()) -> None:
        """Let a worker with a core join; `within` is a command that runs commands."""
        asked = worker(self._cluster, len(self._workers), 1, self._memory, environ, within)
        self._workers.append(psutil.Process(self._of_workers.enter_context(asked).pid))

    def end_workers(self) -> None:
        """Take all workers away, with their executors."""
        self._of_workers.close()

    def workers(self) -> int:
        """How many workers the master knows: it takes a while until it knows that one has left."""
        return self._cluster.workers()

    def server(self) -> psutil.Process:
        """The Spark Connect server, which is the driver."""
        return psutil.Process(self._server.process.pid)

    def executors(self) -> list[psutil.Process]:
        """The executors, which are processes of the workers."""
        found = []
        for one in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [child for child in one.children(recursive=True) if "java" in child.name()]
        return found

    def roots(self) -> list[psutil.Process]:
        """The server and the workers: all that runs on the cluster is below them."""
        return [self.server(), *self._workers]

    def restart_server(self) -> None:
        """Start the server again at its address if it was killed; a worker starts its executors again by itself."""
        if self._server.process.poll() is not None:
            self._of_server.close()
            self._connect(self._server.url)

    def _connect(self, url: str) -> None:
        started = connect(self._settings, self._folder / "connect", self._cluster.configuration(self._memory), url)
        self._server: Server = self._of_server.enter_context(started)
