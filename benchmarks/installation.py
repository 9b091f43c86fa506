"""A complete installation in a folder of its own: datasets, warm Spark server, Dagster daemon and webserver."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import dagster as dg
import psutil
import requests

import backfill_assets
from backfill_assets.application import Application
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import CONTRACT_TAG
from backfill_assets.orchestration.backfills import OVER, launch_backfill
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from benchmarks.processes import comes_true, living_with

ROOT: Final = Path(__file__).resolve().parents[1]
DATASET: Final = "order_items"
CORRECTION: Final[Mapping[str, str]] = {"cost": "-1.01% to -0.99%", "margin": "any"}
"""What `Installation.correct` changes: every line costs 1 % less, up to the rounding of four digits."""
_COST: Final = "s.quantity * c.ps_supplycost"
_START_SECONDS: Final = 180
_STOP_SECONDS: Final = 30
LOCATION: Final = "backfill_assets.definitions"
MODULE: Final = ("-m", LOCATION)
LAUNCH_RUN: Final = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}
"""
"""How Dagster's page launches a single run; `params` are those of `job_params`, for one."""


class BenchmarkError(BackfillError):
    """Raised when the benchmark cannot be run, or something in it failed."""


class Installation:
    """An installation with its state in `root`, reading deliveries from `sources`; this process also uses it.

    `variables` are added to the installation's environment; `configuration` is Dagster's.
    """

    def __init__(
        self, root: Path, sources: Path, variables: Mapping[str, str] | None = None,
        configuration: Path = ROOT / "dagster.yaml",
    ) -> None:  # fmt: skip
        self.root = root
        self.datasets = root / "datasets"
        self.webserver = ""
        self.processes: dict[str, psutil.Popen] = {}
        self._webserver_command: list[str] = []
        self._configuration = configuration
        state = root / "state"
        self._variables = {
            "DAGSTER_HOME": str(root / "home"),
            "BACKFILL_ASSETS_STATE": str(state),
            "BACKFILL_ASSETS_DAGSTER_STATE": str(state / "dagster"),
            "BACKFILL_ASSETS_WAREHOUSE": str(state / "warehouse"),
            "BACKFILL_ASSETS_SOURCES": str(sources),
            "BACKFILL_ASSETS_LEDGER_URL": "",
            "BACKFILL_ASSETS_SPARK_URL": "",
            "BACKFILL_ASSETS_SPARK_FOLDER": str(state),
            "BACKFILL_ASSETS_DATASETS": str(self.datasets),
            "BACKFILL_ASSETS_CHUNK": "",
            "PYTHONWARNINGS": "ignore",
            **(variables or {}),
        }

    def add_dataset(self, name: str, chunk: int | None) -> None:
        """Copy the dataset of order lines under another name, with `chunk` days per run, or as many as it says."""
        folder = self.datasets / name
        original = Path(backfill_assets.__file__).parent / "datasets" / DATASET
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("cases"))
        file = folder / "dataset.yaml"
        lines = []
        # The query of a golden source reads the dataset's rows by the dataset's name.
        text = file.read_text(encoding="utf-8").replace(f"FROM {DATASET} ", f"FROM {name} ")
        for line in text.splitlines():
            key = line.partition(":")[0]
            changed = {"name": f"name: {name}", **({"chunk_days": f"chunk_days: {chunk}"} if chunk else {})}
            lines.append(changed.get(key, line))
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def correct(self, name: str) -> None:
        """Change the fact model of a dataset, so that every row of it becomes another one; see `CORRECTION`.

        Raises:
            BenchmarkError: the model no longer contains the text to be corrected.
        """
        model = self.datasets / name / "fact.sql"
        before = model.read_text(encoding="utf-8")
        if _COST not in before:
            raise BenchmarkError(
                f"{model}: {_COST!r}, which the correction is about, is not in it; adapt the benchmark"
            )
        model.write_text(before.replace(_COST, f"{_COST} * 0.99"), encoding="utf-8")

    def start(self) -> None:
        """Start the Spark server, then the daemon, then the webserver: together the last two would race to create the schema.

        Raises:
            BenchmarkError: the webserver does not answer.
        """
        os.environ.update(self._variables)
        home = self.root / "home"
        home.mkdir(parents=True)
        Path(self._variables["BACKFILL_ASSETS_DAGSTER_STATE"]).mkdir(parents=True)
        shutil.copyfile(self._configuration, home / "dagster.yaml")
        SparkServer(self.settings).ensure()
        with self.instance():
            pass
        self.start_daemon()
        self._webserver_command, self.webserver = webserver_command()
        self.start_webserver()
        if not comes_true(lambda: answers(self.webserver), _START_SECONDS):
            raise BenchmarkError(f"waited {_START_SECONDS} s in vain for Dagster's webserver")

    def use_spark(self, url: str) -> None:
        """Use the Spark server at this URL; say so before anything is started."""
        self._variables["BACKFILL_ASSETS_SPARK_URL"] = url

    def start_daemon(self) -> None:
        """Start the daemon, for the first time or after it was killed."""
        self.spawn(daemon_command(), "daemon")

    def start_webserver(self) -> None:
        """Start the webserver, for the first time or, at the same URL, after it was killed."""
        self.spawn(self._webserver_command, "webserver")

    def stop(self) -> None:
        """End everything that was started, with all child processes, such as workers of a killed daemon."""
        end(list(self.processes.values()))
        server = SparkServer(self.settings)
        if server.folder.root.exists():
            registered = server.folder.read()
            kept = {ref.pid for ref in (registered.server, registered.watcher) if ref} if registered else set()
            _kill([process for process in self.living() if process.pid not in kept])
            server.stop()
        _kill(self.living())

    def living(self) -> list[psutil.Process]:
        """Processes with this installation's Dagster home in their environment, except this one."""
        return living_with("DAGSTER_HOME", str(self.root / "home"))

    @property
    def settings(self) -> Settings:
        """The settings of this installation, whether it was started or not."""
        return Settings.from_env({**os.environ, **self._variables})

    @property
    def application(self) -> Application:
        """The application as this process sees it now: the datasets are read again."""
        return Application.from_env()

    @contextlib.contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """The Dagster instance."""
        with dg.DagsterInstance.get() as instance:
            yield instance

    @property
    def spark(self) -> psutil.Process:
        """The Spark server's process."""
        registration = SparkServer(self.settings).folder.read()
        if registration is None:
            raise BenchmarkError(
                "the Spark server is gone; see server.log in its folder (BACKFILL_ASSETS_SPARK_FOLDER)"
            )
        return psutil.Process(registration.server.pid)

    @property
    def daemon(self) -> psutil.Process:
        """The Dagster daemon, below which all runs live."""
        if "daemon" not in self.processes:
            raise BenchmarkError("the Dagster daemon was not started; call start() first")
        return self.processes["daemon"]

    def backfill(
        self, dataset: str, days: Sequence[dt.date], seconds: float, expected: Mapping[str, str] | None = None
    ) -> str:
        """Launch a native backfill of all four layers, with the expected change, and wait for its end; returns its id.

        Raises:
            BenchmarkError: it does not succeed within `seconds`.
        """
        tags = {CONTRACT_TAG: json.dumps(expected)} if expected else {}
        request = BackfillRequest({dataset: tuple(Layer)}, tuple(days), tags=tags)
        backfill_id = launch_backfill(request, self.webserver)
        with self.instance() as instance:

            def status() -> str:
                found = instance.get_backfill(backfill_id)
                return found.status.value if found else "?"

            if not comes_true(lambda: status() in OVER, seconds):
                raise BenchmarkError(f"waited {seconds:.0f} s in vain for backfill {backfill_id} of {dataset}")
            if status() != "COMPLETED_SUCCESS":
                raise BenchmarkError(f"backfill {backfill_id} of {dataset} ended {status()}; state: {self.root}")
        return backfill_id

    def spawn(self, command: Sequence[str], name: str) -> psutil.Popen:
        """Start a program in this installation, its output in `<name>.log`; `stop` ends it."""
        # Not in the project's folder: Dagster would read the .env there and take the checkout's own home.
        with (self.root / f"{name}.log").open("ab") as out:
            process = psutil.Popen([*command], cwd=self.root, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        self.processes[name] = process
        return process


def end(processes: Sequence[psutil.Popen]) -> None:
    """End processes, the last first: all by SIGTERM, then by SIGKILL those that do not end. It waits for all."""
    for process in reversed(processes):
        # A process that was killed on purpose, and not started again, is gone.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in processes:
        try:
            process.wait(_STOP_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_STOP_SECONDS)


def job_params(job: str, day: dt.date) -> dict[str, object]:
    """The variables of `LAUNCH_RUN` that launch a job for a day, with only the job's own tags."""
    return {
        "selector": {"repositoryLocationName": LOCATION, "repositoryName": "__repository__", "jobName": job},
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": day.isoformat()}]},
    }


def daemon_command(code: Sequence[str] = MODULE) -> list[str]:
    """The command of a Dagster daemon that looks for backfills every two seconds; `code` says where the assets are."""
    return [sys.executable, "-m", "backfill_assets.orchestration.daemon", "run", *code]


def webserver_command(code: Sequence[str] = MODULE) -> tuple[list[str], str]:
    """The command of a Dagster webserver on a free port of this machine, and its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    program = str(Path(sys.executable).with_name("dagster-webserver"))
    return [program, "-h", "127.0.0.1", "-p", str(port), *code], f"http://127.0.0.1:{port}"


def answers(webserver: str) -> bool:
    """Whether a webserver answers."""
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"{webserver}/server_info", timeout=5).ok
    return False
