"""All definitions of a code location, and its resources."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import dagster as dg
from dagster_deltalake import DeltaTableResource, LocalConfig, S3Config
from dagster_deltalake.config import ClientConfig
from dagster_pyspark import LazyPySparkResource

from backfill_assets.application import Application
from backfill_assets.core.errors import SettingsError, StorageError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.environment import require_one_environment, require_state_of
from backfill_assets.orchestration.assets import pipeline_assets, published_asset
from backfill_assets.orchestration.checks import shadow_checks
from backfill_assets.orchestration.jobs import operation_jobs, sweep_schedule
from backfill_assets.orchestration.release_events import upstream_current
from backfill_assets.orchestration.sensors import (
    catch_up,
    conduct_campaigns,
    dead_workers,
    late_deliveries,
    live_pipelines,
    stale_history,
)
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import client_environment


def warm_spark(application: Application) -> LazyPySparkResource:
    """A Spark session on the warm server, for assets of your own: `context.resources.pyspark.spark_session`.

    The server and the session start on first use.
    """

    # Dagster creates another object of this class for each run: values that are not config must belong to the class.
    class WarmSparkResource(LazyPySparkResource):
        """A Spark session on the warm server."""

        def _init_session(self) -> None:
            if self._spark_session is None:
                from backfill_assets.spark.server import SparkServer  # noqa: PLC0415 - a code server need not load Spark's client

                endpoint = SparkServer(application.settings).ensure()
                # Spark's own client reads the token from here; in the configuration it would show up in the UI.
                os.environ.update(client_environment(endpoint))
                session = LazyPySparkResource(spark_config={"spark.remote": endpoint.full_url})
                self._spark_session = session.spark_session

    return WarmSparkResource(spark_config={})


def published_table(application: Application, dataset: str) -> DeltaTableResource:
    """The published table of a dataset through delta-rs; it must have been released once before it can be loaded."""
    try:
        place = application.layout.leads_to(dataset)
    except StorageError:
        # A store that does not answer now must not keep all datasets from being loaded.
        place = application.layout.link(dataset)
    options = place.storage_options
    if options is None:
        return DeltaTableResource(url=str(place), storage_options=LocalConfig())
    return DeltaTableResource(
        url=str(place),
        # Without keys: delta-rs reads them from the environment.
        storage_options=S3Config(region=options["AWS_REGION"], endpoint=options.get("AWS_ENDPOINT_URL")),
        client_options=ClientConfig(allow_http=options.get("AWS_ALLOW_HTTP") == "true"),
    )


_log = logging.getLogger("backfill_assets")


def definitions_from(folder: Path | str | None) -> dg.Definitions:
    """Definitions of the datasets in `folder`, or in the one that the settings name.

    Raises:
        SettingsError: an environment variable cannot be used, or commands would look for datasets in another folder.
    """
    require_one_environment(os.environ)
    settings = Settings.from_env(os.environ)
    if folder is not None:
        datasets = Path(folder).expanduser().absolute()
        require_state_of(datasets, os.environ)
        if os.environ.get("BACKFILL_ASSETS_DATASETS") and settings.datasets.resolve() != datasets.resolve():
            raise SettingsError(
                f"build_definitions({str(folder)!r}) loads {datasets}, and BACKFILL_ASSETS_DATASETS = '{settings.datasets}' is "
                "where commands look for datasets; make both the same, or unset the variable"
            )
        settings = settings.model_copy(update={"datasets": datasets})
    return definitions_of(Application(settings))


def definitions_of(application: Application) -> dg.Definitions:
    """The definitions of an application; warns of each dataset folder with problems."""
    for problem in application.catalog.problems:
        _log.warning("dataset not loaded: %s", problem)
    datasets = (dataset_definitions(loaded, application) for loaded in application.datasets.values())
    return dg.Definitions.merge(*datasets, location_definitions(application))


def dataset_definitions(loaded: LoadedDataset, application: Application) -> dg.Definitions:
    """Assets, checks and the published table of one dataset."""
    checks = [shadow_checks(loaded, application)]
    checks += [upstream_current(loaded, application)] if loaded.dataset.upstream else []
    name = loaded.dataset.name
    return dg.Definitions(
        assets=[*pipeline_assets(loaded, application), published_asset(loaded, application)],
        asset_checks=checks,
        resources={f"{name}_table": published_table(application, name)},
    )


def location_definitions(application: Application) -> dg.Definitions:
    """What a code location has once, for all its datasets: jobs, schedules, sensors, the Spark session."""
    pipelines = live_pipelines(application)
    return dg.Definitions(
        jobs=[*operation_jobs(application), *(pipeline.job for pipeline in pipelines)],
        schedules=[
            *(pipeline.schedule for pipeline in pipelines if pipeline.schedule is not None),
            sweep_schedule(),
        ],
        sensors=[
            dead_workers(application),
            conduct_campaigns(application),
            catch_up(application),
            late_deliveries(application, pipelines),
            stale_history(application),
        ],
        resources={"pyspark": warm_spark(application)},
        # One process per run: a chunk's steps share imports and connections, and a cancelled run ends completely.
        executor=dg.in_process_executor,
    )
