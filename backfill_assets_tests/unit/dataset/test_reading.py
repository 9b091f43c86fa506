"""What makes two readings of the same file different, and which of them need no source."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.dataset.reading import form_of, reading_of
from backfill_assets.dataset.sources import Source

PLAIN: dict[str, Any] = {"format": "csv", "path": "x/{day}.csv", "columns": {"a": "string", "b": "long"}}
options = st.fixed_dictionaries(
    {},
    optional={
        "csv": st.fixed_dictionaries(
            {},
            optional={
                "header": st.booleans(), "delimiter": st.sampled_from([",", ";", "\\t"]), "null_value": st.sampled_from(["", "NA"]),
            },
        ),
        "encoding": st.sampled_from(["utf-8", "latin-1", "windows-1252"]),
        "undeclared": st.sampled_from(["keep", "drop"]),
        "optional": st.sampled_from([[], ["b"]]),
        "format": st.sampled_from(["csv", "jsonl", "parquet"]),
        "columns": st.sampled_from(
            [
                {"a": "string", "b": "long"}, {"b": "long", "a": "string"}, {"a": "string"}, {"a": "long", "b": "long"},
                {"a": {"type": "string"}, "b": "long"},
            ]
        ),
    },
).filter(lambda said: "b" in said.get("columns", "b") or not said.get("optional"))  # fmt: skip


def source(**said: object) -> Source:
    return Source.model_validate({**PLAIN, **said})


@given(options, options)
def test_readings_are_equal_where_the_same_values_come_out(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = source(**one), source(**other)
    by_position = first.format == "csv" and not first.csv.header
    same = first == second and (not by_position or list(first.columns) == list(second.columns))
    assert (reading_of(first) == reading_of(second)) is same
    assert len(reading_of(first)) <= 64


A, B = ({"from": header, "type": "string"} for header in ("A 1", "B 1"))


@pytest.mark.parametrize(
    ("before", "now", "same_form"),
    [
        ({}, {"columns": {"a": A, "b": "long"}}, True),
        ({"columns": {"a": A, "b": "long"}}, {"columns": {"a": B, "b": "long"}}, True),
        ({"columns": {"a": A, "b": B}}, {"columns": {"a": B, "b": A}}, True),
        ({"format": "jsonl"}, {"format": "jsonl", "columns": {"a": A, "b": "long"}}, True),
        # Raw has no other column of these files than those that were declared when they landed.
        ({"undeclared": "drop"}, {"undeclared": "drop", "columns": {"a": A, "b": "long"}}, False),
        (
            {"undeclared": "drop", "columns": {"a": A, "b": B}},
            {"undeclared": "drop", "columns": {"a": B, "b": A}},
            False,
        ),
        ({"format": "parquet"}, {"format": "parquet", "columns": {"a": A, "b": "long"}}, False),
        ({"format": "parquet", "columns": {"a": A, "b": B}}, {"format": "parquet", "columns": {"a": B, "b": A}}, False),
    ],
)
def test_another_header_is_another_reading(before: dict[str, Any], now: dict[str, Any], *, same_form: bool) -> None:
    one, other = reading_of(source(**before)), reading_of(source(**now))
    assert one != other
    assert (form_of(one) == form_of(other)) is same_form


BEFORE = [
    "lines+header 4a8446df5b8990e3", "columns:6c10a5f20d116ff5 f7db4d4d650066fe", "columns:0f6bc947f825fe73 59eb40ff6500cb3d",
    "cells:0ddb52b9c3786c55 eff6081e8ce8febf",
]  # fmt: skip


def test_a_reading_without_headers_of_its_own_is_what_it_was_before_there_were_any() -> None:
    kinds = [{}, {"format": "parquet"}, {"format": "parquet", "optional": ["b"]}, {"undeclared": "drop"}]
    assert [reading_of(source(**said)) for said in kinds] == BEFORE
    assert [reading_of(source(**said, columns={"a": {"type": "string"}, "b": "long"})) for said in kinds] == BEFORE


@pytest.mark.parametrize(
    "said", [{"path": "y/{day}"}, {"late_days": 3}, {"on_missing": "pass"}, {"order_by": "path"}], ids=str
)
def test_location_and_order_of_files_are_no_part_of_a_reading(said: dict[str, object]) -> None:
    assert reading_of(source(**said)) == reading_of(source())


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({}, {"csv": {"delimiter": ";", "null_value": "NA"}, "encoding": "latin-1", "columns": {"c": "date"}}, True),
        ({}, {"csv": {"header": False}}, False),
        ({"csv": {"header": False}}, {"format": "jsonl"}, True),
        ({}, {"undeclared": "drop"}, False),
        ({"undeclared": "drop"}, {"undeclared": "drop", "columns": {"a": "date", "b": "long"}}, True),
        ({"undeclared": "drop"}, {"undeclared": "drop", "columns": {"a": "string", "b": "long", "c": "long"}}, False),
        ({"undeclared": "drop"}, {"undeclared": "drop", "csv": {"null_value": "NA"}}, False),
        # By position at landing, by name in raw: raw does not have columns of other positions.
        (
            {"undeclared": "drop", "csv": {"header": False}},
            {"undeclared": "drop", "csv": {"header": False}, "columns": {"b": "long", "a": "string"}},
            False,
        ),
        ({"format": "parquet"}, {"format": "parquet", "columns": {"a": "string"}}, False),
        ({"format": "parquet", "optional": ["b"]}, {"format": "parquet"}, False),
        ({"optional": ["b"]}, {}, True),
        ({}, {"format": "parquet"}, False),
    ],
)
def test_a_reading_needs_no_source_where_raw_has_its_columns(
    before: dict[str, object], now: dict[str, object], *, same: bool
) -> None:
    assert (form_of(reading_of(source(**before))) == form_of(reading_of(source(**now)))) is same


def test_only_declared_columns_are_optional() -> None:
    with pytest.raises(ValueError, match="optional: c is not one of the columns"):
        source(optional=["c"])
