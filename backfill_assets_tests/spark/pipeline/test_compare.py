from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pandas as pd
import pytest
from datacompy import PandasCompare
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.pipeline.compare import COLUMNS, STATUS, Shape, differing

FIRST = dt.date(2024, 1, 1)
TABLES = 20
NAN, INFINITE = float("nan"), float("inf")
EXACT = Decimal(0)
SLACK = Decimal("0.25")
SCHEMA = (
    "day date, id int, part string, whole long, money decimal(9,2), ratio double, share double, at timestamp, "
    "flag boolean, label string"
)
SHAPE = Shape(
    "day",
    ("day", "id", "part"),
    {"whole": EXACT, "money": EXACT, "ratio": SLACK, "share": EXACT, "at": EXACT, "flag": EXACT, "label": EXACT},
)
NAMES = [field.split()[0] for field in SCHEMA.split(", ")]

Values = tuple[object, ...]
Table = Mapping[tuple[int, str], Values]

values = st.tuples(
    st.sampled_from([None, 0, 1, -(2**60)]),
    st.sampled_from([None, Decimal("0.00"), Decimal("0.10"), Decimal("-9999999.99")]),
    # To pandas, and so to datacompy, null and NaN are the same in floats: each column has one of them.
    st.sampled_from([NAN, 0.0, -0.0, 0.25, 0.5, 1.0, INFINITE, -INFINITE]),
    st.sampled_from([None, 0.0, -0.0, 0.1, 0.2]),
    st.sampled_from([None, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 1, dt.UTC)]),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "", "a", "A", "ä"]),
)
tables = st.dictionaries(st.tuples(st.integers(0, 4), st.sampled_from(["x", "y"])), values, max_size=8)
# Mostly the same rows: two tables without a row in common would show little.
pairs = st.tuples(tables, tables, st.sets(st.integers(0, 9))).map(
    lambda t: (t[0], {k: v for k, v in {**t[0], **t[1]}.items() if k[0] not in t[2]})
)


def frame(spark: SparkSession, per_day: list[Table]) -> DataFrame:
    rows = [(FIRST + dt.timedelta(i), *key, *row) for i, table in enumerate(per_day) for key, row in table.items()]
    return spark.createDataFrame(rows, SCHEMA)


# datacompy finds nulls unequal in a column of objects that are all null, so each has a type; decimals fit into floats here.
DTYPES = {
    "whole": "Int64",
    "money": float,
    "ratio": float,
    "share": float,
    "at": "datetime64[us, UTC]",
    "flag": "boolean",
}


def seen_by_datacompy(old: Table, new: Table) -> tuple[set[object], set[object], dict[object, set[str]]]:
    """Keys added, keys removed, and columns that differ by key."""
    names = NAMES[1:]
    old_rows, new_rows = (
        pd.DataFrame([(*k, *v) for k, v in side.items()], columns=names, dtype=object).astype(
            DTYPES | {"label": "string"}
        )
        for side in (old, new)
    )
    found = PandasCompare(
        old_rows, new_rows, join_columns=["id", "part"], abs_tol={"ratio": float(SLACK), "default": 0}
    )
    added, removed = (set(zip(f["id"], f["part"], strict=True)) for f in (found.df2_unq_rows, found.df1_unq_rows))
    differ: dict[object, set[str]] = {}
    for _, row in found.intersect_rows.iterrows():
        columns = {name for name in names[2:] if not row[f"{name}_match"]}
        if columns:
            differ[row["id"], row["part"]] = columns
    return added, removed, differ


# Each example is a Spark job over twenty tables, so Hypothesis shrinks none.
@settings(max_examples=4, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])
@given(st.lists(pairs, min_size=TABLES, max_size=TABLES))
def test_differing_rows_are_those_that_datacompy_finds(spark: SparkSession, found: list[tuple[Table, Table]]) -> None:
    old, new = (frame(spark, [pair[side] for pair in found]) for side in (0, 1))
    rows = differing(old, new, SHAPE).collect()
    for i, pair in enumerate(found):
        mine = [row for row in rows if row["day"] == FIRST + dt.timedelta(i)]
        by_status = {s: {(r["id"], r["part"]) for r in mine if r[STATUS] == s} for s in ("added", "removed", "changed")}
        columns = {(r["id"], r["part"]): set(r[COLUMNS]) for r in mine if r[STATUS] == "changed"}
        assert (by_status["added"], by_status["removed"], columns) == seen_by_datacompy(*pair)
        assert by_status["changed"] == set(columns)


