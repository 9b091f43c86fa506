"""A dataset on its complete pipeline, from its files to its release, on the server of the test session."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.campaign.execution import Execution
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.unit import Unit
from backfill_assets.settings import Settings
from backfill_assets.spark.session import open_session
from backfill_assets_tests.harness.without_dagster import built, judged, publish

DATASETS = Path(__file__).parent / "datasets"


def settings_of(root: Path) -> Settings:
    """Settings of an installation with its state in a folder, and its datasets below it."""
    return Settings.from_env({"BACKFILL_ASSETS_STATE": str(root), "BACKFILL_ASSETS_DATASETS": str(root / "datasets")})


class OnTheTestServer(Application):
    """An installation with tables of its own; its sessions are on the shared server."""

    def __init__(self, settings: Settings, server: Settings) -> None:
        super().__init__(settings)
        self.server = server

    def session(
        self,
        tag: str,
        execution: Execution | None = None,  # noqa: ARG002
        say: Callable[[str], object] = lambda _: None,  # noqa: ARG002
    ) -> AbstractContextManager[SparkSession]:
        return open_session(self.server, tag)


@dataclass(frozen=True)
class Workplace:
    """One dataset in a folder of its own; `root` holds its sources, tables and ledger."""

    root: Path
    spark: SparkSession
    server: Settings
    name: str

    @property
    def sources(self) -> Path:
        return self.root / "sources"

    def model(self, **replaced: str) -> Application:
        """The installation with the dataset as it is in this folder, except for its `fact` or `staging` model."""
        folder = self.root / "datasets" / self.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(DATASETS / self.name, folder)
        for layer, text in replaced.items():
            (folder / f"{layer}.sql").write_text(text)
        application = OnTheTestServer(settings_of(self.root), self.server)
        assert not application.catalog.problems, application.catalog.problems
        return application

    def recompute(self, application: Application, days: Sequence[dt.date], expected: object = None) -> Unit:
        """Land, build and judge the days in a unit of their own, which stays open."""
        return built(application, self.spark, self.name, days, expected)

    def evidence(self, application: Application, unit: Unit) -> Mapping[dt.date, DayEvidence]:
        return judged(application, unit, self.name)

    def publish(self, days: Sequence[dt.date]) -> None:
        """Readers see these days as the dataset of this folder makes them."""
        publish(self.model(), self.spark, self.name, days)
