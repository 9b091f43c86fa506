from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.tables import dataset, layout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the published table."""
    return folder_of(layout(tmp_path).published_path("sales"))


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def table(tmp_path: Path, clock: FixedClock) -> PublishedTable:
    return PublishedTable(layout(tmp_path), dataset(), clock)
