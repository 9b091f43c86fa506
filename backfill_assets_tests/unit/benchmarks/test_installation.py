"""An installation stops the processes that it has started, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from benchmarks.installation import Installation
from benchmarks.soak.actions import Fault
from benchmarks.soak.processes import Processes, is_worker

SLEEPER = [sys.executable, "-S", "-c", "import sys, time; print(1, flush=True); time.sleep(60)"]


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "one", tmp_path / "sources")
    made.root.mkdir()
    yield made
    made.stop()


def sleeper(stack: ExitStack, home: Path) -> subprocess.Popen[bytes]:
    """A process with a Dagster home; it has started when this returns."""
    environ = {**os.environ, "DAGSTER_HOME": str(home)}
    process = stack.enter_context(subprocess.Popen(SLEEPER, env=environ, stdout=subprocess.PIPE))
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_killed_daemon_left_running_is_stopped_but_no_other_installation(
    tmp_path: Path, installation: Installation
) -> None:
    with ExitStack() as stack:
        left = sleeper(stack, installation.root / "home")
        other = sleeper(stack, tmp_path / "other" / "home")
        installation.stop()
        assert (psutil.pid_exists(left.pid), psutil.pid_exists(other.pid)) == (False, True)


def test_an_installation_that_never_started_can_be_stopped(installation: Installation) -> None:
    installation.stop()
    assert not (installation.root / "state").exists()


def test_a_killed_and_a_running_installation_are_both_stopped(installation: Installation) -> None:
    dead, alive = installation.spawn(SLEEPER, "dead"), installation.spawn(SLEEPER, "alive")
    dead.kill()
    dead.wait()
    installation.stop()
    assert not alive.is_running() or alive.status() == psutil.STATUS_ZOMBIE


def test_a_run_worker_is_what_a_code_server_spawns(installation: Installation) -> None:
    worker = installation.spawn([*SLEEPER, "from multiprocessing.spawn import spawn_main"], "worker")
    other = installation.spawn(SLEEPER, "other")
    assert (is_worker(worker), is_worker(other)) == (True, False)
    worker.kill()
    worker.wait()
    assert not is_worker(worker)


def test_a_process_that_ends_by_itself_is_reported(installation: Installation) -> None:
    processes = Processes(installation, "takings")
    installation.spawn(SLEEPER, "daemon")
    assert processes.fallen() == []
    installation.processes["daemon"].kill()
    installation.processes["daemon"].wait()
    assert processes.fallen() == ["daemon ended by itself; see daemon.log"]


def test_a_command_that_is_killed_ends_by_that_signal(installation: Installation) -> None:
    processes = Processes(installation, "takings")
    assert processes.kill(Fault.command, 0) == ""
    done = processes.run([sys.executable, "-S", "-c", "print(1)"])
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert processes.kill(Fault.command, 0) == ""
