"""The expected result of the campaign's story: the daily figures from the published order lines, without Spark."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from backfill_assets.delta.opening import rows_of
from backfill_assets.storage.location import Location

_REVENUE, _MARGIN = "net_revenue", "margin"


@dataclass(frozen=True)
class Sales:
    """Net revenue and margin of a day, or of a month."""

    net_revenue: Decimal
    margin: Decimal

    def __add__(self, other: Sales) -> Sales:
        return Sales(self.net_revenue + other.net_revenue, self.margin + other.margin)


def published_sales(path: Location) -> Mapping[dt.date, Sales]:
    """The published figures of each day, of order_items or of daily_sales: both have the same columns."""
    data = rows_of(path, ["order_date", _REVENUE, _MARGIN])
    sums = data.group_by("order_date").aggregate([(_REVENUE, "sum"), (_MARGIN, "sum")])
    return {row["order_date"]: Sales(row[f"{_REVENUE}_sum"], row[f"{_MARGIN}_sum"]) for row in sums.to_pylist()}


def differing(
    found: Mapping[dt.date, Sales], expected: Mapping[dt.date, Sales], days: Iterable[dt.date]
) -> list[dt.date]:
    """The days whose figures are not exactly the expected ones; a day without sales is in neither."""
    return [day for day in days if found.get(day) != expected.get(day)]


def by_month(sales: Mapping[dt.date, Sales]) -> Mapping[str, Sales]:
    """The figures of each month, such as `1995-01`."""
    months: dict[str, Sales] = defaultdict(lambda: Sales(Decimal(0), Decimal(0)))
    for day in sorted(sales):
        months[f"{day:%Y-%m}"] += sales[day]
    return dict(months)
