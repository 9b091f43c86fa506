"""The processes of a soak: readers and commands, what is killed, and what should not grow."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from backfill_assets.spark.server import SparkServer
from benchmarks.cluster import SparkCluster
from benchmarks.installation import Installation, end
from benchmarks.soak.actions import Fault
from benchmarks.soak.readers import KINDS

SPARK: Final = "Spark server"
_WAIT_SECONDS: Final = 10
_COMMAND_SECONDS: Final = 300


class Processes:
    """What runs on an installation: started by the soak, or by what the soak has started."""

    def __init__(self, installation: Installation, dataset: str, cluster: SparkCluster | None = None) -> None:
        self._installation = installation
        self._dataset = dataset
        self._cluster = cluster
        self._readers: dict[str, psutil.Popen] = {}
        self._command: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()

    @property
    def absent(self) -> frozenset[Fault]:
        """What this installation does not have."""
        return frozenset({Fault.executor} if self._cluster is None else ())

    def start_reader(self, kind: str) -> None:
        """Start a reader, for the first time or after it was killed."""
        command = [sys.executable, "-m", "benchmarks.soak.readers", kind, self._dataset, str(self.polls(kind))]
        with self._starting:
            self._readers[kind] = self._installation.spawn(command, f"reader_{kind}")

    def fallen(self) -> list[str]:
        """Daemon, webserver or readers that have ended and were not killed."""
        ended = [name for name, process in self._installation.processes.items() if process.poll() is not None]
        return [f"{name} ended by itself; see {name}.log" for name in ended]

    def stop_readers(self) -> None:
        """End all readers."""
        end(list(self._readers.values()))

    def polls(self, kind: str) -> Path:
        """The file with the polls of a reader."""
        return self._installation.root / f"polls_{kind}.jsonl"

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends or is killed.

        Raises:
            subprocess.TimeoutExpired: it hangs; it is ended.
        """
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=self._installation.root, stdout=pipe, stderr=pipe, text=True) as process:
            self._command = process
            try:
                out, err = process.communicate(timeout=_COMMAND_SECONDS)
            except BaseException:
                # It hangs, or the soak is interrupted.
                process.kill()
                raise
            finally:
                self._command = None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def kill(self, fault: Fault, number: int) -> str:
        """Kill one process of that kind by SIGKILL, and restart it if nothing else does; returns what was killed, if any."""
        if fault is Fault.command:
            return self._kill_command()
        found = self._victims(fault)
        if not found:
            return ""
        process = found[number % len(found)]
        # It may end by itself just then, and be a zombie.
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(_WAIT_SECONDS)
        match fault:
            case Fault.daemon:
                self._installation.start_daemon()
            case Fault.webserver:
                self._installation.start_webserver()
            case Fault.reader:
                self.start_reader(next(kind for kind, reader in self._readers.items() if reader.pid == process.pid))
            case Fault.spark if self._cluster is not None:
                self._cluster.restart_server()
            case _:
                # Workers, executors and an embedded Spark server restart by themselves.
                pass
        return f"{fault.value} {process.pid}"

    def long_lived(self) -> Mapping[str, psutil.Process]:
        """The processes that should not grow, by role."""
        installation = self._installation
        found = {Fault.daemon.value: installation.daemon, Fault.webserver.value: installation.processes["webserver"]}
        found |= {f"reader ({kind})": process for kind, process in self._readers.items()}
        return found | {"the soak itself": psutil.Process()} | dict(self._spark()) | dict(self._code_servers())

    def _kill_command(self) -> str:
        command = self._command
        if command is None or command.poll() is not None:
            return ""
        # Its caller waits for it.
        command.kill()
        return f"{Fault.command.value} {' '.join(command.args[1:3]) if isinstance(command.args, list) else ''}"

    def _victims(self, fault: Fault) -> list[psutil.Process]:
        match fault:
            case Fault.worker:
                return [process for process in self._installation.living() if is_worker(process)]
            case Fault.spark:
                return (
                    [self._cluster.server()] if self._cluster is not None else [process for _, process in self._spark()]
                )
            case Fault.executor:
                return self._cluster.executors() if self._cluster is not None else []
            case Fault.daemon:
                return [self._installation.daemon]
            case Fault.webserver:
                return [self._installation.processes["webserver"]]
            case _:
                return [self._readers[kind] for kind in KINDS]

    def _spark(self) -> Iterator[tuple[str, psutil.Process]]:
        registration = SparkServer(self._installation.settings).folder.read()
        if registration is not None and (process := registration.server.find()) is not None:
            yield SPARK, process

    def _code_servers(self) -> Iterator[tuple[str, psutil.Process]]:
        processes = self._installation.processes
        for parent in ("webserver", "daemon"):
            with contextlib.suppress(psutil.Error):
                for child in processes[parent].children():
                    if "grpc" in " ".join(child.cmdline()):
                        yield f"code server of the {parent}", child


def is_worker(process: psutil.Process) -> bool:
    """Whether a process of an installation executes a run: its code servers spawn one for each."""
    with contextlib.suppress(psutil.Error):
        return "spawn_main" in " ".join(process.cmdline())
    return False
