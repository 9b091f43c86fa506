"""Consumers' queries run on the table as it was and as it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import nullcontext
from decimal import Decimal

import pytest

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.measured import Figures
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.views import SparkConsumers
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, Kit

CONSUMERS = {
    "finance": {"sql": "SELECT sum(fee) AS fees, count(*) AS rows FROM {name}"},
    "features": {"sql": "WITH t AS (SELECT amount FROM {name}) SELECT avg(amount) AS mean FROM t;"},
}


def dataset(kit: Kit, **consumers: object) -> LoadedDataset:
    given = consumers or CONSUMERS
    text = {name: {"sql": str(c["sql"]).format(name="trips")} for name, c in given.items()}  # type: ignore[index]
    return kit.dataset(consumers=text)


def figures(kit: Kit, loaded: LoadedDataset, versions: list[int], through: dt.date) -> list[Mapping[str, Figures]]:
    """The figures of the consumers at each version."""
    consumers = SparkConsumers(lambda _tag: nullcontext(kit.spark), {loaded.name: loaded}, kit.layout)
    found = consumers.figures(loaded.name, versions, through)
    return [found[version] for version in versions]


@pytest.fixture(scope="module")
def published(module_kit: Kit) -> Kit:
    """Version 0 has a fee of 1 on each of two days and no further column; version 1 has a fee of 2 on three."""
    kit, loaded = module_kit, dataset(module_kit)
    kit.publish(loaded, kit.rows(*((day, 1, "a", 1.0, Decimal(1)) for day in (D1, D2))))
    kit.publish(loaded, kit.rows(*((day, 1, "a", 3.0, Decimal(2)) for day in (D1, D2, D3))))
    return kit


def test_each_version_gives_its_own_figures(published: Kit) -> None:
    old, new = figures(published, dataset(published), [0, 1], D3)
    assert old == {"finance": {"fees": Decimal(2), "rows": Decimal(2)}, "features": {"mean": Decimal(1)}}
    assert new == {"finance": {"fees": Decimal(6), "rows": Decimal(3)}, "features": {"mean": Decimal(3)}}


def test_later_days_are_left_out(published: Kit) -> None:
    loaded = dataset(published)
    (known,) = figures(published, loaded, [1], D2)
    assert known["finance"] == {"fees": Decimal(4), "rows": Decimal(2)}
    (nothing,) = figures(published, loaded, [1], D1.replace(year=2000))
    assert nothing == {"finance": {"fees": None, "rows": Decimal(0)}, "features": {"mean": None}}


def test_a_column_that_the_version_does_not_have_is_null(kit: Kit) -> None:
    loaded = dataset(kit)
    kit.publish(loaded, kit.rows((D1, 1, "a", 1.0, Decimal(1))).drop("fee"))
    (found,) = figures(kit, loaded, [0], D1)
    assert found["finance"] == {"fees": None, "rows": Decimal(1)}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT sum(nothing) FROM {name}", r"dataset\.yaml: consumers\.bi\.sql: .*nothing"),
        ("SELECT kind FROM {name}", "column 'kind' is no number"),
        ("SELECT amount FROM {name}", "returns several rows"),
        ("SELECT amount FROM {name} WHERE false", "returns no row"),
    ],
)
def test_a_query_without_exactly_one_row_of_numbers_is_refused(published: Kit, query: str, message: str) -> None:
    loaded = dataset(published, bi={"sql": query})
    with pytest.raises(DatasetError, match=message):
        figures(published, loaded, [1], D3)
