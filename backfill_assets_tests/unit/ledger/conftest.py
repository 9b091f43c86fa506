"""Every test of the ledger's contract runs on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from backfill_assets.ledger import SqlLedger, open_ledger
from backfill_assets_tests.unit.ledger import postgres
from backfill_assets_tests.unit.ledger.samples import HandClock


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/ledger.db"


@pytest.fixture
def postgres_url(postgres_cluster: str) -> str:
    engine = create_engine(postgres_cluster)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    engine.dispose()
    return postgres_cluster


@pytest.fixture(params=["sqlite_url", pytest.param("postgres_url", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a ledger that does not exist yet."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def ledger(url: str, clock: HandClock) -> Iterator[SqlLedger]:
    ledger = open_ledger(url, clock)
    yield ledger
    ledger.close()
