"""A dataset on its whole road, from its files to its release, on the server of the test session."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.domain.contract import parse_contract
from backfill_assets.domain.evidence import DayEvidence
from backfill_assets.domain.execution import Execution
from backfill_assets.domain.measurement import metric_names
from backfill_assets.domain.units import Launch, ReleaseMode, Unit
from backfill_assets.domain.work import AttemptState
from backfill_assets.lakehouse.engine.session import open_session
from backfill_assets.settings import Settings

DATASETS = Path(__file__).parent / "datasets"
LEASE = dt.timedelta(minutes=10)


class OnTheTestServer(Application):
    """An installation with tables of its own; its sessions are on the shared server."""

    def __init__(self, settings: Settings, server: Settings) -> None:
        super().__init__(settings)
        self.server = server

    def session(self, tag: str, execution: Execution | None = None) -> AbstractContextManager[SparkSession]:  # noqa: ARG002
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
        """The installation with the dataset as it is kept here, but for its `fact` or `staging` model."""
        folder = self.root / "datasets" / self.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(DATASETS / self.name, folder)
        for layer, text in replaced.items():
            (folder / f"{layer}.sql").write_text(text)
        settings = Settings.from_env(
            {"BACKFILL_ASSETS_STATE": str(self.root), "BACKFILL_ASSETS_DATASETS": str(folder.parent)}
        )
        application = OnTheTestServer(settings, self.server)
        assert not application.catalog.faults, application.catalog.faults
        return application

    def recompute(self, application: Application, days: Sequence[dt.date], expected: object = None) -> Unit:
        """Land, build and judge the days in a unit of their own, which stays open."""
        dataset = application.dataset(self.name)
        contract = parse_contract(expected, metric_names(dataset), dataset=self.name, columns=dataset.compared)
        unit_id, at = application.ids.new("u"), application.clock.now()
        launch = Launch({self.name: frozenset(days)}, f"launch_{unit_id}")
        proposal = Unit(unit_id, launch.opened_by, at, "ada", {self.name: tuple(days)}, ReleaseMode.manual, contract)
        unit = application.ledger.assign(launch, proposal)
        application.road.land(self.spark, self.name, tuple(days))
        attempt = application.ledger.start_attempt(unit.id, self.name, days, unit.id, LEASE)
        application.road.build(self.spark, unit, attempt)
        application.road.validate(self.spark, unit, attempt)
        application.ledger.end_attempt(attempt.number, AttemptState.done)
        return unit

    def evidence(self, application: Application, unit: Unit) -> Mapping[dt.date, DayEvidence]:
        return {day: one for (_, day), one in application.ledger.evidence(unit.id, self.name).items()}

    def publish(self, days: Sequence[dt.date]) -> None:
        """Readers see these days as the dataset that is kept here makes them."""
        application = self.model()
        application.publisher.release(self.recompute(application, days).id)
