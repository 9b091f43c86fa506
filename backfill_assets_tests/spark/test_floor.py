"""The benchmark's floor is a fair one: the bare job makes the very rows that the pipeline makes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import backfill_assets
from backfill_assets.core.days import day_range
from backfill_assets.dataset.deliveries import received
from backfill_assets.dataset.load import load_folder
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.land import land
from backfill_assets.pipeline.stage import stage
from backfill_assets.pipeline.tables import read_table
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import discover
from benchmarks.floor import run_floor
from benchmarks.installation import DATASET, BenchmarkError
from demo.orders import generate_orders, land_orders

DATASETS = Path(backfill_assets.__file__).parent / "datasets"
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAYS = day_range(dt.date(1995, 1, 1), dt.date(1995, 1, 8))
SCALE = 0.01  # at a tenth of this scale, ten suppliers are too few: TPC-H then has a part twice from one supplier
ATTEMPT = "_shadow/floor/1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(OnDisk(tmp_path / "warehouse"), OnDisk(tmp_path / "sources"))
    land_orders(path_of(layout.sources), generate_orders(tmp_path, SCALE), DAYS[0], DAYS[-1])
    return layout


def test_the_bare_job_makes_the_rows_of_the_pipeline(spark: SparkSession, layout: Layout) -> None:
    loaded = load_folder(DATASETS).datasets[DATASET]
    landed = received((), land(spark, loaded, layout, discover(loaded, layout, DAYS), NOW))
    stage(spark, loaded, layout, DAYS, landed)
    build_shadow(Frames(spark, loaded, layout, ATTEMPT, DAYS), Audit(NOW, "floor", loaded.code_version))
    pipeline = read_table(spark, layout.shadow_path(loaded.name, ATTEMPT)).select(*loaded.dataset.columns)

    target = path_of(layout.warehouse) / "floor"
    spans = run_floor(spark, loaded, layout, DAYS, target)
    bare = read_table(spark, OnDisk(target / "fact")).select(*loaded.dataset.columns)
    assert pipeline.count() == bare.count() > 0
    assert pipeline.exceptAll(bare).count() == 0
    assert [span.stage for span in spans] == ["raw", "staging", "shadow", "checks"]
    assert all(span.seconds > 0 for span in spans)
    assert {file.name for file in target.iterdir()} == {"raw", "staging", "fact"}


def test_the_bare_jobs_checks_notice_a_line_without_a_cost(spark: SparkSession, layout: Layout) -> None:
    loaded = load_folder(DATASETS).datasets[DATASET]
    costs = path_of(layout.sources) / "reference" / "partsupp.parquet"
    pq.write_table(pq.read_table(costs).slice(0, 10), costs)
    with pytest.raises(BenchmarkError, match=r"fail on 1995-01-0\d: .*bad_cost"):
        run_floor(spark, loaded, layout, DAYS, path_of(layout.warehouse) / "floor")
