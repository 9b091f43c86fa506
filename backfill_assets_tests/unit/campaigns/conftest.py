from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.unit.campaigns.campaign_world import CampaignWorld
from backfill_assets_tests.unit.campaigns.site import Site
from backfill_assets_tests.unit.campaigns.world import World


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
def campaigns(tmp_path: Path) -> Iterator[CampaignWorld]:
    """A world with campaigns."""
    made = CampaignWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with a campaign that is planned."""
    made = Site(tmp_path)
    made.plan()
    yield made
    made.world.close()
