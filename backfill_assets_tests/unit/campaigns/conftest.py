from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.harness.specifications import specification, with_canaries
from backfill_assets_tests.harness.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[World]:
    """A world with two datasets."""
    made = World(tmp_path, ("orders", "sales"))
    yield made
    made.close()


@pytest.fixture
def campaigns(tmp_path: Path) -> Iterator[World]:
    """A world with campaigns."""
    made = World(tmp_path, asked=specification())
    yield made
    made.close()


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[World]:
    """A world whose campaign is planned, with canaries."""
    made = World(tmp_path, asked=with_canaries())
    made.plan()
    yield made
    made.close()
