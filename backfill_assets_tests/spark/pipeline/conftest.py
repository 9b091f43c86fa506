"""The pipeline's tests work in a folder of their own on the shared server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import engine_settings
from backfill_assets_tests.spark.pipeline.kit import Kit


@pytest.fixture
def kit(spark: SparkSession, tmp_path: Path) -> Kit:
    """An empty warehouse with the dataset `trips`."""
    return Kit(spark, tmp_path)


@pytest.fixture(scope="module")
def module_kit(
    spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Kit]:
    """A warehouse that all tests of a module share: a module's own fixtures fill it, its tests only read."""
    settings = engine_settings(spark_server.folder.root.parent)
    with open_session(settings, request.node.nodeid) as session:
        yield Kit(session, tmp_path_factory.mktemp("module"))
