"""Runs tests with their tables in a bucket: `pytest -p backfill_assets_tests.on_a_store …`, as `make lane-store` does.

What the tests of a run keep in folders lies in those of one store, and their tables are read and written only through it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from backfill_assets_tests.harness.objects import BUCKET, ROOT_VARIABLE, object_store

_STORES: Final = pytest.StashKey[ExitStack]()
_OF_FOLDERS: Final = (
    "::test_a_table_on_a_mounted_object_store_is_refused",
    "::test_a_table_that_the_dataset_itself_reads_is_not_adopted",
    "::test_files_of_a_killed_writer_are_removed_once_no_process_can_be_using_them",
    "::test_a_log_that_cannot_be_opened_is_named",
    "::test_two_hosts_publish_the_same_units_on_one_postgres_ledger_each_once",
)
"""What needs a folder: a mounted one, a source in one, an empty one, one in place of a file; or a store that two hosts reach."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start a store before the folders of tests are made; processes of pytest-xdist get its address with the environment."""
    if hasattr(config, "workerinput"):
        return
    running = config.stash[_STORES] = ExitStack()
    folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tables-on-a-store-"))).resolve()
    store = running.enter_context(object_store(folder))
    os.environ.update({**store.environ, ROOT_VARIABLE: str(folder)})
    config.option.basetemp = str(folder / BUCKET / "tests")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the store."""
    if _STORES in config.stash:
        config.stash[_STORES].close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only folders have."""
    left = [item for item in items if any(name in item.nodeid for name in _OF_FOLDERS)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
