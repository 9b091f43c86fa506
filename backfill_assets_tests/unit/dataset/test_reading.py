"""What makes two readings of the same file different, and which of them need no source."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.dataset.sources import Source, form_of, reading_of

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
            [{"a": "string", "b": "long"}, {"b": "long", "a": "string"}, {"a": "string"}, {"a": "long", "b": "long"}]
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
