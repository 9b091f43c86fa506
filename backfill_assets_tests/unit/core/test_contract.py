"""Expected changes: reading, writing, and what they allow."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.errors import ContractError
from backfill_assets.core.expected_change import ANY, UNCHANGED, Change, Clause, Contract, parse_change, parse_contract

METRICS = ("row_count", "fare", "city")
DAYS = [dt.date(2024, 1, day) for day in range(1, 6)]

percentages = st.decimals(-999_999, 999_999, places=9)
changes = st.tuples(percentages, percentages).map(lambda pair: Change(min(pair) / 100, max(pair) / 100))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("unchanged", "0", "0"),
        ("-50%", "-0.5", "-0.5"),
        ("+3 %", "0.03", "0.03"),
        ("-1.5% to -0.8%", "-0.015", "-0.008"),
        ("-1.5%..-0.8%", "-0.015", "-0.008"),
        (" 0% .. 100% ", "0", "1"),
    ],
)
def test_a_change_is_read(text: str, low: str, high: str) -> None:
    assert parse_change(text, "x") == Change(Decimal(low), Decimal(high))


@pytest.mark.parametrize("text", ["50", "-50", "about -50%", "", None, "1e3%", "- 5%", "-50%%", "1% to", "nan%", 0.5])
def test_anything_else_is_no_change(text: object) -> None:
    with pytest.raises(ContractError, match=r"x\.y: .* is not a change; write unchanged, any, -50%"):
        parse_change(text, "x.y")


def test_a_band_upside_down_is_refused() -> None:
    with pytest.raises(ContractError, match="write the lower edge first"):
        parse_change("2% to 1%", "x")


@given(changes)
def test_a_change_that_was_written_is_read_back(change: Change) -> None:
    assert parse_change(str(change), "x") == change


@given(
    st.lists(st.tuples(st.sampled_from(METRICS), st.sampled_from(DAYS)), unique=True, max_size=8),
    changes,
)
def test_a_contract_that_was_written_is_read_back(places: list[tuple[str, dt.date]], change: Change) -> None:
    contract = Contract(tuple(Clause((day,), {metric: change}) for metric, day in places))
    again = parse_contract(contract.to_plain(), METRICS)
    assert again == contract
    assert again.hash == contract.hash
    assert bool(again) == bool(places)
    for metric in METRICS:
        for day in DAYS:
            assert again.expected(metric, day) == (change if (metric, day) in places else None)


def test_a_mapping_holds_on_every_day() -> None:
    contract = parse_contract({"fare": "-1%"}, METRICS)
    assert contract.expected("fare", dt.date(1999, 1, 1)) == Change(Decimal("-0.01"), Decimal("-0.01"))
    assert contract.expected("city", dt.date(1999, 1, 1)) is None


@pytest.mark.parametrize("nothing", [None, {}, []])
def test_nothing_is_the_empty_contract(nothing: object) -> None:
    assert parse_contract(nothing, METRICS) == Contract()


@pytest.mark.parametrize(
    "days", [{"start": "2024-01-01", "end": "2024-01-03"}, ["2024-01-03", "2024-01-01", "2024-01-02", "2024-01-01"]]
)
def test_days_are_a_range_or_a_list(days: object) -> None:
    contract = parse_contract([{"days": days, "metrics": {"fare": "unchanged"}}], METRICS)
    assert contract.clauses[0].days == tuple(DAYS[:3])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"price": "-1%"},
            r"expected_change\[0\].metrics: unknown metric 'price'; this dataset has row_count, fare, city",
        ),
        ({"fare": "1"}, r"expected_change\[0\].metrics.fare: '1' is not a change"),
        ([{"days": ["2024-01-01"]}], r"\[0\]: write a mapping with metrics, rows or both, and"),
        ([{"metrics": {"fare": "1%"}, "day": "2024-01-01"}], "write a mapping with metrics, rows or both, and"),
        ([{"metrics": ["fare"]}], "write a mapping from metric to change"),
        (["fare"], "write a mapping with metrics, rows or both, and"),
        ("fare -1%", "write a mapping from metric to change"),
        ([{"days": ["1 Jan"], "metrics": {"fare": "1%"}}], r"\[0\].days: day '1 Jan' is not an ISO date"),
        ([{"days": "2024-01-01", "metrics": {"fare": "1%"}}], "write a list of ISO dates or"),
        ([{"days": [], "metrics": {"fare": "1%"}}], r"\[0\].days: names no day; name the days, or leave `days` out"),
        ([{"days": None, "metrics": {"fare": "1%"}}], r"\[0\].days: names no day"),
        ([{"days": {"start": "2024-01-02"}, "metrics": {"fare": "1%"}}], "write a list of ISO dates or"),
        ([{"days": {"start": "2024-01-02", "end": "2024-01-01"}, "metrics": {"fare": "1%"}}], "the range is empty"),
    ],
)
def test_a_contract_that_cannot_be_understood_is_refused(value: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parse_contract(value, METRICS)


COLUMNS = {"fare": "double", "city": "string", "tip": "decimal(9,2)"}


def test_rows_are_promised_beside_metrics_or_alone_and_are_read_back() -> None:
    value = {"metrics": {"row_count": "-50%"}, "rows": {"fare": "-8% to 0%", "city": "any", "tip": "unchanged"}}
    both = parse_contract(value, METRICS, columns=COLUMNS)
    assert both.expected_rows(DAYS[0]) == {
        "fare": Change(Decimal("-0.08"), Decimal(0)), "city": ANY, "tip": UNCHANGED
    }  # fmt: skip
    assert parse_contract(both.to_plain(), METRICS, columns=COLUMNS) == both
    alone = parse_contract([{"days": [str(DAYS[1])], "rows": {"city": "any"}}], METRICS, columns=COLUMNS)
    assert (alone.expected_rows(DAYS[0]), alone.expected_rows(DAYS[1])) == ({}, {"city": ANY})
    assert alone.expected("city", DAYS[1]) is None


def test_a_metric_may_be_called_rows() -> None:
    assert parse_contract({"rows": "-50%"}, ["rows"]).clauses[0].metrics.keys() == {"rows"}


def test_a_contract_says_only_what_was_said() -> None:
    contract = parse_contract({"fare": "-1%"}, METRICS)
    assert contract.to_plain() == [{"metrics": {"fare": "-1%"}}]
    assert parse_contract({"metrics": {"fare": "-1%"}}, METRICS).hash == contract.hash


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"toll": "any"}, r"\[0\].rows: unknown column 'toll'; outside its key this dataset has fare, city, tip"),
        ({"city": "-8% to 0%"}, r"rows.city: a string such as city cannot change by a percentage; write any or"),
        ({"fare": "less"}, r"rows.fare: 'less' is not a change"),
        (["fare"], "write a mapping from column to change of each row"),
    ],
)
def test_rows_that_cannot_be_promised_are_refused(rows: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parse_contract([{"rows": rows}], METRICS, columns=COLUMNS)


def test_a_column_promised_twice_for_one_day_is_refused() -> None:
    twice = [{"rows": {"fare": "any"}}, {"days": [str(DAYS[0])], "rows": {"fare": "unchanged"}}]
    with pytest.raises(ContractError, match=r"\[1\]: fare is already expected on these days by"):
        parse_contract(twice, METRICS, columns=COLUMNS)


day_sets = st.lists(st.sampled_from([d.isoformat() for d in DAYS]), max_size=3)


@given(st.lists(st.tuples(day_sets, st.sets(st.sampled_from(METRICS), min_size=1)), min_size=2, max_size=4))
def test_a_metric_expected_twice_for_one_day_is_refused(clauses: list[tuple[list[str], set[str]]]) -> None:
    value = [
        {"metrics": dict.fromkeys(sorted(metrics), "1%")} | ({"days": days} if days else {})
        for days, metrics in clauses
    ]
    every = [d.isoformat() for d in DAYS]
    claims = [(m, d) for days, metrics in clauses for m in metrics for d in (set(days) or every)]
    if len(set(claims)) == len(claims):
        assert len(parse_contract(value, METRICS).clauses) == len(clauses)
    else:
        with pytest.raises(ContractError, match="is already expected on these days by"):
            parse_contract(value, METRICS)


finite = st.decimals(-(10**12), 10**12, places=4)


@given(finite, st.decimals(-2, 2, places=6))
def test_exactly_the_promised_change_is_allowed(old: Decimal, share: Decimal) -> None:
    assert Change(share, share).allows(old, old + old * share)


@given(finite.filter(lambda value: abs(value) > 1), changes)
def test_a_value_outside_the_band_is_not_allowed(old: Decimal, change: Change) -> None:
    margin = abs(old) * max(1, abs(change.low), abs(change.high)) / 1000
    outward = margin if old > 0 else -margin
    assert not change.allows(old, old + old * change.high + outward)
    assert not change.allows(old, old + old * change.low - outward)


def test_a_negative_sum_that_was_doubled_is_halved_by_minus_fifty_percent() -> None:
    halved = Change(Decimal("-0.5"), Decimal("-0.5"))
    assert halved.allows(Decimal(-1646), Decimal(-823))
    assert not halved.allows(Decimal(-1646), Decimal(-2469))


@given(st.floats(-1e12, 1e12), st.integers(0, 20))
def test_the_order_of_a_floating_sum_is_no_change(value: float, steps: int) -> None:
    moved = Decimal(value) * (1 + Decimal(steps) * Decimal("1e-16"))
    assert UNCHANGED.allows(Decimal(value), moved, floating=True)


def test_exact_figures_have_no_slack_and_floating_ones_have() -> None:
    old, new = Decimal("5000000000.00"), Decimal("5000000004.99")
    assert UNCHANGED.allows(old, new, floating=True)
    assert not UNCHANGED.allows(old, new)


@given(st.decimals(-(10**34), 10**34, places=4), st.integers(1, 10**6))
def test_not_even_the_last_of_thirty_eight_digits_moves_unnoticed(old: Decimal, steps: int) -> None:
    with localcontext(prec=60):
        moved = old + Decimal(steps).scaleb(-4)
        assert UNCHANGED.allows(old, old)
        assert not UNCHANGED.allows(old, moved)
        # An edge of a band is also exact: from 38 digits up to one step beyond it.
        doubled = Change(Decimal(0), Decimal(1))
        assert doubled.allows(old, 2 * old)
        assert not doubled.allows(old, 2 * old + (Decimal("0.0001") if old >= 0 else Decimal("-0.0001")))


@pytest.mark.parametrize(("old", "halves"), [("5", "2 3"), ("-5", "-2 -3"), ("3.01", "1.50 1.51"), ("4", "2")])
def test_a_share_that_falls_between_two_figures_allows_both_and_no_other(old: str, halves: str) -> None:
    halved, step = parse_change("-50%", "x"), Decimal("0.01" if "." in old else "1")
    allowed = [Decimal(text) for text in halves.split()]
    assert all(halved.allows(Decimal(old), figure) for figure in allowed)
    assert not halved.allows(Decimal(old), max(allowed) + step)
    assert not halved.allows(Decimal(old), min(allowed) - step)


NAN, INFINITE = Decimal("NaN"), Decimal("Infinity")


@pytest.mark.parametrize("value", [None, NAN, INFINITE, -INFINITE])
def test_only_nothing_may_stay_as_it_is_and_what_is_no_number_fits_no_band(value: Decimal | None) -> None:
    halved = parse_change("-50%", "x")
    assert UNCHANGED.allows(value, value) is (value is None)
    assert not halved.allows(value, value)
    for change in (UNCHANGED, halved, Change(Decimal(-1), Decimal(1))):
        assert not change.allows(value, Decimal(1))
        assert not change.allows(Decimal(1), value)
    assert not UNCHANGED.allows(INFINITE, -INFINITE)
    assert parse_change("any", "x").allows(value, value)


def test_nothing_grows_out_of_zero() -> None:
    wide = parse_change("-50% to 1000%", "x")
    assert wide.allows(Decimal(0), Decimal(0))
    assert not wide.allows(Decimal(0), Decimal(1))
    assert wide.allows(Decimal(-2), Decimal(-3))
    assert not wide.allows(Decimal(-2), Decimal(-23))


def test_any_change_may_come_out_of_nothing_or_zero_and_survives_a_round_trip() -> None:
    anything = parse_change("any", "x")
    assert str(anything) == "any"
    assert parse_change(str(anything), "x") == anything
    assert anything.allows(None, Decimal(5))
    assert anything.allows(Decimal(0), Decimal(5))
    assert anything.allows(Decimal(5), None)
