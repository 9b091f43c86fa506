"""All tests of this folder run on one real Spark Connect server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.engine import spark, spark_server, spark_settings

__all__ = ["spark", "spark_server", "spark_settings"]

_FOLDER = Path(__file__).parent


@pytest.fixture(scope="package", autouse=True)
def without_dagster() -> Iterator[None]:
    """Releases are made without Dagster here: the doctor would ask an instance of the environment, which knows nothing of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAGSTER_HOME", raising=False)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.spark)
