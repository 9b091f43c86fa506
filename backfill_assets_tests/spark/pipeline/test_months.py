"""Files with the rows of a whole month, through landing, checks and release: each row reaches its day, and no day is made up."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import SourceError
from backfill_assets.core.evidence import Verdict
from backfill_assets.core.unit import UnitState
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.without_dagster import built, judged, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, TRIPS, Kit, values

SOURCE: dict[str, Any] = {**TRIPS["source"], "path": "trips/{yyyymm}.csv"}  # type: ignore[dict-item]
HEADER = "day,id,kind,amount,fee"


def deliver(kit: Kit, month: str, *rows: str, hour: int) -> None:
    kit.put(f"trips/{month}.csv", "\n".join([HEADER, *rows, ""]), hour)


def refusals(application: Application, kit: Kit) -> dict[str, Verdict]:
    """What refuses the two days of March, by day and check."""
    unit = built(application, kit.spark, "trips", (D3, D4))
    found = judged(application, unit, "trips")
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    return {f"{day} {v.check}": v for day, one in found.items() for v in one.verdicts if v.refuses}


def test_each_day_of_a_month_is_built_from_its_rows_in_the_file_of_the_month(kit: Kit) -> None:
    kit.dataset(source=SOURCE)
    deliver(kit, "202402", f"{D1},1,a,10,1.00", f"{D2},1,a,10,2.00", f"{D2},2,b,10,2.50", hour=1)
    deliver(kit, "202403", f"{D3},1,a,10,3.00", hour=1)
    application = Application(kit.settings)

    # March is not over: its file has no row of the second day yet.
    refused = refusals(application, kit)
    assert refused.keys() == {f"{D4} source_present"}
    assert refused[f"{D4} source_present"].found == "1 deliveries without a row"

    publish(application, kit.spark, "trips", (D1, D2, D3))
    assert {one.path: one.rows for one in application.ledger.deliveries("trips", (D2, D3.replace(day=31)))} == {
        "trips/202402.csv": 3,
        "trips/202403.csv": 1,
    }
    assert application.late_deliveries.moved("trips") == ()
    assert application.pipeline.days_to_land("trips", (D1, D2, D3)) == ()

    # A row of another month is no row of any day, and all days of the file wait for a better one.
    deliver(kit, "202403", f"{D3},1,a,10,3.00", f"{D4},1,a,10,4.00", f"{D2},9,a,10,9.00", hour=2)
    refused = refusals(application, kit)
    assert refused.keys() == {f"{D3} corrupt_rows", f"{D4} corrupt_rows"}
    assert refused[f"{D3} corrupt_rows"].found == "0 unreadable, 1 of another day, of 3 rows"
    assert any("of another day" in str(row) for row in refused[f"{D4} corrupt_rows"].sample)

    # The file grows: the published day of March is stale, those of February are not.
    deliver(kit, "202403", f"{D3},1,a,10,3.50", f"{D4},1,a,10,4.00", hour=3)
    assert application.pipeline.days_to_land("trips", (D1, D2, D3, D4)) == (D3, D4)
    unit = built(application, kit.spark, "trips", (D3, D4), {"fee": "any"})
    assert application.late_deliveries.moved("trips") == (D3,)
    application.publisher.release(unit.id)
    assert application.late_deliveries.moved("trips") == ()
    published = kit.table(path_of(kit.layout.published_path("trips")))
    assert values(published, "day", "id", "fee") == [
        (D1, 1, Decimal("1.00")),
        (D2, 1, Decimal("2.00")),
        (D2, 2, Decimal("2.50")),
        (D3, 1, Decimal("3.50")),
        (D4, 1, Decimal("4.00")),
    ]


def test_a_day_without_a_row_in_the_file_of_its_month_passes_if_days_may_be_empty(kit: Kit) -> None:
    kit.dataset(source={**SOURCE, "on_missing": "pass"})
    application = Application(kit.settings)
    # Before a file of the month was written after a day, nobody knows that the day is empty.
    assert refusals(application, kit).keys() == {f"{D3} source_present", f"{D4} source_present"}
    deliver(kit, "202403", f"{D3},1,a,10,3.00", hour=1)
    assert refusals(application, kit).keys() == {f"{D4} source_present"}
    deliver(kit, "202403", f"{D3},1,a,10,3.50", hour=48)
    assert refusals(application, kit) == {}


def test_rows_that_landed_by_day_are_not_lost_when_the_path_names_months(kit: Kit) -> None:
    kit.dataset(source={**TRIPS["source"], "late_days": 1})  # type: ignore[dict-item]
    # The late row alone would pass for the day before.
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.deliver(D2, f"{D2},1,a,10,2.00", f"{D1},2,a,10,2.00")
    publish(Application(kit.settings), kit.spark, "trips", (D1, D2))
    kit.dataset(source={**SOURCE, "late_days": 1})
    deliver(kit, "202403", f"{D3},1,a,10,3.00", hour=1)
    application = Application(kit.settings)
    with pytest.raises(SourceError, match=r"No file of the month has landed under trips/\{yyyymm\}\.csv"):
        built(application, kit.spark, "trips", (D1,))


def test_rows_of_the_last_days_of_a_month_may_come_in_the_next_file(kit: Kit) -> None:
    kit.dataset(source={**SOURCE, "late_days": 1}, key=["id"])
    deliver(kit, "202403", f"{D1},2,a,10,9.00", f"{D2},2,a,10,2.50", f"{D3},1,a,10,3.00", hour=2)
    application = Application(kit.settings)
    # They do not replace the file of their own month.
    unit = built(application, kit.spark, "trips", (D2,))
    assert [v.check for v in judged(application, unit, "trips")[D2].verdicts if v.refuses] == ["source_present"]
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    deliver(kit, "202402", f"{D1},1,a,10,1.00", f"{D2},1,a,10,2.00", hour=1)
    publish(application, kit.spark, "trips", (D1, D2))
    published = kit.table(path_of(kit.layout.published_path("trips")))
    # The file of March may bring the last day of February, and no earlier one.
    assert values(published, "day", "id") == [(D1, 1), (D2, 1), (D2, 2)]
    unit = built(application, kit.spark, "trips", (D3,))
    found = judged(application, unit, "trips")[D3]
    assert [v.found for v in found.verdicts if v.refuses] == ["0 unreadable, 1 of another day, of 3 rows"]
