"""A complete installation in a temporary folder: datasets, sources, a Dagster daemon and webserver, on the shared Spark server."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pyarrow.compute as pc
import requests
import yaml
from deltalake import DeltaTable
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.doctor.findings import Finding
from backfill_assets.orchestration.backfills import OVER, ended_as, launch_backfill
from backfill_assets.orchestration.launches import BACKFILL_TAG
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.shared import made_once, shared_folder
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.harness.without_dagster import publish
from benchmarks.installation import (
    LAUNCH_RUN,
    LOCATION,
    MODULE,
    answers,
    daemon_command,
    end,
    job_params,
    webserver_command,
)

ROOT = Path(__file__).resolve().parents[2]
DATASETS = Path(__file__).parent / "datasets"
COPIES: Mapping[str, str] = {
    "tickets_campaign": "tickets",
    "tickets_failed": "tickets",
    "tickets_beside": "tickets",
    "tickets_at_once": "tickets",
    "tickets_killed": "tickets",
    "tickets_behind": "tickets",
}
"""Datasets of the installation that a run shares: each file of tests has its own, because all may run at the same time."""
BEHIND = "tickets_behind"
"""The one of them that catches up, with a history of four days."""
# Run limits under which chunks of one backfill meet each other at the release.
MEETING: Mapping[str, Any] = {"max_concurrent_runs": 3, "tag_concurrency_limits": []}
Rows = Sequence[tuple[int, int]]


class Lab:
    """Drives an installation as a user would: delivers files, launches backfills, reads what is published."""

    def __init__(
        self,
        root: Path,
        spark_folder: Path,
        config: Path = ROOT / "dagster.yaml",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`config` is the instance's configuration; `variables` are added to the installation's environment."""
        self.root = root
        self.config = config
        self.home = root / "home"
        self.datasets = root / "datasets"
        self.environ = {
            "DAGSTER_HOME": str(self.home),
            "BACKFILL_ASSETS_STATE": str(root / "state"),
            "BACKFILL_ASSETS_DAGSTER_STATE": str(root / "state" / "dagster"),
            "BACKFILL_ASSETS_WAREHOUSE": str(root / "state" / "warehouse"),
            "BACKFILL_ASSETS_SPARK_FOLDER": str(spark_folder),
            "BACKFILL_ASSETS_DATASETS": str(self.datasets),
            "BACKFILL_ASSETS_LEASE": "8s",
            "PYTHONWARNINGS": "ignore",
            **(variables or {}),
        }
        self.url = ""
        self.module = MODULE
        self._workspace = root / "workspace.yaml"
        self._processes: dict[str, psutil.Popen] = {}

    def set_up(self, datasets: Mapping[str, str], run_limits: Mapping[str, Any] = MEETING) -> None:
        """Write the instance's configuration and the datasets.

        `datasets` maps the name of each dataset to the folder in `DATASETS` that it copies. Labs on the shared Spark server
        have one catalog: no two of them may use the same name, as each would replace the views of the other.
        `run_limits` replace those of the configuration.
        """
        for name, original in datasets.items():
            shutil.copytree(DATASETS / original, self.datasets / name)
            if name != original:
                self.edit_model(name, "dataset.yaml", original, name)
        self.home.mkdir(parents=True)
        (self.root / "state" / "dagster").mkdir(parents=True)
        # This process also opens the instance, and does not have the variables of the lab.
        config = _filled_in(yaml.safe_load(self.config.read_text(encoding="utf-8")), self.environ)
        config["concurrency"]["runs"].update(run_limits)
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def start(self) -> None:
        """Start the daemon, then the webserver: started together on a fresh home, both would race to create the schema."""
        with self.instance:
            pass
        self.start_daemon()
        self.start_webserver()

    def start_daemon(self) -> None:
        """Start the daemon, for the first time or after it was killed."""
        self._spawn(daemon_command(self._code), "daemon.log")

    def kill_daemon(self) -> None:
        """End the daemon by SIGKILL; running workers continue."""
        self._kill("daemon.log")

    def start_webserver(self) -> None:
        """Start the webserver, for the first time or after it was killed, and wait until it answers."""
        command, self.url = webserver_command(self._code)
        self._spawn(command, "webserver.log")
        wait_for(lambda: answers(self.url), "the webserver to answer", 180)

    def kill_webserver(self) -> None:
        """End the webserver by SIGKILL, whatever it is about to answer."""
        self._kill("webserver.log")

    def stop(self) -> None:
        """End webserver, daemon and code server."""
        end(list(self._processes.values()))

    @property
    def application(self) -> Application:
        """The application as this process sees it now: models are read again."""
        return Application(Settings.from_env(self.environ))

    @property
    def instance(self) -> dg.DagsterInstance:
        """The Dagster instance."""
        return dg.DagsterInstance.from_config(str(self.home))

    def deliver(self, dataset: str, day: dt.date, rows: Rows, number: int = 1) -> None:
        """Deliver a file of (ticket, amount) rows for a day; a higher number is a later delivery."""
        folder = self.root / "state" / "sources" / dataset / day.isoformat()
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number}.csv"
        lines = ["day,ticket,amount", *(f"{day},{ticket},{amount}" for ticket, amount in rows)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        delivered = dt.datetime.combine(day + dt.timedelta(days=number), dt.time(6), dt.UTC).timestamp()
        os.utime(file, (delivered, delivered))

    def launch(
        self,
        dataset: str,
        days: Sequence[dt.date],
        layers: Sequence[Layer] = tuple(Layer),
        tags: Mapping[str, str] | None = None,
        contract: object = None,
    ) -> str:
        """Launch a native backfill through the webserver; returns its id."""
        config = {"ops": {f"shadow__{dataset}": {"config": {"expected_change": contract}}}} if contract else {}
        request = BackfillRequest({dataset: layers}, tuple(days), tags=tags or {}, run_config=config)
        return launch_backfill(request, self.url)

    def launch_live(self, dataset: str, day: dt.date) -> str:
        """Launch the live job of a day through the webserver; returns the run's id."""
        answer = self.graphql(LAUNCH_RUN, params=job_params(f"live_{dataset}", day))["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def publish(self, dataset: str, days: Sequence[dt.date]) -> None:
        """Build and publish days without Dagster, which then does not count them as materialized."""
        application = self.application
        with application.session(f"before the tests of {dataset}") as spark:
            publish(application, spark, dataset, days)

    def finished(self, backfill_id: str, seconds: float = 420) -> str:
        """Wait for a backfill; returns its final status."""
        with self.instance as instance:

            def status() -> str:
                found = instance.get_backfill(backfill_id)
                return ended_as(instance, found) if found else "?"

            wait_for(lambda: status() in OVER, f"backfill {backfill_id} to end", seconds, every=0.5)
            return status()

    def runs(self, backfill_id: str) -> Sequence[dg.DagsterRun]:
        """All runs of a backfill."""
        with self.instance as instance:
            return instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}))

    def failures(self, value: str, tag: str = BACKFILL_TAG) -> str:
        """The messages of all failed steps of a backfill, or of the runs with another tag."""
        with self.instance as instance:
            return "\n".join(
                str(record.event_log_entry.dagster_event.step_failure_data.error_display_string)
                for run in instance.get_runs(dg.RunsFilter(tags={tag: value}))
                for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
                if record.event_log_entry.dagster_event is not None
            )

    def logs(self, lines: int = 60) -> str:
        """The last lines of the output of the lab's processes."""
        said = {log.name: log.read_text(encoding="utf-8").splitlines() for log in sorted(self.root.glob("*.log"))}
        return "\n".join(line for name, text in said.items() for line in (f"--- {name}", *text[-lines:]))

    def unit(self, backfill_id: str) -> Unit:
        """The unit that a backfill opened."""
        (found,) = [u for u in self.application.ledger.units() if u.opened_by == backfill_id]
        return found

    def published(self, dataset: str) -> dict[dt.date, dict[int, int]]:
        """What readers see: tickets and amounts by day; empty before the first release."""
        path = path_of(self.application.layout.published_path(dataset))
        if not DeltaTable.is_deltatable(str(path)):
            return {}
        return content(DeltaTable(path))

    def version(self, dataset: str) -> int:
        """Newest version of the published table."""
        return self.application.tables[dataset].version()

    def findings(self) -> list[Finding]:
        """What the doctor finds in this lab."""
        return [found for found in self.application.doctor.examine() if lasts(found.what)]

    def materialized(self, layer: str, dataset: str) -> set[str]:
        """Partitions that Dagster counts as materialized."""
        with self.instance as instance:
            return set(instance.get_materialized_partitions(dg.AssetKey([dataset, layer])))

    def backfill(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command `backfill` within this process: a process of its own takes seconds of CPU to load."""
        with contextlib.chdir(self.root):
            done = CliRunner().invoke(app, words, env={**self.environ, **environ})
        refused = str(done.exception) if isinstance(done.exception, BackfillError) else ""
        if done.exception and not refused and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr + refused)

    def run(self, *command: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one of the virtual environment's programs in this installation."""
        process = self.begun(*command, cwd=cwd, **environ)
        try:
            out, err = process.communicate()
        finally:
            process.kill()  # it has ended, unless the test ran out of time
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def begun(self, *command: str, cwd: Path | None = None, **environ: str) -> subprocess.Popen[str]:
        """The same, without waiting for it to end."""
        return subprocess.Popen(
            [str(Path(sys.executable).with_name(command[0])), *command[1:]],
            cwd=cwd or self.root,
            env={**os.environ, **self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Ask the webserver, as the UI does."""
        question = {"query": query, "variables": variables}
        answer = requests.post(f"{self.url}/graphql", json=question, timeout=60 * PATIENCE).json()
        assert "errors" not in answer, answer
        data: dict[str, Any] = answer["data"]
        return data

    def edit_model(self, dataset: str, file: str, old: str, new: str) -> None:
        """Change a text in a dataset's folder."""
        path = self.datasets / dataset / file
        text = path.read_text(encoding="utf-8")
        assert old in text, (path, old)
        path.write_text(text.replace(old, new), encoding="utf-8")

    @property
    def _code(self) -> Sequence[str]:
        return ("-w", str(self._workspace)) if self._workspace.exists() else self.module

    def start_code_server(self) -> None:
        """Start one code server for daemon and webserver, before them, as `dagster dev` does; else each has its own."""
        with self.instance:
            pass
        # The path of a socket must be short.
        socket = Path(tempfile.mkdtemp(dir=shared_folder()), "code.sock")
        command = [
            sys.executable,
            "-m",
            "dagster",
            "api",
            "grpc",
            "--socket",
            str(socket),
            "--location-name",
            LOCATION,
            *self.module,
        ]
        self._spawn(command, "code-server.log")
        server = {"socket": str(socket), "location_name": LOCATION}
        self._workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}), encoding="utf-8")
        wait_for(socket.exists, "the code server to listen", 180)

    def _kill(self, log: str) -> None:
        self._processes[log].kill()
        self._processes[log].wait()

    def _spawn(self, command: Sequence[str], log: str) -> None:
        # Not in the project's folder: Dagster would read the .env there and take the checkout's own home.
        environ = {**os.environ, **self.environ}
        with (self.root / log).open("ab") as out:
            self._processes[log] = psutil.Popen([*command], cwd=self.root, env=environ, stdout=out, stderr=out)


