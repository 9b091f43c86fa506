"""Faults to plant into real receipts, one per day, and correct corrections of many other days."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from backfill_assets.core.days import day_range
from backfill_assets.dataset.checks import Level
from backfill_assets_tests.spark.retail import Receipts


@dataclass(frozen=True)
class Fault:
    """What goes wrong on one day, and the level and the check that must report it; SQL is about rows of that day only.

    `day_of` is what staging uses as the business day; `value` replaces a column of the fact, `only` keeps some rows of it, and
    `again` are rows that it has twice. `n` numbers a day's rows, `busiest` is the store with most of them. `declared` is what
    is promised for that day.
    """

    name: str
    level: Level
    check: str
    day_of: str = ""
    value: tuple[str, str] = ("", "")
    only: str = ""
    again: str = ""
    declared: tuple[tuple[str, str], ...] = ()


_NEXT = "coalesce(lead(revenue) OVER (PARTITION BY day ORDER BY n), first_value(revenue) OVER (PARTITION BY day ORDER BY n))"
_CANCELLING = "revenue + CASE n WHEN 1 THEN 5 WHEN 2 THEN -5 ELSE 0 END"
_FLIPPED = "IF(store = busiest, -revenue, revenue)"
_ANY = (("tax", "any"),)
FAULTS = (
    Fault("duplicate key", Level.structural, "unique_key", again="n = 1"),
    Fault("lost rows", Level.structural, "change_row_count", only="basket % 7 <> 0"),
    Fault("one day doubled", Level.structural, "unique_key", again="true"),
    Fault("wrong join makes rows vanish", Level.structural, "change_row_count", only="brand = 'National'"),
    Fault("null in a required column", Level.structural, "not_null", value=("quantity", "IF(n = 1, NULL, quantity)")),
    Fault("time zone shifted at midnight", Level.structural, "corrupt_rows", day_of="to_date(sold_at)"),
    Fault("sign flipped in one store", Level.aggregate, "change_revenue", value=("revenue", _FLIPPED)),
    Fault("rows under other keys", Level.structural, "change_keys", value=("basket", "IF(n <= 6, -basket, basket)")),
    Fault("change that nobody declared", Level.aggregate, "change_tax", value=("rate", "rate * 0.99")),
    Fault("right in total, wrong per row", Level.row, "change_rows", value=("revenue", _NEXT)),
    Fault("two errors that cancel out in the sum", Level.row, "change_rows", value=("revenue", _CANCELLING)),
    Fault("model that depends on the order of rows", Level.certificate, "recomputation", value=("household", "place")),
    Fault("step at the edge of the range", Level.aggregate, "seams", value=("rate", "rate * 100"), declared=_ANY),
)
FIRST = dt.date(2017, 2, 1)
CORRECTED = day_range(FIRST, FIRST + dt.timedelta(199))
FAULTY = {fault: CORRECTED[-1] + dt.timedelta(i + 1) for i, fault in enumerate(FAULTS)}
DAYS = (*CORRECTED, *FAULTY.values())
AROUND = day_range(FIRST - dt.timedelta(7), DAYS[-1] + dt.timedelta(7))
"""The days and a week on either side, which stay unchanged."""


def faulty_staging() -> str:
    """The staging model with the faults in it."""
    local = "to_date(from_utc_timestamp(sold_at, 'America/New_York'))"
    wrong = [f"WHEN {local} = '{day}' THEN {fault.day_of}" for fault, day in FAULTY.items() if fault.day_of]
    return f"""
SELECT
    CASE {" ".join(wrong)} ELSE {local} END AS day,
    basket, product, household, store, quantity,
    CAST(sales_value AS decimal(12, 2)) AS revenue,
    _lineage
FROM raw
"""


def faulty_fact() -> str:
    """The fact model with the faults in it."""

    def column(name: str, kind: str) -> str:
        wrong = [f"WHEN day = '{d}' THEN {f.value[1]}" for f, d in FAULTY.items() if f.value[0] == name]
        return f"CAST(CASE {' '.join(wrong)} ELSE {name} END AS {kind}) AS {name}"

    kept = [f"(day <> '{day}' OR {fault.only})" for fault, day in FAULTY.items() if fault.only]
    again = [f"(day = '{day}' AND {fault.again})" for fault, day in FAULTY.items() if fault.again]
    return f"""
WITH joined AS (
    SELECT *, row_number() OVER (PARTITION BY day ORDER BY 1) AS place
    FROM staging LEFT JOIN products USING (product) JOIN tax_rates USING (day)
),
numbered AS (
    SELECT *, row_number() OVER (PARTITION BY day ORDER BY basket, product) AS n, mode(store) OVER (PARTITION BY day) AS busiest
    FROM joined
),
valued AS (
    SELECT
        day, n, place, {column("basket", "long")}, product, household, store, department, category, brand,
        {column("quantity", "long")}, {column("revenue", "decimal(12, 2)")}, {column("rate", "decimal(18, 8)")}
    FROM numbered
),
repeated AS (SELECT * FROM valued WHERE {" AND ".join(kept)} UNION ALL SELECT * FROM valued WHERE {" OR ".join(again)})
-- Spark refuses chance in a CTE that is used twice.
SELECT
    day, basket, product, {column("household", "long")}, store, department, category, brand, quantity, revenue,
    CAST(revenue * rate AS decimal(12, 4)) AS tax
FROM repeated
"""


@dataclass(frozen=True)
class Correction:
    """A correct correction of a day: another tax rate, a file delivered again, and the declared effect."""

    rate: Decimal
    delivered: Receipts | None
    expected: Mapping[str, str]


def correction(chance: random.Random, receipts: Receipts, more: Receipts, rate: Decimal) -> Correction:
    """Draw a correction of a day: nothing, another tax rate, other prices, or more receipts."""
    match chance.choice(("nothing", "rate", "prices", "receipts")):
        case "rate":
            factor = Decimal(chance.randrange(900, 1100)) / 1000
            return Correction(rate * factor, None, {"tax": _band(factor)})
        case "prices":
            prices = receipts["sales_value"].to_pylist()
            wrong = [chance.random() < 0.2 for _ in prices]
            right = [
                round(p * chance.uniform(0.5, 1.5), 2) if is_wrong else p
                for p, is_wrong in zip(prices, wrong, strict=True)
            ]
            factor = _total(right) / _total(prices)
            delivered = receipts.set_column(
                receipts.schema.get_field_index("sales_value"), "sales_value", pa.array(right)
            )
            return Correction(rate, delivered, {"revenue": _band(factor), "tax": _band(factor)})
        case "receipts":
            whole = pa.concat_tables([receipts, more])
            bands = {
                metric: _band(_total(whole[column].to_pylist()) / _total(receipts[column].to_pylist()))
                for metric, column in (("revenue", "sales_value"), ("tax", "sales_value"), ("quantity", "quantity"))
            }
            rows = _band(Decimal(whole.num_rows) / receipts.num_rows)
            return Correction(rate, more, {**bands, "row_count": rows})
        case _:
            return Correction(rate, None, {})


def _total(values: list[float]) -> Decimal:
    return sum((Decimal(str(value)) for value in values), Decimal(0))


def _band(factor: Decimal) -> str:
    # The tax of each row is rounded.
    change = (factor - 1) * 100
    return f"{change - Decimal('0.02'):+.4f}% to {change + Decimal('0.02'):+.4f}%"
