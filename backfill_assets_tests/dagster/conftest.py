"""One installation with daemon and webserver for the whole run; each file of tests works on a dataset of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.lab import Lab, shared_lab
from backfill_assets_tests.engine import spark_server

__all__ = ["lab", "spark_server"]

_FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def lab(spark_server: SparkServer) -> Lab:
    return shared_lab(spark_server.folder.root.parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.orchestration)
