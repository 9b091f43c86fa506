"""A Spark cluster of a benchmark or a soak, whose executors and server can be killed."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from pathlib import Path

import psutil

from backfill_assets.settings import Settings
from tools.cluster import Server, connect, standalone, worker


class SparkCluster:
    """A standalone cluster in `folder`, and a Spark Connect server on it that is started again if it was killed."""

    def __init__(self, folder: Path, workers: int, memory: str = "1g") -> None:
        self._folder = folder
        self._memory = memory
        self._count = workers
        self._workers: list[psutil.Process] = []
        self._running = ExitStack()
        self._server: Server | None = None
        self._of_server = ExitStack()

    def start(self, settings: Settings) -> str:
        """Start everything; returns the URL of the server."""
        self._settings = settings
        self._cluster = self._running.enter_context(standalone(self._folder / "cluster", os.environ))
        for number in range(self._count):
            started = self._running.enter_context(worker(self._cluster, number, 1, self._memory, os.environ))
            self._workers.append(psutil.Process(started.pid))
        return self._connect("")

    def stop(self) -> None:
        """End everything."""
        self._of_server.close()
        self._running.close()

    def processes(self) -> list[psutil.Process]:
        """The server, and the executors, which are processes of the workers."""
        found = [psutil.Process(self._server.process.pid)] if self._server is not None else []
        for one in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [child for child in one.children(recursive=True) if "java" in child.name()]
        return found

    def roots(self) -> list[psutil.Process]:
        """The server and the workers: all that runs on the cluster is below them."""
        return [*self.processes()[:1], *self._workers]

    def mend(self) -> None:
        """Start the server again at its address, if it was killed; a worker starts its executors again by itself."""
        if self._server is not None and self._server.process.poll() is not None:
            self._of_server.close()
            self._connect(self._server.url)

    def _connect(self, url: str) -> str:
        started = connect(self._cluster, self._settings, self._folder / "connect", self._memory, url)
        self._server = self._of_server.enter_context(started)
        return self._server.url
