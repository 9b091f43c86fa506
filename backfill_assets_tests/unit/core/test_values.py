"""Names, days, durations, percentages, canonical JSON: what is accepted, refused and written back."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.canonical import canonical_json, digest
from backfill_assets.core.days import (
    day_range,
    days_argument,
    format_days,
    grouped_by_text,
    parse_day,
    parse_days,
    runs_of_days,
    slices,
)
from backfill_assets.core.errors import InvalidDayError, InvalidNameError
from backfill_assets.core.evidence import Severity
from backfill_assets.core.expected_change import Change
from backfill_assets.core.fields import format_percent, parse_percent
from backfill_assets.core.text import checked_name, format_duration, parse_duration

days = st.dates(dt.date(2000, 1, 1), dt.date(2040, 12, 31))
few_days = st.sets(st.dates(dt.date(2024, 1, 1), dt.date(2024, 2, 15)), max_size=40)


@pytest.mark.parametrize("name", ["a", "flights", "a_1", "a" * 63])
def test_a_safe_name_passes_as_it_is(name: str) -> None:
    assert checked_name(name, "the name") == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "1a", "_a", "a-b", "a b", "a.b", "../a", "a/b", "a;--", "a\n", "ä", "a" * 64, "а"],  # noqa: RUF001
)
def test_any_other_name_is_refused_with_its_value(name: str) -> None:
    with pytest.raises(InvalidNameError, match=re.escape(f"dataset {name!r} is not a safe name: use a-z")):
        checked_name(name, "dataset")


@given(days)
def test_a_day_that_was_written_is_read_back(day: dt.date) -> None:
    assert parse_day(str(day)) == day


@pytest.mark.parametrize(
    "text", ["", "20130301", "2013-3-1", "2013-02-30", "2013-W09-5", "2013-03-01T00:00:00", "monday"]
)
def test_anything_else_is_no_day(text: str) -> None:
    with pytest.raises(InvalidDayError, match=re.escape(f"start {text!r} is not an ISO date; write it as 2013-03-01")):
        parse_day(text, "start")


@given(days, st.integers(-3, 400))
def test_a_range_has_both_its_ends(first: dt.date, length: int) -> None:
    last = first + dt.timedelta(days=length)
    found = day_range(first, last)
    assert len(found) == max(length + 1, 0)
    assert not found or (found[0], found[-1]) == (first, last)


@given(few_days.filter(bool))
def test_days_are_written_for_commands_as_commands_read_them(chosen: set[dt.date]) -> None:
    text = days_argument(chosen)
    assert " " not in text
    assert parse_days(text) == parse_days(text.replace("..", "...")) == tuple(sorted(chosen))


@given(few_days)
def test_runs_cover_exactly_the_days_and_never_touch(chosen: set[dt.date]) -> None:
    runs = runs_of_days(chosen)
    assert {day for first, last in runs for day in day_range(first, last)} == chosen
    assert all((later[0] - earlier[1]).days > 1 for earlier, later in pairwise(runs))


def test_days_are_written_as_ranges_and_the_rest_is_counted() -> None:
    start = dt.date(2024, 1, 1)
    assert format_days([]) == "no day"
    assert format_days([start]) == "2024-01-01"
    assert (
        format_days([*day_range(start, dt.date(2024, 1, 3)), dt.date(2024, 1, 9)])
        == "2024-01-01..2024-01-03, 2024-01-09"
    )
    gaps = [start + dt.timedelta(days=2 * i) for i in range(10)]
    assert format_days(gaps, most=2) == "2024-01-01, 2024-01-03 and 8 more"


def test_texts_of_days_that_differ_only_in_figures_are_one_with_its_days_and_an_example() -> None:
    def fell(day: dt.date, check: str, share: str) -> tuple[dt.date, str]:
        return day, f"{day} {check}: expected unchanged, found 7,539.12 → {day.day * 100} ({share}%)"

    first, *others = day_range(dt.date(2024, 1, 1), dt.date(2024, 1, 3))
    texts = [
        fell(first, "change_p05_fare", "-50.5"),
        fell(first, "change_p50_fare", "-50.5"),
        (first, "2024-01-01 none"),
    ]
    texts += [fell(day, "change_p50_fare", "-1") for day in others]
    texts += [fell(day, "change_p50_fare", "+1") for day in others[:1]]
    assert grouped_by_text(texts) == [
        "2024-01-01 change_p05_fare: expected unchanged, found 7,539.12 → 100 (-50.5%)",
        "3 days (2024-01-01..2024-01-03), such as 2024-01-01 change_p50_fare: expected unchanged, found 7,539.12 → 100 (-50.5%)",
        "2024-01-01 none",
        "2024-01-02 change_p50_fare: expected unchanged, found 7,539.12 → 200 (+1%)",
    ]


@pytest.mark.parametrize(
    ("others", "odd"),
    [
        (
            "expected unchanged, found 40 → 39.96 (-0.1000%), tolerance 0%",
            "expected unchanged, found 40 → 0.4 (-99.0000%), tolerance 0%",
        ),
        ("expected no failing rows, found 3 failing rows", "expected no failing rows, found 3,000,000 failing rows"),
    ],
)
def test_the_largest_finding_of_similar_texts_is_shown_beside_the_first(others: str, odd: str) -> None:
    texts = [(day, odd if day.day == 7 else others) for day in day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 30))]
    assert grouped_by_text(texts) == [f"30 days (2024-03-01..2024-03-30), such as {others}; the largest: {odd}"]


@given(few_days, st.integers(1, 10))
def test_slices_are_consecutive_and_bounded(chosen: set[dt.date], size: int) -> None:
    ordered = sorted(chosen)
    cut = slices(ordered, size)
    assert [day for part in cut for day in part] == ordered
    assert all(1 <= len(part) <= size for part in cut)


@given(st.integers(0, 10**7).map(lambda seconds: dt.timedelta(seconds=seconds)))
def test_a_duration_that_was_written_is_read_back(value: dt.timedelta) -> None:
    text = format_duration(value)
    if len(text) <= len("999999s"):
        assert parse_duration(text) == value


@pytest.mark.parametrize(
    ("text", "written"), [("90s", "90s"), ("60m", "1h"), ("36 h", "36h"), ("48h", "2d"), (" 14d ", "14d"), ("0s", "0s")]
)
def test_a_duration_is_written_in_the_largest_unit_without_a_fraction(text: str, written: str) -> None:
    assert format_duration(parse_duration(text)) == written


@pytest.mark.parametrize("value", ["", "3", "h", "-1h", "1.5h", "1w", "1h30m", "1234567s", 3, None, True])
def test_anything_else_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="write a duration as a number and s, m, h or d, such as 36h"):
        parse_duration(value)


@given(st.integers(0, 10**9 - 1).map(lambda n: Decimal(n) / 10**6))
def test_a_percentage_that_was_written_is_read_back(fraction: Decimal) -> None:
    assert parse_percent(format_percent(fraction)) == fraction


def test_a_percentage_is_a_fraction_and_zero_needs_no_sign() -> None:
    assert parse_percent("0.5 %") == Decimal("0.005")
    assert parse_percent(0) == parse_percent(0.0) == parse_percent("0%") == 0
    assert format_percent(Decimal("0.1")) == "10%"
    assert format_percent(Decimal(0)) == "0%"


@pytest.mark.parametrize("value", [2, 0.02, "2", "-2%", "%", "1e2%", True, False, None, [], "two%"])
def test_anything_else_is_no_percentage(value: object) -> None:
    with pytest.raises(ValueError, match="write a percentage such as 2%"):
        parse_percent(value)


def test_equal_things_have_one_canonical_text() -> None:
    assert canonical_json({"b": 1, "a": [dt.date(2024, 1, 1), Decimal("1.50"), Severity.warn, None]}) == (
        '{"a":["2024-01-01","1.50","warn",null],"b":1}'
    )
    assert canonical_json({dt.date(2024, 1, 1): {"x", "y"}}) == '{"2024-01-01":["x","y"]}'
    assert canonical_json(Change(Decimal(1), Decimal(2))) == '{"high":"2","low":"1"}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    assert re.fullmatch("[0-9a-f]{64}", digest("ü"))


def test_a_number_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))
