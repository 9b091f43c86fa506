"""Dagster gets the metrics of a dataset with each of its releases, once, as numbers; a command prints them all."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial

import dagster as dg
import pytest
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.evidence import Basis, DayEvidence
from backfill_assets.core.expected_change import Contract
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.orchestration.release_events import evaluations, figures, release_figures
from backfill_assets.pipeline.judge import judge
from backfill_assets.report.metrics import DatasetMetrics, SecondsPerPartition, Watermark
from backfill_assets_tests.harness.judged import DAY, GOOD, SAME, dataset, with_metric
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import side
from backfill_assets_tests.unit.ledger.samples import NOON
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock_of_the_house")]

D1, D2 = day(0), day(1)
NUMBERS = {
    "duplicate_keys_per_1000_rows", "mismatches", "watermark_lag_days", "watermark_lag_hours",
    "seconds_per_partition_p50", "seconds_per_partition_p95", "watermark",
}  # fmt: skip


def said(instance: dg.DagsterInstance, name: str) -> Mapping[str, Mapping[str, object]]:
    """What the materializations of a dataset's published partitions say, by partition."""
    records = instance.fetch_materializations(dg.AssetKey([name, "published"]), limit=100).records
    found = [record.asset_materialization for record in records]
    return {m.partition or "": {k: v.value for k, v in m.metadata.items()} for m in found if m is not None}


def test_the_run_that_releases_a_partition_says_how_its_dataset_does(house: House) -> None:
    house.unit({D1: [1]})
    job = definitions_of(house.application).resolve_implicit_global_asset_job_def()
    selection = [dg.AssetKey([name, "published"]) for name in ("sales", "totals")]
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(partition_key=str(D1), asset_selection=selection, instance=instance).success
        for name in ("sales", "totals"):
            metadata = said(instance, name)[str(D1)]
            assert NUMBERS | {"release", "unit"} <= set(metadata)
            assert (metadata["watermark"], metadata["mismatches"]) == (str(D1), 0)


