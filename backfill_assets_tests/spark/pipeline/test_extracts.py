"""Extracts on the real pipeline: rows of a Postgres are published exactly, and change when, and only when, they should."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pytest
from deltalake import DeltaTable
from sqlalchemy import Engine

from backfill_assets.application import Application
from backfill_assets.core.errors import SourceError
from backfill_assets.core.unit import UnitState
from backfill_assets.pipeline.deliveries import Chosen
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.without_dagster import built, judged, publish
from backfill_assets_tests.spark.pipeline.kit import Kit, commits
from backfill_assets_tests.unit.extracts.kit import (
    D1,
    D2,
    D3,
    QUERY,
    cluster,
    database,
    file_of,
    orders,
    run,
    shop,
)

__all__ = ["cluster", "shop"]

DAYS = (D1, D2, D3)
FILL = (
    "INSERT INTO orders SELECT n, '2024-03-01 00:00 Europe/Berlin'::timestamptz + n * interval '2 seconds', n % 2000 + 0.25 "
    "FROM generate_series(0, 3 * 43200 - 1) AS n"
)


def published(application: Application) -> Mapping[dt.date, tuple[int, Decimal]]:
    """Number of rows and sum of the amounts of each day that readers see."""
    table = DeltaTable(path_of(application.layout.published_path("orders"))).to_pyarrow_table(columns=["day", "amount"])
    sums = table.group_by("day").aggregate([("amount", "count"), ("amount", "sum")]).to_pylist()
    return {row["day"]: (row["amount_count"], row["amount_sum"]) for row in sums}


def in_database(shop: Engine, where: str = "true") -> Mapping[object, tuple[object, ...]]:
    found = run(
        shop,
        f"SELECT (at AT TIME ZONE 'Europe/Berlin')::date, count(*), sum(amount) FROM orders WHERE {where} GROUP BY 1",
    )
    return {day: (count, total) for day, count, total in found}


def land(application: Application, kit: Kit, *days: dt.date) -> Sequence[dt.date]:
    """Land days; returns those with a new delivery."""
    return sorted({one.day for one in application.pipeline.land(kit.spark, "orders", days).new})


def failed(application: Application, kit: Kit, *days: dt.date) -> set[tuple[dt.date, str]]:
    """The checks that a new build of the days fails."""
    unit = built(application, kit.spark, "orders", days)
    found = judged(application, unit, "orders")
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    return {(day, verdict.check) for day, one in found.items() for verdict in one.verdicts if not verdict.passed}


def test_rows_are_published_exactly_and_an_older_day_changes_only_when_asked(kit: Kit, shop: Engine) -> None:
    run(shop, FILL)
    application = orders(kit.root, database())
    publish(application, kit.spark, "orders", DAYS)
    assert published(application) == in_database(shop)
    assert sum(count for count, _ in published(application).values()) == 129_600
    before = commits(path_of(application.layout.raw_path("orders")))
    run(shop, "UPDATE orders SET amount = amount + 1 WHERE id = 5")
    assert land(application, kit, *DAYS) == []
    assert application.pipeline.days_to_land("orders", DAYS) == ()
    assert commits(path_of(application.layout.raw_path("orders"))) == before

    done = application.delivery_commands.reland(kit.spark, "orders", Chosen(days=DAYS), "a price was wrong")
    assert ([one.day for one in done.deliveries], done.published) == ([D1], (D1,))
    assert application.late_deliveries.moved("orders") == (D1,)
    again = application.delivery_commands.reland(kit.spark, "orders", Chosen(days=DAYS), "to be sure")
    assert again.deliveries == ()


def test_a_changed_query_reaches_days_that_have_landed_and_a_file_of_another_query_never_lands(
    kit: Kit, shop: Engine
) -> None:
    run(shop, FILL)
    application = orders(kit.root, database())
    publish(application, kit.spark, "orders", (D1, D2))
    narrow = QUERY.replace("ORDER BY", "AND amount < 1000 ORDER BY")
    application = orders(kit.root, database(narrow))
    assert application.pipeline.days_to_land("orders", DAYS) == DAYS
    assert (D1, "change_row_count") in failed(application, kit, D1)
    (force,) = application.basis.in_force("orders", (D1,))
    assert force.rows == in_database(shop, "amount < 1000")[D1][0]

    # A launch with a wrong query wrote the files of two days, failed on the third, and the query is taken back.
    wrong = QUERY.replace("ORDER BY", "AND 1 / (:day - DATE '2024-03-03') < 9 AND amount < 7 ORDER BY")
    with pytest.raises(SourceError, match="orders 2024-03-03: source.extract: division by zero".replace(".", r"\.")):
        land(orders(kit.root, database(wrong)), kit, *DAYS)
    assert file_of(application, D1).stat().st_size < 5000
    application = orders(kit.root, database(narrow))
    land(application, kit, *DAYS)
    landed = {one.day: one.rows for one in application.basis.in_force("orders", DAYS)}
    assert landed == {day: count for day, (count, _) in in_database(shop, "amount < 1000").items()}


def test_a_young_day_follows_its_rows_and_a_day_without_rows_or_of_other_days_is_refused(
    kit: Kit, shop: Engine
) -> None:
    application = orders(kit.root, database(again="2d"))
    zone = application.dataset("orders").zone
    today = application.clock.now().astimezone(zone).date()
    young, old = today - dt.timedelta(1), today - dt.timedelta(9)
    for day in (young, old):
        run(shop, f"INSERT INTO orders VALUES (1, '{day} 12:00 Europe/Berlin', 5), (2, '{day} 12:00 Europe/Berlin', 6)")
    publish(application, kit.spark, "orders", (old, young))
    run(shop, "UPDATE orders SET amount = 7 WHERE id = 2")
    assert application.pipeline.days_to_land("orders", (old, young)) == ()
    assert application.pipeline.days_to_land("orders", (old, young), again=True) == (young,)
    assert land(application, kit, old, young) == [young]
    assert application.late_deliveries.moved("orders") == (young,)
    assert land(application, kit, old, young) == []
    # What came while today lasts may be a part of it.
    assert land(application, kit, today) == [today]
    run(shop, f"INSERT INTO orders VALUES (3, '{today} 00:00 Europe/Berlin', 9)")
    assert application.pipeline.days_to_land("orders", (today,)) == (today,)
    assert land(application, kit, today, today + dt.timedelta(1)) == [today]

    empty = old + dt.timedelta(1)
    assert (empty, "source_present") in failed(application, kit, empty)
    application = orders(kit.root, database(QUERY.replace(":day + 1", ":day + 9")))
    assert (old, "corrupt_rows") in failed(application, kit, old)
