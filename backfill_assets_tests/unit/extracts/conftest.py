from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from backfill_assets_tests.harness import postgres
from backfill_assets_tests.unit.extracts.kit import URL, shop_database, url_of


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


@pytest.fixture
def shop(cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A database of its own, whose URL is in the environment."""
    with shop_database(cluster) as engine:
        monkeypatch.setenv(URL, url_of(engine))
        yield engine
