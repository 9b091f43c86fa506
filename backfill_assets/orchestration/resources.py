"""Dagster resources for assets downstream of the road: Spark on the warm server, and the published tables without Spark."""

from __future__ import annotations

import os

from dagster_deltalake import DeltaTableResource, LocalConfig
from dagster_pyspark import LazyPySparkResource

from backfill_assets.application import Application
from backfill_assets.spark.registration import client_environment
from backfill_assets.spark.server import SparkServer


def warm_spark(application: Application) -> LazyPySparkResource:
    """A Spark session on the warm server, for assets of your own: `context.resources.pyspark.spark_session`.

    Neither the server nor a session is started before somebody asks for it.
    """

    # Dagster makes another object of this class for each run: what is no config has to belong to the class.
    class WarmSparkResource(LazyPySparkResource):
        """A Spark session on the warm server."""

        def _init_session(self) -> None:
            if self._spark_session is None:
                endpoint = SparkServer(application.settings).ensure()
                # Spark's own client reads the token from here; in the configuration it would show up in the UI.
                os.environ.update(client_environment(endpoint))
                session = LazyPySparkResource(spark_config={"spark.remote": endpoint.full_url})
                self._spark_session = session.spark_session

    return WarmSparkResource(spark_config={})


def published_table(application: Application, dataset: str) -> DeltaTableResource:
    """The published table of a dataset through delta-rs; it must have been released once before it can be loaded."""
    return DeltaTableResource(url=str(application.layout.published_path(dataset)), storage_options=LocalConfig())
