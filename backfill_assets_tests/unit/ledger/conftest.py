"""Every test of the ledger's contract runs on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets_tests.harness import ledgers, postgres
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.samples import NOON


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def migrated() -> bool:
    """Whether the ledger of the URLs below exists, and is empty; tests about opening ledgers say no."""
    return True


@pytest.fixture
def sqlite_url(tmp_path: Path, *, migrated: bool) -> str:
    path = tmp_path / "state" / "ledger.db"
    if migrated:
        ledgers.copy_empty_ledger(path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_cluster: str, *, migrated: bool) -> Iterator[str]:
    create = ledgers.empty_postgres_ledger if migrated else ledgers.new_database
    yield create(postgres_cluster, "of_one_test")
    ledgers.drop_database(postgres_cluster, "of_one_test")


@pytest.fixture(params=["sqlite_url", pytest.param("postgres_url", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of the test's own ledger."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def ledger(url: str, clock: FixedClock) -> Iterator[Ledger]:
    ledger = open_ledger(url, clock)
    yield ledger
    ledger.close()