def test_keys_and_values_are_matched_with_nulls_and_by_one_hash_or_sort(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = "day date, id int, ratio double, money decimal(38,10), whole long"
    shape = Shape("day", ("id",), {"ratio": EXACT, "money": Decimal("1E-7"), "whole": Decimal(2)})
    old = [(1, None, "1", 1), (2, NAN, None, 2**63 - 1), (None, 0.0, "1", 5), (4, 1.0, "5", None), (6, 0.0, "2", 1)]
    new = [(1, NAN, "1.0000001", 3), (2, NAN, None, -(2**63)), (None, -0.0, "1", 5), (4, 1.0, "5.0000002", 0)]
    frames = [
        spark.createDataFrame([(FIRST, i, r, m and Decimal(m), w) for i, r, m, w in rows], schema)
        for rows in (old, new)
    ]
    plain = differing(frames[0], frames[1], shape)
    found = {row["id"]: (row[STATUS], row[COLUMNS]) for row in plain.collect()}
    # A null is no NaN, numbers may be far apart without overflow, and tolerances work for every type.
    assert found == {
        1: ("changed", ["ratio"]),
        2: ("changed", ["whole"]),
        4: ("changed", ["money", "whole"]),
        6: ("removed", []),
    }
    plain.explain()
    plan = capsys.readouterr().out
    assert "SortMergeJoin" in plan or "ShuffledHashJoin" in plan
    assert "NestedLoop" not in plan
    assert "Cartesian" not in plan


def test_rows_of_a_duplicate_key_are_matched_one_by_one_if_numbered(spark: SparkSession) -> None:
    schema, shape = "day date, id int, label string", Shape("day", ("id",), {"label": EXACT})
    old = spark.createDataFrame([(FIRST, 1, "a"), (FIRST, 1, "b"), (FIRST, 2, "c")], schema)
    new = spark.createDataFrame([(FIRST, 1, "b"), (FIRST, 1, "a"), (FIRST, 2, "c"), (FIRST, 2, "c")], schema)
    assert len(differing(old, new, shape).collect()) == 2
    (added,) = differing(old, new, shape, numbered=True).collect()
    assert (added["id"], added[STATUS], added["new:label"]) == (2, "added", "c")


def test_rounding_of_floats_is_no_difference_unless_they_are_compared_to_the_bit(spark: SparkSession) -> None:
    schema = "day date, id int, ratio double, share double, short float"
    shape = Shape("day", ("id",), {"ratio": EXACT, "share": Decimal("0.01"), "short": EXACT})
    old = [
        (1, 250.5, 0.29, 0.1),
        (2, 1e300, 0.28, 0.1),
        (3, INFINITE, 1.0, NAN),
        (4, 0.0, 1e300, None),
        (5, NAN, 1.0, 1.0),
    ]
    new = [
        (1, 250.50000000000003, 0.30, 0.10000001),
        (2, -1e300, 0.30, 0.1001),
        (3, 1.0, -INFINITE, 0.1),
        (4, 1e-9, None, 0.1),
        (5, INFINITE, NAN, 1.0),
    ]
    frames = [spark.createDataFrame([(FIRST, *row) for row in rows], schema) for rows in (old, new)]
    found = {row["id"]: row[COLUMNS] for row in differing(frames[0], frames[1], shape).collect()}
    every = ["ratio", "share", "short"]
    assert found == {2: every, 3: every, 4: every, 5: ["ratio", "share"]}
    to_the_bit = differing(frames[0], frames[1], replace(shape, to_the_bit=True)).where("id = 1").collect()
    assert [row[COLUMNS] for row in to_the_bit] == [every]
