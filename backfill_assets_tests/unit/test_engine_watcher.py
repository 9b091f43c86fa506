"""The watcher beside a server: the real one, over a small process in place of Spark."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from backfill_assets.settings import Settings
from backfill_assets.spark.registration import EngineFolder, ProcessRef, Registration
from backfill_assets.spark.start import start_watcher
from backfill_assets.spark.watcher import watch
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed

pytestmark = pytest.mark.slow

_HOUR = 3600.0

# Listens, and works, once it is asked to; keeps every client.
_SERVER = """
import signal, socket, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the process of the tests does with it
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
server = socket.socket()
server.bind(("127.0.0.1", 0))
clients = []
def accept():
    while True:
        clients.append(server.accept())
def work():
    while True:
        pass
print(server.getsockname()[1], flush=True)
for line in sys.stdin:
    if line == "listen\\n":
        server.listen()
    threading.Thread(target=accept if line == "listen\\n" else work, daemon=True).start()
    print("done", flush=True)
"""

_CLIENT = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
time.sleep(600)
"""


def _python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class _Server(EngineFolder):
    """The process in place of Spark, in the folder where the watcher looks for it; counts the watcher's requests."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root.mkdir(parents=True)
        self.looks = 0
        self.locks = 0
        self.process = _python(_SERVER)
        self.port = int(_line(self.process))
        self.registered = Registration(
            host=socket.gethostname(),
            server=ProcessRef.of(self.process.pid),
            watcher=None,
            port=self.port,
            token="hunter2",
            configuration={},
        )
        self.write(self.registered)
        self.properties.touch()
        self.touch()

    def asked_to(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert _line(self.process) == "done"

    def read(self) -> Registration | None:
        self.looks += 1
        return super().read()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.locks += 1
        with super().locked():
            yield

    def last_used_before(self, seconds: float) -> None:
        then = time.time() - seconds
        os.utime(self.last_used, (then, then))

    def runs(self) -> bool:
        return self.registered.server.find() is not None

    def is_forgotten(self) -> bool:
        return not self.registration.exists() and not self.properties.exists()


class _Watcher:
    """The watcher in a thread, with many checks in a second."""

    def __init__(self, server: _Server, watching: Future[None]) -> None:
        self._server = server
        self._watching = watching

    def has_looked(self, times: int = 5) -> None:
        """Wait until it has checked so many times; it must not have stopped the server."""
        # What the test does during a check may be too late for that check.
        enough = self._server.looks + times + 1
        wait_for(lambda: self._server.looks >= enough or self._watching.done(), "the watcher looks", every=0.02)
        assert not self._watching.done()
        assert self._server.runs()

    def notes_that_it_is_used(self) -> None:
        self._server.last_used_before(2 * _HOUR)
        wait_for(lambda: self._server.seconds_unused() < _HOUR, "the watcher notes that it is used", every=0.02)

    def ends(self, unused: float | None = None) -> None:
        """Wait until it has ended, while the server has been unused for so many seconds."""

        def ended() -> bool:
            if unused is not None and not self._watching.done():
                self._server.last_used_before(unused)
            return self._watching.done()

        wait_for(ended, "the watcher ends", every=0.05)
        self._watching.result()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    server = _Server(tmp_path / "spark")
    yield server
    server.process.kill()
    server.process.communicate()


@pytest.fixture
def watcher(server: _Server) -> Iterator[_Watcher]:
    """A watcher that stops an idle server after an hour."""
    with ThreadPoolExecutor(1) as pool:
        yield _Watcher(server, pool.submit(watch, server, _HOUR, 0.1))
        server.process.kill()  # lets it end


def test_the_program_stops_a_server_after_its_idle_time_and_forgets_its_token(server: _Server) -> None:
    server.asked_to("listen")
    settings = Settings.from_env(
        {"BACKFILL_ASSETS_SPARK_FOLDER": str(server.root.parent), "BACKFILL_ASSETS_SPARK_IDLE": "1s"}
    )
    watched = start_watcher(settings, server, server.registered)
    assert server.process.wait(90) == -signal.SIGTERM
    wait_for(lambda: watched.watcher is not None and watched.watcher.find() is None, "the watcher ends", every=0.05)
    assert server.is_forgotten()
    unused = re.search(r"The server was not used for (\d+) s: stopping it", server.log.read_text(encoding="utf-8"))
    assert unused is not None
    assert int(unused[1]) >= 1


def test_an_idle_server_is_stopped_after_its_idle_time_and_not_before(
    server: _Server, watcher: _Watcher, caplog: pytest.LogCaptureFixture
) -> None:
    server.asked_to("listen")
    server.last_used_before(_HOUR - 600)
    watcher.has_looked()
    watcher.ends(unused=_HOUR + 1)
    assert caplog.messages == ["The server was not used for 3601 s: stopping it."]
    assert server.is_forgotten()
    assert not server.runs()


def test_a_server_is_not_stopped_under_a_client_even_if_that_is_frozen(server: _Server, watcher: _Watcher) -> None:
    server.asked_to("listen")
    client = _python(_CLIENT, str(server.port))
    try:
        assert _line(client) == "connected"
        client.send_signal(signal.SIGSTOP)
        for _ in range(3):
            watcher.notes_that_it_is_used()
    finally:
        client.kill()
        client.communicate()
    watcher.has_looked()  # used a moment ago
    watcher.ends(unused=_HOUR + 1)
    assert not server.runs()


@pytest.mark.faults
def test_a_busy_server_is_stopped_only_after_ten_seconds_without_a_connection(
    observed: Observed, server: _Server, watcher: _Watcher, caplog: pytest.LogCaptureFixture
) -> None:
    observed.injected("the client of a server at work goes")
    server.asked_to("listen")
    with socket.create_connection(("127.0.0.1", server.port)):
        server.asked_to("work")
        for _ in range(5):
            watcher.notes_that_it_is_used()
    for _ in range(5):
        server.touch()
        watcher.has_looked(1)
    watcher.ends(unused=11)
    assert caplog.messages == ["The server works without a client: stopping it."]
    assert server.is_forgotten()
    assert not server.runs()
    observed.found("the watcher stops it, and not before nobody has been connected for ten seconds")


def test_a_server_that_is_still_starting_counts_as_used(server: _Server, watcher: _Watcher) -> None:
    server.asked_to("work")
    server.last_used_before(60)
    watcher.has_looked()
    server.asked_to("listen")
    watcher.ends(unused=60)
    assert not server.runs()


def test_a_client_that_comes_when_the_server_is_to_be_stopped_keeps_it(server: _Server, watcher: _Watcher) -> None:
    server.asked_to("listen")
    with EngineFolder(server.root).locked():
        server.last_used_before(2 * _HOUR)
        wait_for(lambda: server.locks > 0, "the watcher wants to stop it", every=0.02)
        server.touch()
    watcher.has_looked()


def test_a_watcher_ends_if_another_one_is_registered_and_lets_the_server_run(server: _Server) -> None:
    server.asked_to("listen")
    server.last_used_before(2 * _HOUR)
    server.write(server.registered.model_copy(update={"watcher": ProcessRef.of(server.process.pid)}))
    watch(server, _HOUR, 0.1)
    assert server.runs()
    assert not server.is_forgotten()


def test_a_watcher_ends_with_its_server(server: _Server, watcher: _Watcher) -> None:
    server.asked_to("listen")
    watcher.has_looked(1)
    server.process.kill()
    watcher.ends()
