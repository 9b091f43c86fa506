"""A house of two datasets; a Dagster instance whose events are stored in batches, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.system import SystemClock
from backfill_assets_tests.unit.orchestration.house import House
from event_lab import batched_sqlite, open_instance


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    found = House(tmp_path, monkeypatch)
    yield found
    found.close()


@pytest.fixture
def clock_of_the_house(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every opened application has the time of the house."""
    monkeypatch.setattr(SystemClock, "now", lambda _: house.world.clock.now())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with open_instance(home, batched_sqlite(home)) as opened:
        yield opened
