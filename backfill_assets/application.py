"""Settings become adapters and use cases, wired once and opened when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, assert_never

from pyspark.sql import SparkSession

from backfill_assets.campaign.execution import Execution, is_of_speed
from backfill_assets.control.approve import Approving
from backfill_assets.control.catch_up import CatchUps
from backfill_assets.control.planner import Planner
from backfill_assets.control.publication import CampaignGuard, CampaignRelease
from backfill_assets.control.sign_off import SignOff
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.releases_table import ReleasesTable
from backfill_assets.delta.stored_tables import StoredTables
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.doctor import Doctor
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.evidence.keep import Keeping
from backfill_assets.evidence.late_deliveries import LateDeliveries
from backfill_assets.evidence.relaunches import Relaunches
from backfill_assets.evidence.stale import Staleness
from backfill_assets.ledger.open import Ledger, LedgerLogin, ledger_clock, open_ledger
from backfill_assets.notices.notifier import AfterRelease, Notifier
from backfill_assets.notices.webhook import Webhook
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.pipeline.deliveries import DeliveryCommands
from backfill_assets.pipeline.stage import vacuum_staging
from backfill_assets.pipeline.tables import SparkFingerprints
from backfill_assets.pipeline.views import SparkConsumers, SparkPreviews, SparkSandboxes, ensure_views
from backfill_assets.proof.certificate import Prover
from backfill_assets.proof.history_diff import HistoryDiffs
from backfill_assets.proof.recompute import SparkRecomputations
from backfill_assets.proof.stale_sample import StaleSamples
from backfill_assets.release.adopt import Adoption
from backfill_assets.release.publish import Publisher
from backfill_assets.release.readers import DataReleases, History, Preview, TimeTravel
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.release.rollback import Rollback
from backfill_assets.release.sweep import GRACE, Sweep
from backfill_assets.release.watch import WatchRelease
from backfill_assets.report.metrics import MetricsNow
from backfill_assets.report.review import Reviews
from backfill_assets.settings import IdentitySource, Settings
from backfill_assets.storage.layout import Layout, ReportFolder
from backfill_assets.storage.owner import require_owner, take_warehouse
from backfill_assets.system import Identity, SystemClock, SystemUser, TimedIds
from backfill_assets.warehouse import Warehouse, tables_of

if TYPE_CHECKING:
    from backfill_assets.report.page import Reports


def identity_of(settings: Settings) -> Identity:
    """The source of identities that `BACKFILL_ASSETS_IDENTITY` names.

    Raises:
        LedgerError: it is the ledger's login, and the ledger is a SQLite file.
    """
    match settings.identity:
        case IdentitySource.os:
            return SystemUser()
        case IdentitySource.ledger:
            return LedgerLogin(settings.ledger_url)
        case _:
            assert_never(settings.identity)


_ALL_DAYS = 1_000_000  # a chunk longer than any history


class Application:
    """All use cases that Dagster and the CLI need; the ledger and Spark are opened on first use.

    Attributes:
        settings: locations and engine settings.
        catalog: the datasets that could be loaded, and the problems of those that could not.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog = load_folder(settings.datasets)
        self.clock = ledger_clock(settings.ledger_url, SystemClock())
        self.ids = TimedIds(self.clock)
        self.identity = identity_of(settings)
        self.layout = Layout(settings.warehouse, settings.sources)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Application:
        """The application with the settings of the environment.

        Raises:
            SettingsError: a variable cannot be used.
        """
        return cls(Settings.from_env(os.environ if environ is None else environ))

    @property
    def datasets(self) -> Mapping[str, LoadedDataset]:
        """The loaded datasets by name, as they are seen now."""
        return self.catalog.seen_at(self.clock.now)

    def dataset(self, name: str) -> Dataset:
        """One dataset.

        Raises:
            DatasetError: there is no dataset of that name, or its folder has problems.
        """
        return self.catalog.dataset(name).dataset

    @cached_property
    def _fingerprints(self) -> SparkFingerprints:
        return SparkFingerprints(self.session, self.datasets, self.layout)

    @cached_property
    def ledger(self) -> Ledger:
        """The control state."""
        return open_ledger(self.settings.ledger_url, self.clock)

    @cached_property
    def tables(self) -> Mapping[str, PublishedTable]:
        """The published table of every dataset."""
        return tables_of(self.catalog, self.layout, self.clock)

    @cached_property
    def warehouse(self) -> Warehouse:
        """What every use case works on; opens the ledger.

        Raises:
            LayoutError: the tables belong to another ledger.
        """
        require_owner(self.layout, self.ledger)
        return Warehouse(self.catalog, self.layout, self.tables, self.ledger, self.clock, self.ids, self.identity)

    @cached_property
    def basis(self) -> CurrentBasis:
        """The current basis of evidence."""
        return CurrentBasis(self.warehouse, self._fingerprints)

    @cached_property
    def staleness(self) -> Staleness:
        """Finds published days that would come out differently today, and why."""
        return Staleness(self.warehouse, self.basis)

    @cached_property
    def keeping(self) -> Keeping:
        """Records who keeps published days as they are although the code changed."""
        return Keeping(self.warehouse, self.staleness)

    @cached_property
    def stale_samples(self) -> StaleSamples:
        """Computes some stale days again, and compares them with what is published."""
        return StaleSamples(self.warehouse, self._recomputing)

    @cached_property
    def relaunches(self) -> Relaunches:
        """Plans which days to launch again."""
        return Relaunches(self.warehouse)

    @cached_property
    def late_deliveries(self) -> LateDeliveries:
        """Finds source files and rows that published days were not built from, and gaps."""
        return LateDeliveries(self.warehouse, self._fingerprints)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Lands, stages, builds and validates."""
        return Pipeline(self.warehouse, self.basis)

    @cached_property
    def delivery_commands(self) -> DeliveryCommands:
        """Shows deliveries, withdraws and restores them, reads them again."""
        return DeliveryCommands(self.pipeline)

    @cached_property
    def publisher(self) -> Publisher:
        """Releases units."""
        return Publisher(self.warehouse, self._fingerprints, self.basis, guard=self.guard, after=self.after_release)

    @cached_property
    def catch_ups(self) -> CatchUps:
        """Shows how far datasets have caught up; it knows no runs, so a day on which a live run works may count as next."""
        return CatchUps(self.warehouse, self.publisher, tuple)

    @cached_property
    def guard(self) -> CampaignGuard:
        """Refuses a release of a campaign without approval or outside its publish window."""
        return CampaignGuard(self.warehouse, self.settings.roles)

    @cached_property
    def notifier(self) -> Notifier:
        """Sends the notices that campaigns ask for."""
        return Notifier(self.warehouse, Webhook(os.environ).send)

    @cached_property
    def data_releases(self) -> DataReleases:
        """The table of releases that SQL reads."""
        return DataReleases(self.ledger, ReleasesTable(self.layout))

    @cached_property
    def after_release(self) -> AfterRelease:
        """The follow-up of a release: journal, notice, table of releases."""
        return AfterRelease(self.warehouse, self.data_releases, self.notifier.notify, self.preview.tidy)

    @cached_property
    def approving(self) -> Approving:
        """Records who has approved what."""
        return Approving(self.warehouse, self.publisher, self.settings.roles)

    @cached_property
    def campaign_release(self) -> CampaignRelease:
        """Publishes campaigns."""
        return CampaignRelease(self.warehouse, self.publisher, self.guard)

    @cached_property
    def prover(self) -> Prover:
        """Issues certificates that the same inputs give the same rows."""
        return Prover(self.warehouse, self.basis, self._recomputing)

    @cached_property
    def history_diffs(self) -> HistoryDiffs:
        """Compares models of other commits with what is published."""
        return HistoryDiffs(self.warehouse, partial(SparkRecomputations, self.session, layout=self.layout))

    def _recomputing(self, execution: Execution | None) -> SparkRecomputations:
        return SparkRecomputations(lambda tag: self.session(tag, execution), self.datasets, self.layout)

    @cached_property
    def sign_off(self) -> SignOff:
        """Closes campaigns and cleans up after them."""
        return SignOff(self.warehouse)

    @cached_property
    def history(self) -> History:
        """Shows who changed a day, when, why, from what to what."""
        return History(self.ledger)

    @cached_property
    def metrics(self) -> MetricsNow:
        """Collects the metrics of datasets and campaigns."""
        return MetricsNow(self.warehouse, self.settings.roles or None)

    @cached_property
    def reviews(self) -> Reviews:
        """Shows everything that speaks for and against a unit."""
        return Reviews(
            self.warehouse,
            self.publisher,
            self.settings.cost_per_hour,
            self.guard.obstacles,
            self.settings.roles or None,
        )

    @cached_property
    def watch_release(self) -> WatchRelease:
        """Compares consumers' figures around a release."""
        queries = SparkConsumers(self.session, self.datasets, self.layout)
        return WatchRelease(self.warehouse, queries, self.notifier.notify)

    @cached_property
    def preview(self) -> Preview:
        """Shows datasets as they would be after a release."""
        return Preview(self.ledger, SparkPreviews(self.session, self.datasets, self.layout))

    @cached_property
    def sandboxes(self) -> SparkSandboxes:
        """Copies published days for people who try a model on them."""
        return SparkSandboxes(self.session, self.datasets, self.layout)

    @cached_property
    def rollback(self) -> Rollback:
        """Undoes releases."""
        return Rollback(self.warehouse, after=self.after_release)

    @cached_property
    def adoption(self) -> Adoption:
        """Adopts tables that were there before, and gives them back."""
        return Adoption(self.warehouse, after=self.after_release)

    def sweep(self, grace: timedelta = GRACE) -> Sweep:
        """Removes files that are no longer needed and are older than `grace`."""
        return Sweep(self.warehouse, grace)

    def vacuum_staging(self) -> Mapping[str, int]:
        """Remove old files of staging, which the sweep leaves to Spark; returns the number of files by dataset."""
        opened = partial(self.session, self.ids.new("vacuum"))
        sourced = {name: loaded for name, loaded in self.datasets.items() if loaded.dataset.source is not None}
        return {name: vacuum_staging(opened, loaded, self.layout, self.ledger) for name, loaded in sourced.items()}

    @cached_property
    def reconcile(self) -> Reconcile:
        """Makes the ledger agree with the Delta logs."""
        return Reconcile(self.warehouse, self.after_release.repairing())

    @cached_property
    def doctor(self) -> Doctor:
        """Compares ledger, Delta logs, manifests, files and reports."""
        return Doctor(
            self.warehouse, StoredTables(self.layout), ReportFolder(self.settings.reports), self.data_releases
        )

    @cached_property
    def time_travel(self) -> TimeTravel:
        """Finds the version that a release made."""
        return TimeTravel(self.warehouse)

    @cached_property
    def planner(self) -> Planner:
        """Turns specifications into frozen plans."""
        chunk = _ALL_DAYS if self.settings.chunk == "all" else self.settings.chunk
        return Planner(self.warehouse, self.basis, self.settings.cost_per_hour, chunk_days=chunk)

    @contextmanager
    def session(
        self, tag: str, execution: Execution | None = None, say: Callable[[str], object] = lambda _: None
    ) -> Iterator[SparkSession]:
        """A separate session, see `open_session`; `execution` holds what a campaign asks of it.

        Raises:
            SettingsError: the campaign names a compute that this process has no URL for.
            LayoutError: the warehouse belongs to another ledger.
            StorageError: its place does not keep two writers apart, or cannot be reached, also by a worker of a remote server.
        """
        # Before the first write into it.
        take_warehouse(self.layout, self.ledger)
        # Imported here: Spark's client takes longer to import than most commands take to run, and few need it.
        from backfill_assets.spark.session import open_session  # noqa: PLC0415
        from backfill_assets.spark.workers import require_workers_see  # noqa: PLC0415

        settings = self.settings if execution is None else self.settings.of_campaign(execution)
        wanted = execution.spark if execution is not None else {}
        conf = {name: value for name, value in wanted.items() if is_of_speed(name)}
        with open_session(settings, tag, conf, say) as spark:
            if settings.spark_url is not None:
                require_workers_see(spark, self.layout.warehouse)
            yield spark

    def refresh_views(self) -> None:
        """Recreate the published views in the Spark catalog, and drop previews of finished units."""
        with self.session(self.ids.new("views")) as spark:
            ensure_views(spark, tuple(self.datasets.values()), self.layout)
        self.preview.tidy()


