"""The attribution names what was planted in real receipts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from backfill_assets.core.days import day_range
from backfill_assets.core.measured import DELIVERY_FILE, DayComparison
from backfill_assets.report.causes import Attribution, attribute
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import engine_settings
from backfill_assets_tests.spark.retail import deliver, deliver_products, deliver_rates, receipts_by_day
from backfill_assets_tests.spark.workplace import Workplace

DAYS = day_range(dt.date(2017, 3, 6), dt.date(2017, 3, 15))
WITH_A_WRONG_TAX, WITH_A_FLIPPED_SIGN, WITH_DOUBLED_PRICES = DAYS[:5], DAYS[5:9], DAYS[9:]
FAULTY = f"""
WITH good AS (SELECT * FROM staging LEFT JOIN products USING (product) JOIN tax_rates USING (day))
SELECT
    day, basket, product, household, store, department, category, brand, quantity,
    CAST(IF(store = 356 AND day BETWEEN '{DAYS[5]}' AND '{DAYS[8]}', -revenue, revenue) AS decimal(12, 2)) AS revenue,
    CAST(revenue * IF(department = 'PASTRY' AND day <= '{DAYS[4]}', 0.19, rate) AS decimal(12, 4)) AS tax
FROM good
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkServer) -> Mapping[dt.date, DayComparison]:
    """The differences by day after each cause was planted on some days; the published table is unchanged."""
    root, server = tmp_path_factory.mktemp("shop"), engine_settings(spark_server.folder.root.parent)
    with open_session(server, "attribution") as spark:
        shop = Workplace(root, spark, server, "till_receipts")
        receipts = receipts_by_day(DAYS[0], DAYS[-1])
        for day in DAYS:
            deliver(shop.sources, day, receipts[day])
        deliver_products(shop.sources)
        deliver_rates(shop.sources, dict.fromkeys(DAYS, "0.07"))
        shop.publish(DAYS)
        for day in WITH_DOUBLED_PRICES:
            doubled = pc.multiply(receipts[day]["sales_value"], 2.0)
            prices = receipts[day].set_column(
                receipts[day].schema.get_field_index("sales_value"), "sales_value", doubled
            )
            of_region = prices.filter(pa.array([store % 4 == 1 for store in prices["store"].to_pylist()]))
            deliver(shop.sources, day, of_region, "region_1")
        application = shop.model(fact=FAULTY)
        unit = shop.recompute(application, DAYS)
        return {day: one for (_, day), one in application.ledger.comparisons(unit.id).items()}


def found(compared: Mapping[dt.date, DayComparison], days: tuple[dt.date, ...], measure: str) -> Attribution:
    return {one.measure: one for one in attribute(compared[day] for day in days)}[measure]


def test_the_department_whose_tax_is_wrong_is_named(compared: Mapping[dt.date, DayComparison]) -> None:
    tax = found(compared, WITH_A_WRONG_TAX, "tax")
    assert str(tax) == "100 % of the tax change is in department PASTRY, which has 1 % of the rows"
    assert len(tax.causes) >= 5


def test_the_store_whose_sign_was_flipped_is_named(compared: Mapping[dt.date, DayComparison]) -> None:
    revenue = found(compared, WITH_A_FLIPPED_SIGN, "revenue")
    assert str(revenue) == "100 % of the revenue change is in store 356, which has 2 % of the rows"


def test_the_delivery_file_whose_prices_were_doubled_is_named(compared: Mapping[dt.date, DayComparison]) -> None:
    for measure in ("revenue", "tax"):
        cause = found(compared, WITH_DOUBLED_PRICES, measure).causes[0]
        assert cause.dimension == DELIVERY_FILE
        assert cause.values == (f"receipts/{DAYS[9]}/region_1.parquet",)
        assert (cause.explained, round(cause.of_rows, 2)) == (1, 0.18)


def test_a_measure_that_did_not_move_is_not_explained(compared: Mapping[dt.date, DayComparison]) -> None:
    assert "quantity" not in {one.measure for one in attribute(compared.values())}
