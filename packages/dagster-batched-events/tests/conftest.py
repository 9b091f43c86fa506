"""A Dagster instance whose events are stored in batches, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from event_lab import batched_sqlite, open_instance


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with open_instance(home, batched_sqlite(home)) as opened:
        yield opened