def test_only_the_newest_day_of_a_release_carries_the_metrics(house: House) -> None:
    unit = house.unit({D1: [1], D2: [2]})
    evidence = house.application.publisher.evidence_hash(unit.id)
    job = definitions_of(house.application).resolve_job_def("unit_publish")
    config = {"ops": {"unit_publish_op": {"config": {"unit": unit.id, "evidence": evidence}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(run_config=config, instance=instance).success
        found = said(instance, "sales")
        assert not NUMBERS & set(found[str(D1)])
        assert set(found[str(D2)]) >= NUMBERS


def test_duplicates_of_a_live_release_are_those_of_its_own_days(house: House) -> None:
    world = house.world
    world.measure = partial(side, duplicate_keys=1)
    world.released({D1: [1]}, "sales")
    world.measure = side
    for live, duplicates in ((True, 0.0), (False, 500.0)):
        unit = world.open_unit({"sales": [D2]}, live=live)
        world.build(unit, "sales", {D2: [1]})
        found = release_figures(house.application, [world.publisher().release(unit.id)], logging.getLogger("test"))
        assert found["sales", D2]["duplicate_keys_per_1000_rows"] == dg.MetadataValue.float(duplicates)


HALVED = {"published_figure": 250.5, "found_figure": 125.25, "change_percent": -50.0}


@pytest.mark.parametrize(
    ("old", "new", "numbers"),
    [
        ("250.5", "125.25", HALVED),
        (None, "125.25", {"found_figure": 125.25}),
        ("0", "3", {"published_figure": 0.0, "found_figure": 3.0}),
        ("250.5", "NaN", {"published_figure": 250.5}),
        ("1E+400", None, {}),
    ],
)
def test_the_figures_of_a_metric_are_numbers_beside_their_exact_texts(
    old: str | None, new: str | None, numbers: dict[str, float]
) -> None:
    measured = with_metric("fare", Decimal(new) if new else None)
    published = replace(GOOD.published, metrics={"fare": Decimal(old) if old else None, "row_count": Decimal(100)})
    measured = replace(measured, published=published)
    verdicts = judge(dataset(), measured, Contract(), SAME)
    one = DayEvidence("u_1", 1, "trips", DAY, Basis("", "", "", ""), (), measured, verdicts, NOON, SAME)
    with dg.DagsterInstance.ephemeral() as instance:
        found = {e.check_name: e.metadata for e in evaluations(instance, "trips", [one])}
    drawn = {
        name: {k: v.value for k, v in said.items() if isinstance(v, dg.FloatMetadataValue)}
        for name, said in found.items()
    }
    assert drawn["change_fare"] == numbers
    assert drawn["unique_key"] == drawn["change_rows"] == drawn["reconcile_fare"] == {}
    assert found["change_fare"]["found"] == dg.MetadataValue.text(
        next(v.found for v in verdicts if v.check == "change_fare")
    )


def test_missing_figures_are_left_out_and_numbers_are_numbers() -> None:
    empty = DatasetMetrics("sales", 0, 0, 0, 0, 0, Watermark(None, None, None, None, None), None, None, (), ())
    assert figures(empty) == {"mismatches": dg.MetadataValue.int(0)}
    mark = Watermark(D2, D1, day(4), 3, 61.5)
    full = replace(
        empty, rows=2000, duplicate_keys=3, golden_mismatches=1, failed_checks=1, watermark=mark,
        seconds_per_partition=SecondsPerPartition(0.5, 2.0, 9),
    )  # fmt: skip
    assert figures(full) == {
        "duplicate_keys_per_1000_rows": dg.MetadataValue.float(1.5),
        "mismatches": dg.MetadataValue.int(2),
        "watermark_lag_days": dg.MetadataValue.int(3),
        "watermark_lag_hours": dg.MetadataValue.float(61.5),
        "seconds_per_partition_p50": dg.MetadataValue.float(0.5),
        "seconds_per_partition_p95": dg.MetadataValue.float(2.0),
        "watermark": dg.MetadataValue.text(str(D2)),
    }


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["metrics", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_prints_every_dataset_for_programs(house: House) -> None:
    unit = house.released({D1: [1], D2: [1]}, ("sales",))
    release = house.world.ledger.releases(unit=unit.id)[0].manifest.release
    found = json.loads(run("--json"))
    sales, totals = found["datasets"]
    assert (sales["dataset"], sales["published"], sales["rows"]) == ("sales", 2, 2)
    assert (sales["duplicate_keys_per_1000_rows"], sales["mismatches"]) == (0.0, 0)
    assert sales["watermark"] == {
        "newest": str(D2), "gap_free": str(D2), "due": "2026-01-10", "lag_days": 8, "lag_hours": sales["watermark"]["lag_hours"],
        "gaps": [],
    }  # fmt: skip
    assert sales["last_success"]["release"] == release
    assert [window["release"] for window in sales["rollback_windows"]] == [release]
    assert sales["seconds_per_partition"]["partitions"] == 2
    assert (totals["published"], totals["last_success"], found["campaigns"]) == (0, None, [])


def test_the_command_prints_tables_for_people(house: House) -> None:
    house.released({D1: [1], day(3): [1]}, ("sales",))
    text = " ".join(run().split())
    assert "2026-01-04 (without gaps: 2026-01-01)" in text
    assert "can be rolled back until" in text
    assert "6 days" in text
    assert "sales: 2 due days not published: 2026-01-02..2026-01-03" in text


def test_the_status_names_the_days_that_are_missing_and_no_day_that_was_released_without_a_row(house: House) -> None:
    house.released({day(0): [1], day(3): [1]}, ("sales",))
    house.released({day(1): []}, ("sales",))
    text = " ".join(CliRunner().invoke(app, ["status"]).output.split())
    assert "sales: due and not published: 2026-01-03 " in f"{text} "
    # Nothing has been delivered for that day yet.
    assert "fill gaps" not in text
    file = house.world.folder / "sources" / "x" / "2026-01-03.csv"
    file.parent.mkdir()
    file.write_text("id\n1\n", encoding="utf-8")
    text = " ".join(CliRunner().invoke(app, ["status"]).output.split())
    assert "fill gaps: backfill run sales totals 2026-01-03 " in f"{text} "
