"""Launches in Dagster over two connected datasets: what is targeted, and that either the complete unit or nothing is released."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.asset_backfill import AssetBackfillData

from backfill_assets.core.unit import UnitState
from backfill_assets.orchestration.checks import again
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House, materialize

pytestmark = pytest.mark.slow

D1, D2, D3 = day(1), day(2), day(3)


def test_published_alone_is_refused_where_it_leaves_out_a_dataset_of_the_unit(house: House) -> None:
    unit = house.unit({D1: [1]})
    refused = materialize(house, "sales/published")
    assert f"unit {unit.id} also holds totals {D1}, and units are released completely" in refused
    assert house.world.ledger.unit(unit.id).state is UnitState.open
    assert materialize(house, "sales/published", "totals/published") == ""
    assert (house.world.content("sales"), house.world.content("totals")) == ({D1: [1]}, {D1: [1]})


def test_published_alone_is_refused_where_it_leaves_out_days_of_the_unit(house: House) -> None:
    house.unit({D1: [1], D2: [2]})
    refused = materialize(house, "sales/published", "totals/published")
    assert f"also holds sales {D2}; totals {D2}, and units are released completely" in refused
    assert house.world.content("sales") == {}


def test_days_before_a_dataset_begins_are_passed_by(house: House) -> None:
    house.rewrite("totals", "start: 2026-01-01", f"start: {D2}")
    unit = house.unit({D1: [1]}, names=("sales",))
    assert materialize(house, "totals/shadow") == ""
    assert materialize(house, "sales/published", "totals/published") == ""
    assert house.world.ledger.unit(unit.id).state is UnitState.published
    assert (house.world.content("sales"), house.world.content("totals")) == ({D1: [1]}, {})
    assert len(house.world.ledger.units()) == 1


def test_no_run_releases_a_draft(house: House) -> None:
    house.rewrite("totals", "publication: auto", "publication: auto\nstate: draft")
    layers = [f"sales/{layer}" for layer in ("raw", "staging", "shadow", "published")]
    refused = materialize(house, *layers, "totals/shadow")
    assert "this launch would release totals as well, which only `backfill publish` does for a draft" in refused
    assert house.world.ledger.units() == ()


def test_no_run_releases_a_draft_in_the_unit_that_it_joins(house: House) -> None:
    house.rewrite("totals", "publication: auto", "publication: auto\nstate: draft")
    unit = house.unit({D1: [1]})
    layers = [f"sales/{layer}" for layer in ("raw", "staging", "shadow", "published")]
    assert "this launch would release totals as well" in materialize(house, *layers)
    assert (house.world.ledger.unit(unit.id).state, house.world.content("totals")) == (UnitState.open, {})


def test_the_hint_what_to_materialize_names_the_layers_of_the_dataset(house: House) -> None:
    assert "Materialize shadow and published of totals for them together" in materialize(house, "totals/published")
    said = materialize(house, "sales/published")
    assert "Materialize raw, staging, shadow and published of sales for them together" in said


def test_a_failed_check_says_what_to_materialize_in_every_dataset_of_the_unit(house: House) -> None:
    unit = house.world.open_unit({"sales": [D1], "totals": [D1]})
    expected = f"raw, staging, shadow and published of sales; shadow and published of totals for {D1}"
    assert again(house.application, unit, {D1}) == expected
    alone = house.world.open_unit({"totals": [D2]})
    assert again(house.application, alone, {D2}) == f"shadow and published of totals for {D2}"


def test_a_look_back_adds_no_days_to_a_backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, lookback=2)
    graph = definitions_of(house.application).get_repository_def().asset_graph
    keys = [dg.AssetKey(["sales", layer]) for layer in ("raw", "staging", "shadow", "published")]
    keys += [dg.AssetKey(["totals", layer]) for layer in ("shadow", "published")]
    days = [str(d) for d in (D1, D2, D3)]
    now = dt.datetime(2026, 2, 1, tzinfo=dt.UTC).timestamp()
    with dg.DagsterInstance.ephemeral() as instance:
        data = AssetBackfillData.from_asset_partitions(graph, days, keys, instance, now, all_partitions=False)
    targeted = {key: sorted(data.target_subset.get_partitions_subset(key).get_partition_keys()) for key in keys}
    assert targeted == dict.fromkeys(keys, days)
    house.close()
