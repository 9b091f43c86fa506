from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backfill_assets_tests.harness.specifications import specification, with_canaries
from backfill_assets_tests.harness.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as made:
        yield made


@pytest.fixture
def two(tmp_path: Path) -> Iterator[World]:
    """A world with two datasets."""
    with closing(World(tmp_path, ("orders", "sales"))) as made:
        yield made


@pytest.fixture
def campaigns(tmp_path: Path) -> Iterator[World]:
    """A world with campaigns."""
    with closing(World(tmp_path, asked=specification())) as made:
        yield made


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[World]:
    """A world whose campaign is planned, with canaries."""
    with closing(World(tmp_path, asked=with_canaries())) as made:
        made.plan()
        yield made
