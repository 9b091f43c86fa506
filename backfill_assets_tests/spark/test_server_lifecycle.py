"""Starting, recovering and stopping a server of its own; the tests build on each other to save starts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.core.errors import ServerLostError, ServerStartError
from backfill_assets.spark.registration import Registration
from backfill_assets.spark.server import ServerState, SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import engine_environment, engine_settings, java_processes, start_python, works
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.observed import Observed

# All of them, because they build on each other.
pytestmark = pytest.mark.faults

_ENSURE = """
import os
from backfill_assets.spark.server import SparkServer
from backfill_assets.settings import Settings
print(SparkServer(Settings.from_env(os.environ)).ensure().url)
"""

_HOLD = """
import os, time
from backfill_assets.spark.session import open_session
from backfill_assets.settings import Settings
with open_session(Settings.from_env(os.environ), "hold"):
    print("open", flush=True)
    time.sleep(600)
"""

_ENDLESS = """
import os
from backfill_assets.spark.session import open_session
from backfill_assets.settings import Settings
with open_session(Settings.from_env(os.environ), "endless") as spark:
    print("open", flush=True)
    spark.sql("SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 8").collect()
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("lifecycle") / "a folder"
    yield folder
    SparkServer(engine_settings(folder)).stop()


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A started server runs without the options by which `make test` saves CPU of the JVM."""
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)


def _registered(state: Path) -> Registration:
    registration = SparkServer(engine_settings(state)).folder.read()
    assert registration is not None
    return registration


@pytest.mark.usefixtures("as_shipped")
def test_many_processes_that_start_at_once_get_one_server(state: Path) -> None:
    starters = [start_python(_ENSURE, engine_environment(state)) for _ in range(4)]
    outputs = [starter.communicate(timeout=300)[0].strip() for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * 4, outputs
    assert set(outputs) == {f"sc://localhost:{_registered(state).port}"}
    # All four have ended, but the server has not: it belongs to none of them.
    assert [process.pid for process in java_processes(state)] == [_registered(state).server.pid]


def test_a_lost_watcher_is_replaced_without_a_new_server(observed: Observed, state: Path) -> None:
    observed.injected("kill -9 of the watcher of a Spark server")
    before = _registered(state)
    assert before.watcher is not None
    os.kill(before.watcher.pid, signal.SIGKILL)
    wait_for(lambda: before.watcher.find() is None, "the watcher is dead")
    SparkServer(engine_settings(state)).ensure()
    after = _registered(state)
    assert after.server == before.server
    assert after.watcher is not None
    assert after.watcher.find() is not None
    observed.found("another watcher at the same server")


def test_a_killed_server_is_named_and_then_replaced_although_its_process_id_is_reused(
    observed: Observed,
    state: Path,
) -> None:
    observed.injected("kill -9 of the Spark server under an open session; its number goes to another process")
    server = SparkServer(engine_settings(state, spark_idle="6s"))
    killed = _registered(state)

    def bereaved() -> None:
        with open_session(engine_settings(state), "bereaved") as spark:
            os.kill(killed.server.pid, signal.SIGKILL)
            wait_for(lambda: killed.server.find() is None, "the server is dead")
            spark.range(1).count()

    with pytest.raises(ServerLostError, match=r"bereaved.*BACKFILL_ASSETS_SPARK_MEMORY") as lost:
        bereaved()
    assert server.status().state is ServerState.STOPPED
    # This process acts as the innocent one that has the process id now: it must stay alive.
    reused = killed.server.model_copy(update={"pid": os.getpid()})
    server.folder.write(killed.model_copy(update={"server": reused}))
    assert server.status().state is ServerState.STOPPED
    server.ensure()
    fresh = _registered(state)
    assert [process.pid for process in java_processes(state)] == [fresh.server.pid]
    assert fresh.token != killed.token
    observed.found(lost.value, "the next use has started a server with another token")


def test_an_idle_server_stops_but_never_under_a_client_even_if_that_is_frozen(state: Path) -> None:
    server = SparkServer(engine_settings(state, spark_idle="6s"))  # as the test before started it
    client = start_python(_HOLD, engine_environment(state) | {"BACKFILL_ASSETS_SPARK_IDLE": "6s"})
    assert client.stdout is not None
    assert client.stdout.readline().strip() == "open"
    # Not earlier: on a busy machine a client takes longer to start than a server waits for one.
    pid = server.status().pid
    client.send_signal(signal.SIGSTOP)  # it can do nothing to keep its server
    time.sleep(15)
    assert server.status().state is ServerState.RUNNING
    assert server.status().pid == pid
    client.kill()
    client.communicate()
    wait_for(lambda: not server.folder.registration.exists(), "the idle server stops")
    assert server.status().state is ServerState.STOPPED
    assert not java_processes(state)
    assert not server.stop()


def test_a_server_that_works_without_a_connection_is_stopped_and_then_replaced(observed: Observed, state: Path) -> None:
    observed.injected("kill -9 of the client of an endless query")
    server = SparkServer(engine_settings(state))
    client = start_python(_ENDLESS, engine_environment(state))
    assert client.stdout is not None
    assert client.stdout.readline().strip() == "open"
    # Longer than planning takes, which is no work without a client yet.
    wait_for(lambda: all(works(server) for _ in range(round(3 * PATIENCE))), "Spark works on an endless query")
    working = _registered(state).server
    assert client.poll() is None
    client.kill()
    client.communicate()
    wait_for(lambda: not server.folder.registration.exists(), "the server is stopped")
    assert working.find() is None
    # Not for its idle time: it worked until then.
    assert "The server works without a client: stopping it." in server.folder.log.read_text(encoding="utf-8")
    with open_session(engine_settings(state), "after it") as spark:
        assert spark.range(7).count() == 7
    assert server.stop()
    observed.found("the server that worked on is stopped, the next session has another")


def test_a_server_that_cannot_start_shows_why_in_the_words_of_its_log(tmp_path: Path) -> None:
    server = SparkServer(engine_settings(tmp_path, spark_memory="9000000g"))
    with pytest.raises(ServerStartError, match=r"(?s)server\.log says:.*heap"):
        server.ensure()
    assert server.status().state is ServerState.STOPPED
    assert not server.folder.registration.exists()
    assert not server.folder.properties.exists()