def content(table: DeltaTable) -> dict[dt.date, dict[int, int]]:
    """Tickets and amounts by day of one version of a published table."""
    found: dict[dt.date, dict[int, int]] = {}
    data = table.to_pyarrow_table(columns=["day", "ticket", "amount"])
    for row in data.take(pc.sort_indices(data, sort_keys=[("ticket", "ascending")])).to_pylist():
        found.setdefault(row["day"], {})[row["ticket"]] = row["amount"]
    return found


def shared_lab(spark_folder: Path) -> Lab:
    """The one lab of a run; the first process starts daemon and webserver, which end with the last test of Dagster."""
    lab = Lab(shared_folder() / "lab", spark_folder)

    def start() -> str:
        own = {name: name for name in ("invoices", "orders", "tickets", "trip_totals", "trips")}
        lab.set_up(own | COPIES)
        history = "end: 2024-01-04\nlive: {catch_up: {days_per_run: 2}}"
        lab.edit_model(BEHIND, "dataset.yaml", "end: 2024-12-31", history)
        lab.start_code_server()
        lab.start()
        return lab.url

    lab.url = made_once("lab", start)
    return lab


@contextlib.contextmanager
def started(lab: Lab) -> Iterator[None]:
    """The time in which the daemon and the webserver of a lab run."""
    try:
        lab.start()
        yield
    finally:
        lab.stop()


@contextlib.contextmanager
def started_alone(lab: Lab) -> Iterator[None]:
    """The time in which a lab with a Spark server of its own runs; the server stops at the end."""
    try:
        with started(lab):
            yield
    finally:
        SparkServer(lab.application.settings).stop()


def lasts(finding: str) -> bool:
    """Whether a finding of the doctor lasts while other tests release: the table of releases follows a moment later."""
    return not finding.startswith(f"the table {DATA_RELEASES} is not what the ledger says of")


def amounts(lab: Lab, dataset: str, days: Collection[dt.date]) -> dict[dt.date, int]:
    """Sum of the published amounts per day."""
    return {day: sum(rows.values()) for day, rows in lab.published(dataset).items() if day in set(days)}


def _filled_in(config: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(config, dict):
        if config.keys() == {"env"}:
            return environ[config["env"]]
        return {key: _filled_in(value, environ) for key, value in config.items()}
    return [_filled_in(item, environ) for item in config] if isinstance(config, list) else config
