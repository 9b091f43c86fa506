"""The disk is full while Spark writes raw, staging or a shadow: refused with a message, table unchanged, the work can continue."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backfill_assets.core.errors import StorageError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.opening import is_table
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.pipeline.stage import stage
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.full_disk import TMPFS, full, small_disk
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.spark.pipeline.kit import D1, D2, NOW, Kit, commits, values

pytestmark = pytest.mark.faults

STEPS = ("raw", "staging", "shadow")
Step = Callable[[dt.date], object]


def steps(kit: Kit, loaded: LoadedDataset) -> dict[str, Step]:
    """The pipeline of one day, step by step."""
    audit = Audit(NOW, "u_1", loaded.code_version)
    return {
        "raw": lambda day: kit.land(loaded, day),
        "staging": lambda day: stage(kit.spark, loaded, kit.layout, (day,), kit.in_force(loaded)),
        "shadow": lambda day: build_shadow(kit.frames(loaded, day), audit),
    }


def place(kit: Kit, loaded: LoadedDataset, step: str) -> Path:
    """Folder of the table that a step writes; for staging the one above it."""
    return {
        "raw": path_of(kit.layout.raw_path(loaded.name)),
        "staging": path_of(kit.layout.staging_path(loaded.name)),
        "shadow": kit.shadow_folder(loaded),
    }[step]


def tables(folder: Path) -> list[Path]:
    return [log.parent for log in folder.rglob("_delta_log") if is_table(OnDisk(log.parent))]


def rows(kit: Kit, folder: Path) -> list[tuple[object, ...]]:
    """The rows of the only table there; none if there is no table."""
    found: list[tuple[object, ...]] = []
    for table in tables(folder):
        frame = kit.table(table)
        if "_line" in frame.columns:  # raw keeps the lines of the files
            cells = "split(cast(_line AS string), ',')"
            frame = frame.selectExpr(f"cast({cells}[0] AS date) AS day", f"cast({cells}[1] AS long) AS id")
        found += values(frame, "day", "id")
    return found


def written(folder: Path, day: dt.date) -> list[Path]:
    """Data files of a day that have any content, whether or not a table lists them."""
    return [file for file in folder.rglob(f"*day={day}/*.parquet") if file.stat().st_size]


@pytest.mark.parametrize("step", STEPS)
def test_the_disk_is_full_before_the_first_day_is_written(
    spark: SparkSession, spark_server: SparkServer, observed: Observed, step: str
) -> None:
    with small_disk() as (disk, kind):
        kit = Kit(spark, disk)
        loaded = kit.dataset()
        kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,b,2,1")
        work, folder = steps(kit, loaded), place(kit, loaded, step)
        for before in STEPS[: STEPS.index(step)]:
            work[before](D1)
        observed.injected(f"{kind} before Spark writes {step}")
        with full(disk, kind, spark_server.status().pid):
            refused = refusal(work[step], D1, folder)
        assert tables(folder) == []
        work[step](D1)
        assert rows(kit, folder) == [(D1, 1), (D1, 2)]
        observed.found(refused.removeprefix(f"{disk}/"), "no table", "said again, it writes each row once")


@pytest.mark.parametrize("step", STEPS)
def test_the_disk_has_room_for_the_data_of_a_day_and_none_for_its_commit(
    spark: SparkSession, spark_server: SparkServer, observed: Observed, step: str
) -> None:
    with small_disk() as (disk, kind):
        kit = Kit(spark, disk)
        loaded = kit.dataset()
        for day in (D1, D2):
            kit.deliver(day, f"{day},1,a,1,1", f"{day},2,b,2,1")
        work, folder = steps(kit, loaded), place(kit, loaded, step)
        for before in STEPS[: STEPS.index(step)]:
            work[before](D1)
            work[before](D2)
        work[step](D1)
        (table,) = tables(folder)
        when = "once Spark has written the files, before their commit" if kind == TMPFS else "before Spark writes more"
        observed.injected(f"{kind}, {when}: {step}")
        # A page for the data file of the day and one for its checksum.
        with full(disk, kind, spark_server.status().pid, pages=2):
            refused = refusal(work[step], D2, folder)
            assert len(written(folder, D2)) == (1 if kind == TMPFS else 0)
        assert (commits(table), rows(kit, folder)) == (1, [(D1, 1), (D1, 2)])
        work[step](D2)
        assert (commits(table), rows(kit, folder)) == (2, [(D1, 1), (D1, 2), (D2, 1), (D2, 2)])
        observed.found(
            refused.removeprefix(f"{disk}/"), "the table is what it was", "said again, it writes each row once"
        )


def test_the_disk_is_full_while_spark_is_busy_with_anything_else(
    spark_settings: Settings, spark_server: SparkServer, observed: Observed
) -> None:
    with small_disk() as (disk, kind):
        observed.injected(f"{kind} while Spark writes for a step that says nothing of it itself")
        with (
            pytest.raises(StorageError, match=r"^u_1 evidence: Spark cannot write \(.+\); make room") as refused,
            full(disk, kind, spark_server.status().pid),
            open_session(spark_settings, "u_1 evidence") as spark,
        ):
            spark.range(100_000).write.parquet(str(disk / "any"))
        observed.found(refused.value)


def refusal(write: Step, day: dt.date, folder: Path) -> str:
    with pytest.raises(StorageError, match=r"Spark cannot write \(.+\); make room on the disk of") as refused:
        write(day)
    assert str(refused.value).startswith(str(folder))
    return str(refused.value)
