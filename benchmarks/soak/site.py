"""The installation under a soak: deliveries, launches, commands as operators give them, and processes to kill."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.layers import Layer
from backfill_assets.orchestration.backfills import LaunchError, graphql, launch_backfill
from backfill_assets.storage.location import Location
from backfill_assets.system import SystemClock
from benchmarks.cluster import SparkCluster
from benchmarks.installation import LAUNCH_RUN, ROOT, BenchmarkError, Installation, job_params
from benchmarks.soak.processes import Processes
from benchmarks.soak.readers import table_of
from benchmarks.specifications import document, write_document

DATASET: Final = "takings"
ROWS: Final = 200
"""Tickets of a day: rows of each delivery."""


@dataclass(frozen=True)
class Said:
    """How a command ended (negative: by a signal), and its output."""

    code: int
    out: str = ""
    errors: str = ""

    @property
    def crashed(self) -> bool:
        """Whether its user saw a stack trace instead of a sentence."""
        return "Traceback (most recent call last)" in self.out + self.errors

    @property
    def last(self) -> str:
        """Its last line; that of the refusal if it was refused."""
        return (self.errors or self.out or f"ended with {self.code} and said nothing").splitlines()[-1]


class Site:
    """An installation with the dataset of the soak, and its readers.

    `variables` say what is kept elsewhere than in `root`, such as the warehouse; with `workers`, Spark is a cluster of so many.
    """

    def __init__(
        self, root: Path, variables: Mapping[str, str] | None = None, workers: int = 0,
        configuration: Path = ROOT / "dagster.yaml",
    ) -> None:  # fmt: skip
        own = {
            "BACKFILL_ASSETS_LEASE": "10s",
            "BACKFILL_ASSETS_GATE_WAIT": "10s",
            "BACKFILL_ASSETS_SPARK_MEMORY": "1g",
            # The readers are modules of this package, which is not installed, and start in another folder.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            **(variables or {}),
        }
        self.root = root
        self.clock = SystemClock()
        self.installation = Installation(root, root / "sources", own, configuration)
        self.deliveries: dict[dt.date, list[dt.datetime]] = {}
        self._cluster = SparkCluster(root / "spark") if workers else None
        self._workers = workers
        self.processes = Processes(self.installation, DATASET, self._cluster)

    def start(self) -> None:
        """Set the dataset up and start everything but the readers."""
        shutil.copytree(Path(__file__).parent / "dataset", self.installation.datasets / DATASET)
        if self._cluster is not None:
            self.installation.use_spark(self._cluster.start(self.installation.settings, self._workers))
        self.installation.start()
        self._refuse_the_work_of_others()
        os.environ["BACKFILL_ASSETS_WEBSERVER"] = self.installation.webserver

    def stop(self) -> None:
        """End everything."""
        try:
            self.installation.stop()
        finally:
            if self._cluster is not None:
                self._cluster.stop()

    def _refuse_the_work_of_others(self) -> None:
        # A soak discards, publishes and rolls back whatever it finds.
        application = self.installation.application
        delivered = application.settings.sources / DATASET
        if (
            application.ledger.units()
            or application.ledger.campaigns()
            or delivered.is_there()
            or delivered.is_folder()
        ):
            raise BenchmarkError(f"a soak needs an empty ledger, and sources without {DATASET}; name others")

    @property
    def table(self) -> Location:
        """The place of the published table."""
        return table_of(DATASET, self.installation.settings)

    def deliver(self, day: dt.date) -> None:
        """Deliver all tickets of a day, once more if it was delivered before."""
        number = len(self.deliveries.get(day, ())) + 1
        lines = ["day,ticket,amount", *(f"{day},{ticket},{number}" for ticket in range(ROWS))]
        self.deliveries.setdefault(day, []).append(self.clock.now())
        (self.installation.settings.sources / f"{DATASET}/{day}/{number:04}.csv").write("\n".join(lines) + "\n")

    def launch_live(self, day: dt.date) -> None:
        """Launch the live job of a day.

        Raises:
            LaunchError: Dagster does not accept it.
        """
        params = job_params(f"live_{DATASET}", day)
        answer = graphql(LAUNCH_RUN, {"params": params}, self.installation.webserver)["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise LaunchError(f"Dagster did not take the live run of {day}: {answer.get('message', answer)}")

    def launch_backfill(self, days: Sequence[dt.date]) -> str:
        """Launch a native backfill of all layers; returns its id."""
        request = BackfillRequest({DATASET: tuple(Layer)}, tuple(days))
        return launch_backfill(request, self.installation.webserver)

    def command(self, *words: str) -> Said:
        """Give a command as an operator does.

        Raises:
            subprocess.TimeoutExpired: it hangs.
        """
        program = str(Path(sys.executable).with_name("backfill"))
        done = self.processes.run([program, *words])
        return Said(done.returncode, done.stdout.strip(), done.stderr.strip())

    def write_specification(self, name: str, days: Sequence[dt.date]) -> str:
        """Write the specification of a campaign over some days; returns its path for the command."""
        execution = {"partitions_per_batch": 3, "max_concurrency": 2, "canary": {"partitions": 1}}
        return write_document(
            self.root, document(name, DATASET, days, execution=execution, rollback={"keep_for": "14d"})
        )
