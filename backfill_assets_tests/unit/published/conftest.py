from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.lakehouse.published import DeltaPublishedTable
from backfill_assets_tests.unit.published.tables import TestClock, dataset, layout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the published table."""
    return layout(tmp_path).published_path("sales")


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def table(tmp_path: Path, clock: TestClock) -> DeltaPublishedTable:
    return DeltaPublishedTable(layout(tmp_path), dataset(), clock)
