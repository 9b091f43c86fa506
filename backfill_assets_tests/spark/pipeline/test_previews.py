"""A preview shows the unit's shadows on the unit's days, and the published table on all other days."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from decimal import Decimal
from typing import NoReturn

import pytest

from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.views import SparkPreviews
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, FOLDER, Kit, values

SECOND = "_shadow/u_1/2"


@pytest.fixture
def named(kit: Kit) -> Iterator[LoadedDataset]:
    """A dataset whose name no other test uses: all share one catalog."""
    loaded = kit.dataset(name="trips_" + kit.root.name[-20:].lower().replace("-", "_"))
    yield loaded
    previews_of(kit, loaded).drop([loaded.name])


def previews_of(kit: Kit, loaded: LoadedDataset) -> SparkPreviews:
    return SparkPreviews(lambda _tag: nullcontext(kit.spark), {loaded.name: loaded}, kit.layout)


def shown(kit: Kit, name: str) -> list[tuple[object, ...]]:
    return values(kit.spark.table(f"preview.{name}"), "day", "id", "amount")


def test_a_preview_mixes_published_days_and_those_of_several_attempts(kit: Kit, named: LoadedDataset) -> None:
    kit.publish(named, kit.rows(*((day, 1, "a", 1.0, Decimal(1)) for day in (D1, D2, D3))).drop("fee"))
    for day, folder in ((D2, FOLDER), (D3, SECOND)):
        kit.put_shadow(named, kit.rows((day, 1, "a", float(day.day), Decimal(1))), folder)
    name = previews_of(kit, named).show(named.name, "u_1", [D2, D3], {FOLDER: [D2], SECOND: [D3]})
    assert name == f"preview.{named.name}"
    assert shown(kit, named.name) == [(D1, 1, 1.0), (D2, 1, float(D2.day)), (D3, 1, float(D3.day))]
    view = kit.spark.table(name)
    assert view.columns == list(named.dataset.columns)
    # Columns that the published table does not have yet are null there, of the declared type.
    assert [row["fee"] is None for row in view.orderBy("day").collect()] == [True, False, False]
    assert view.schema["fee"].dataType.simpleString() == "decimal(12,2)"


def test_a_day_without_data_is_empty_in_the_preview(kit: Kit, named: LoadedDataset) -> None:
    kit.publish(named, kit.rows((D1, 1, "a", 1.0, Decimal(1))))
    previews_of(kit, named).show(named.name, "u_1", [D1], {})
    assert shown(kit, named.name) == []


def test_a_preview_works_before_anything_is_published(kit: Kit, named: LoadedDataset) -> None:
    kit.put_shadow(named, kit.rows((D1, 1, "a", 1.0, Decimal(1))))
    previews_of(kit, named).show(named.name, "u_1", [], {})
    assert shown(kit, named.name) == []
    previews_of(kit, named).show(named.name, "u_1", [D1], {FOLDER: [D1]})
    assert shown(kit, named.name) == [(D1, 1, 1.0)]


def test_a_preview_knows_its_unit_and_is_dropped(kit: Kit, named: LoadedDataset) -> None:
    previews = previews_of(kit, named)
    assert previews.shown() == {}
    assert previews.show(named.name, "u_1", [], {}) == f"preview.{named.name}"
    previews.show(named.name, "u_2", [], {})
    assert previews.shown() == {named.name: "u_2"}
    assert kit.spark.catalog.tableExists(f"preview.{named.name}")
    previews.drop([named.name, "never_there"])
    assert previews.shown() == {}
    assert not kit.spark.catalog.tableExists(f"preview.{named.name}")


def test_without_a_preview_no_spark_is_asked(kit: Kit) -> None:
    def never(tag: str) -> NoReturn:
        raise AssertionError(f"a session was opened for {tag}")

    previews = SparkPreviews(never, {}, kit.layout)
    assert previews.shown() == {}
    previews.drop([])
