"""The road's tests work in a folder of their own on the shared server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backfill_assets_tests.spark.road.kit import Kit


@pytest.fixture
def kit(spark: SparkSession, tmp_path: Path) -> Kit:
    """An empty warehouse with the dataset `trips`."""
    return Kit(spark, tmp_path)
