"""One installation with daemon and webserver for the whole session; each test works on days of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.lakehouse.engine.server import SparkServer
from backfill_assets_tests.dagster.lab import Lab, running_lab
from backfill_assets_tests.engine import spark_server

__all__ = ["lab", "spark_server"]

_FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def lab(spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), spark_server.folder.root.parent) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.orchestration)