@dataclass(frozen=True)
class UnitReport:
    """The report of a unit: the sentence of its verdict, the path of its page, and its address if the reports are served."""

    sentence: str = ""
    page: str = ""
    address: str = ""


def report_unit(
    application: Application, unit: Unit, warn: Callable[[str], object], *, again: bool = False
) -> UnitReport:
    """Write the report of a unit, and say where it is; a live unit of one day gets only the sentence: there are too many.

    If a release is reported `again`, the page that was written after it stays.
    """
    sentence = page = address = ""
    with errors_as_warnings(unit, warn):
        review = application.reviews.of(unit.id)
        sentence = review.judgement.sentence
        if not unit.live or len(unit.days) > 1:
            reports = reports_of(application)
            written = (reports.written_since(review) if again else None) or reports.write(review)
            page, address = str(written), reports.address(written)
    return UnitReport(sentence, page, address)


def reports_of(application: Application) -> Reports:
    """The reports folder of the settings."""
    # Imported here: Altair and the chart scripts take longer to load than most steps take to run.
    from backfill_assets.report.page import Reports  # noqa: PLC0415

    return Reports(application.settings.reports, application.settings.reports_url)


@contextmanager
def errors_as_warnings(unit: Unit, warn: Callable[[str], object]) -> Iterator[None]:
    """Turn every error within into a warning: no run, release or command fails because its report cannot be written."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # see above
        warn(f"unit {unit.id}: its report could not be written ({error!r}); try: backfill report {unit.id}")
