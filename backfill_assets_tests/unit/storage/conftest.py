from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.storage.bucket import bucket_of
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.location import Location
from backfill_assets_tests.harness.objects import ObjectStore, object_store

_HOMES = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A store, with the environment that reaches it."""
    with object_store(tmp_path_factory.mktemp("objects")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environ.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(params=["folder", "bucket"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty folder, and an empty place in a bucket."""
    if request.param == "folder":
        return OnDisk(tmp_path / "home")
    store = request.getfixturevalue("store")
    return bucket_of(f"{store.url}/home{next(_HOMES)}")
