"""The disk does not confirm a write of Spark: it does not count, and the same call completes it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from backfill_assets.core.errors import StorageError
from backfill_assets.pipeline.stage import stage
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.spark.pipeline.kit import D1, Kit, commits, values

pytestmark = pytest.mark.faults


def unconfirmed(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("step", ["raw", "staging"])
def test_a_write_of_spark_that_the_disk_does_not_confirm_is_completed_by_the_same_call(
    kit: Kit, observed: Observed, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,b,2,1")
    if step == "staging":
        kit.land(loaded, D1)

    def write() -> None:
        if step == "raw":
            kit.land(loaded, D1)
        else:
            stage(kit.spark, loaded, kit.layout, (D1,), kit.in_force(loaded))

    home = path_of(kit.layout.raw_path(loaded.name)) if step == "raw" else path_of(kit.layout.staging_path(loaded.name))
    observed.injected(f"an input/output error when {step} is brought to the disk")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", unconfirmed)
        with pytest.raises(StorageError, match=r"the disk does not confirm .+\(Input/output error\); check") as refused:
            write()
    assert str(refused.value).startswith(str(home))

    synced: set[Path] = set()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))
        write()
    (log,) = home.rglob("_delta_log")
    # It is written once more: nobody knows whether what is there is complete.
    assert commits(log.parent) == 2
    rows = kit.raw(loaded) if step == "raw" else kit.table(log.parent)
    assert values(rows, "day", "id") == [(D1, 1), (D1, 2)]
    assert {log, log.parent, *log.glob("*.json")} <= synced
    assert any(path.suffix == ".parquet" for path in synced)
    observed.found(str(refused.value).removeprefix(f"{kit.root}/"), "said again, it is on the disk, each row once")
