"""Golden cases of every dataset folder, through the real pipeline: landed as files, staged and built by Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import backfill_assets
from backfill_assets.core.delivery import Delivery
from backfill_assets.dataset.deliveries import in_order, received
from backfill_assets.evidence.basis import PUBLISHED, UpstreamDays
from backfill_assets.evidence.known_deliveries import table_days, table_version
from backfill_assets.evidence.references import reference_fingerprints
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.land import land
from backfill_assets.pipeline.stage import stage
from backfill_assets.pipeline.tables import read_table
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import discover
from backfill_assets.testing.cases import GoldenCase, collect_cases, lay_out, lay_out_upstreams
from backfill_assets.testing.tables import differences
from backfill_assets_tests.observed import Observed

DATASETS = Path(backfill_assets.__file__).parent / "datasets"
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ATTEMPT = "_shadow/golden/1"


@pytest.mark.faults
@pytest.mark.parametrize("case", collect_cases(DATASETS), ids=lambda case: case.id)
def test_the_models_make_of_a_golden_case_what_it_expects(
    observed: Observed, spark: SparkSession, tmp_path: Path, case: GoldenCase
) -> None:
    observed.injected(f"the days of {case.id}: {', '.join(map(str, case.days))}")
    layout = Layout(OnDisk(tmp_path / "warehouse"), OnDisk(tmp_path / "sources"))
    lay_out(case, path_of(layout.sources))
    loaded, dataset = case.loaded, case.loaded.dataset
    delivered = {delivery.day for delivery in case.deliveries}
    lay_out_upstreams(case, layout)
    deliveries: tuple[Delivery, ...] = ()
    if delivered and not dataset.lands_files:
        deliveries = table_days(loaded, table_version(loaded, layout), delivered, {})
    elif delivered:
        deliveries = land(spark, loaded, layout, discover(loaded, layout, delivered), NOW)
        assert sum(d.corrupt_rows for d in deliveries) == 0
    if dataset.source is not None:
        force = received((), in_order(dataset, deliveries)) if dataset.lands_files else deliveries
        counts = stage(spark, loaded, layout, dataset.with_window(case.days), force)
        assert sum(c.outside_rows for c in counts.values()) == 0
    places = [UpstreamDays(u, {PUBLISHED: dataset.upstream_days(u.name, case.days)}) for u in case.upstreams.values()]
    prints = reference_fingerprints(loaded, layout, case.days)
    frames = Frames(spark, loaded, layout, ATTEMPT, case.days, places, prints)
    if case.expected_staging:
        staged = frames.staging(case.days).collect()
        found = differences(case.expected_staging, (row.asDict() for row in staged), dataset.key)
        assert not found, "\n".join(found)
    if case.expected:
        build_shadow(frames, Audit(NOW, "golden", loaded.code_version))
        built = read_table(spark, layout.shadow_path(loaded.name, ATTEMPT)).collect()
        found = differences(case.expected, (row.asDict() for row in built), dataset.key)
        assert not found, "\n".join(found)
    observed.found("what was staged and built is what the case expects")
