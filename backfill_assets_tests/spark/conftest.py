"""All tests of this folder run on one real Spark Connect server."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets_tests.engine import spark, spark_server, spark_settings

__all__ = ["spark", "spark_server", "spark_settings"]

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.spark)
