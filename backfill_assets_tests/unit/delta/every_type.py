"""One column of every type of the dataset contract, filled with the values that break bounds."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa

from backfill_assets.dataset.consistency import AUDIT_COLUMNS
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.tables import day, typed

TYPES = {
    "id": "long",
    "day": "date",
    "a_string": "string",
    "a_boolean": "boolean",
    "an_integer": "integer",
    "a_long": "long",
    "a_float": "float",
    "a_double": "double",
    "a_decimal": "decimal(10,2)",
    "a_wide_decimal": "decimal(38,10)",
    "a_date": "date",
    "a_timestamp": "timestamp",
    "a_smallint": "smallint",
    "a_local_time": "timestamp_ntz",
    "a_binary": "binary",
    "an_array": "array<double>",
    "a_map": "map<string,array<long>>",
    "a_struct": "struct<a:long,b:struct<c:string,at:timestamp>>",
    "events": "array<struct<sku:string,price:decimal(9,2),tags:map<date,binary>>>",
}
"""Business columns; the audit columns are added."""

_MICRO = dt.timedelta(microseconds=1)
_TIME = dt.datetime(2013, 3, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)

VALUES: dict[str, list[object]] = {
    "a_string": ["", "a", "ÄÖ", "\uffff", "😀", "z" * 31, "z" * 33, "z" * 80 + "\uffff", "z" * 80 + "😀", None],
    "a_boolean": [True, False, True, False, True, False, True, False, True, None],
    "an_integer": [0, -1, 2**31 - 1, -(2**31), 7, 8, 9, 10, 11, None],
    "a_long": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1, 2**53, -(2**53) - 1, 10, 11, None],
    "a_float": [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1.5, 3.4e38, 1e-45, None],
    "a_double": [0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, -0.1, 1.7e308, 5e-324, None],
    "a_decimal": [Decimal(x) for x in ["0", "0.10", "-0.01", "99999999.99", "-99999999.99", "1.10", "1.1", "0.30", "7"]]
    + [None],
    "a_wide_decimal": [
        Decimal(x)
        for x in [
            "0",
            "0.1234567891",
            "9999999999999999999999999999.9999999999",
            "-9999999999999999999999999999.9999999999",
            "9007199254740993.0000000001",
            "9007199254740992.9999999999",
            "0.3",
            "-0.3",
            "1",
        ]
    ]
    + [None],
    "a_date": [
        dt.date(1, 1, 2),
        dt.date(1582, 10, 15),
        dt.date(1900, 1, 1),
        dt.date(1970, 1, 1),
        day(0),
        day(1),
        dt.date(2400, 2, 29),
        dt.date(9999, 12, 31),
        dt.date(2013, 3, 1),
        None,
    ],
    "a_timestamp": [
        _TIME,
        _TIME + _MICRO,
        _TIME - _MICRO,
        _TIME.replace(microsecond=999999),
        _TIME.replace(microsecond=123999),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
        dt.datetime(1900, 1, 1, 0, 0, 0, 1, dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC),
        dt.datetime(2013, 3, 31, 1, 30, tzinfo=dt.UTC),
        None,
    ],
    "a_smallint": [0, -1, 2**15 - 1, -(2**15), 7, 8, 9, 10, 11, None],
    "a_binary": [b"", b"a", b"\0", b"\xff", b"\0\xff", b"z" * 31, b"z" * 33, b"\x80", b"a\0b", None],
}
VALUES["a_local_time"] = [
    at.replace(tzinfo=None) if isinstance(at, dt.datetime) else None for at in VALUES["a_timestamp"]
]

PARTS: dict[str, list[object]] = {
    "an_array": [[], [0.0], [-0.0, 0.0], [None], [1.5, None, -1.5], [math.inf], [0.1] * 40, [1.7e308], [5e-324], None],
    "a_map": [[], [("a", [1])], [("b", None), ("a", [])], [("", [None])], *([(key, [9])] for key in "cdefg"), None],
    "a_struct": [
        {"a": None, "b": None},
        {"a": 1, "b": {"c": "x", "at": _TIME}},
        {"a": 1, "b": {"c": None, "at": _TIME + _MICRO}},
        *({"a": n, "b": {"c": "", "at": None}} for n in range(6)),
        None,
    ],
    "events": [
        [],
        [None],
        [{"sku": "s", "price": Decimal("1.10"), "tags": [(dt.date(1582, 10, 15), b"\0")]}],
        [{"sku": None, "price": None, "tags": None}, {"sku": "t", "price": Decimal("-0.01"), "tags": []}],
        *([{"sku": str(n), "price": Decimal(n), "tags": [(day(n), None)]}] for n in range(5)),
        None,
    ],
}
"""The same for values with parts, which nobody filters by."""


def every_type() -> pa.Table:
    """A day (one file) for each value alone, one for all of them together, and one with nulls only."""
    cases: list[list[int]] = [[i] for i in range(10)] + [list(range(10)), [9]]
    picked = [(date, i) for date, members in enumerate(cases) for i in members]
    columns: dict[str, list[object]] = {n: [values[i] for _, i in picked] for n, values in (VALUES | PARTS).items()}
    columns["id"] = list(range(len(picked)))
    columns["day"] = [day(date) for date, _ in picked]
    columns["recalculated_at"] = [START + _MICRO] * len(picked)
    columns["unit"] = ["u"] * len(picked)
    columns["code_version"] = ["c0de"] * len(picked)
    types = {**TYPES, **AUDIT_COLUMNS}
    return typed({name: columns[name] for name in types}, types)


def probes() -> Iterator[tuple[str, str, object]]:
    """Every (column, operator, value) that a reader might filter by."""
    for column, values in VALUES.items():
        for value in dict.fromkeys(repr(v) for v in values if v is not None):
            probe = next(v for v in values if repr(v) == value)
            for operator in ("==", "!=", "<", "<=", ">", ">="):
                if not (isinstance(probe, bool) and operator not in {"==", "!="}):
                    yield column, operator, probe
    yield "recalculated_at", "==", START + _MICRO
    yield "recalculated_at", ">", START
