"""What `make test` leaves to `make test-all`, which runs each night: the one place that says so. Works as a pytest plugin.

Each entry names a file, or a test of a file, and the cases of it that `make test` runs all the same. They are witnesses: one of
each way in which the others may end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

_FOLDER: Final = Path(__file__).parent
NIGHTLY: Final[Mapping[str, tuple[str, ...]]] = {
    "dagster/test_benchmark.py::test_a_small_benchmark_accounts_for_all_of_its_time_and_leaves_nothing_behind": (),
    "dagster/test_campaign_faults.py": (),
    "dagster/test_launched_twice.py": (),
    "dagster/test_postgres_deaths.py": (),
    "dagster/test_server_deaths.py": (),
    "dagster/test_worker_deaths.py": (),
}
ON_POSTGRES: Final[frozenset[str]] = frozenset()
"""Tests of the ledger's contract that `make test` runs on Postgres as well as on SQLite; `make test-all` runs all of them there."""


def is_nightly(test: str, case: str = "") -> bool:
    """Whether `make test` leaves out a case of a test, given as `file::test` below this folder; without cases, the test."""
    file, _, name = test.partition("::")
    if file.startswith("unit/ledger/") and "postgres_url" in case.split("-"):
        return name not in ON_POSTGRES
    kept = NIGHTLY.get(test, NIGHTLY.get(file))
    return kept is not None and case not in kept


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.path.relative_to(_FOLDER).as_posix()
        callspec = getattr(item, "callspec", None)
        name = getattr(item, "originalname", None) or item.name
        if is_nightly(f"{file}::{name}", callspec.id if callspec else ""):
            item.add_marker(pytest.mark.nightly)
