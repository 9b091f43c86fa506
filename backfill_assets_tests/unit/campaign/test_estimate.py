"""Estimates are learnt from measured attempts, and are never below zero."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.campaign.plan import (
    ASSUMED,
    Days,
    Estimate,
    Plan,
    PlannedDataset,
    Price,
    Rate,
    batches,
    estimate_left,
    parse_price,
    rate_of,
    rates_of,
)
from backfill_assets.core.days import day_range
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import Attempt, AttemptState

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
RANGE = day_range(dt.date(1995, 1, 1), dt.date(1995, 1, 20))


def attempt(
    seconds: float, rows: int, days: Days = (), dataset: str = "sales", state: AttemptState = AttemptState.done
) -> Attempt:
    end = NOW + dt.timedelta(seconds=seconds)
    return Attempt(1, "u", dataset, days, "r", "w", state, NOW, NOW, end, rows, 10 * rows)


def a_plan(rows: int = 2_000) -> Plan:
    dataset = PlannedDataset("sales", (Layer.shadow,), RANGE, "c0de", {}, rows, 500)
    return Plan("tax-fix", "5pec", NOW, (dataset,), RANGE[:2], (), Estimate(rows, 9_999, 5, 60.0))


def test_without_a_measured_attempt_the_rate_is_the_assumed_one() -> None:
    unfinished = Attempt(1, "u", "sales", (), "r", "w", AttemptState.done, NOW, NOW)
    assert rate_of([attempt(9, 5, state=AttemptState.failed), attempt(9, 0), unfinished]) == ASSUMED
    assert ASSUMED.measured == 0


def test_few_and_many_rows_show_what_a_batch_and_what_a_row_costs() -> None:
    rate = rate_of([attempt(5 + 0.001 * rows, rows) for rows in (1_000, 2_000, 5_000, 9_000)])
    assert rate.measured == 4
    assert rate.fixed == pytest.approx(5)
    assert rate.per_row == pytest.approx(0.001)


def test_attempts_that_do_not_show_what_a_row_costs_only_make_the_known_rate_longer() -> None:
    known = Rate(10.0, 0.01)
    assert rate_of([attempt(40, 1_000), attempt(40, 1_000)], known) == Rate(20.0, 0.02, 2)


def test_more_rows_in_less_time_make_no_negative_rate() -> None:
    rate = rate_of([attempt(100, 10), attempt(50, 100), attempt(20, 1_000), attempt(10, 10_000)])
    assert rate.fixed > 0
    assert rate.per_row > 0


def test_only_the_newest_attempts_count() -> None:
    old, new = [attempt(1_000, 100)] * 50, [attempt(14, 100)] * 200
    assert rate_of([*old, *new]).seconds(1, 100) == pytest.approx(14)


def test_each_dataset_goes_by_its_own_attempts_and_one_without_by_all() -> None:
    rates = rates_of(["sales", "orders"], [attempt(70, 1)], {})
    assert rates["sales"].fixed == pytest.approx(70, rel=1e-3)
    assert rates["orders"] == rates["sales"]
    assert rates_of(["orders"], [attempt(70, 1)], {"orders": ASSUMED}) == {"orders": ASSUMED}


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.integers(0, 10**9)), max_size=30))
def test_a_rate_is_never_negative_and_meets_the_measured_time(measured: list[tuple[float, int]]) -> None:
    rate = rate_of([attempt(seconds, rows) for seconds, rows in measured])
    assert rate.fixed >= 0
    assert rate.per_row >= 0
    known = [(seconds, rows) for seconds, rows in measured if rows]
    if known:
        together = rate.seconds(len(known), sum(rows for _, rows in known))
        assert together == pytest.approx(sum(seconds for seconds, _ in known), rel=1e-3)


def test_the_days_left_are_those_that_no_finished_attempt_has_built() -> None:
    done = attempt(10, 200, RANGE[:2])
    failed = attempt(10, 200, RANGE[2:4], state=AttemptState.failed)
    rates = {"sales": Rate(10.0, 0.01)}
    left = estimate_left(a_plan(), [done, failed], rates, lambda days: batches(days, 7, 31))
    # 18 of 20 days: nine tenths of the rows in three batches, at 1,000 bytes a day as measured
    assert left == Estimate(1_800, 18_000, 3, 10.0 * 3 + 0.01 * 1_800)


def test_where_the_plan_knew_no_rows_the_measured_ones_count() -> None:
    left = estimate_left(
        a_plan(0), [attempt(10, 200, RANGE[:2])], {"sales": ASSUMED}, lambda days: batches(days, 7, 31)
    )
    assert left.rows == 1_800


def test_a_batch_that_landed_or_staged_days_has_not_built_them() -> None:
    dataset = replace(a_plan().datasets[0], layers=(Layer.raw, Layer.staging, Layer.shadow))
    plan = replace(a_plan(), datasets=(dataset,))
    staged = [replace(attempt(10, 0, RANGE), layer=layer, bytes_read=2_000) for layer in (Layer.raw, Layer.staging)]
    rates = {"sales": ASSUMED}
    left = estimate_left(plan, staged, rates, lambda days: batches(days, 7, 31))
    assert (left.rows, left.bytes, left.batches) == (2_000, 9_999, 3)
    left = estimate_left(plan, [*staged, attempt(10, 200, RANGE[:2])], rates, lambda days: batches(days, 7, 31))
    # 18 of 20 days in three batches, at 1,000 bytes a day in the shadow and 100 in each layer before it
    assert (left.rows, left.bytes, left.batches) == (1_800, 18_000 + 2 * 1_800, 3)


def test_nothing_is_left_of_a_plan_whose_days_are_all_built() -> None:
    left = estimate_left(a_plan(), [attempt(10, 5, RANGE)], {"sales": ASSUMED}, lambda days: batches(days, 7, 31))
    assert left == Estimate(0, 0, 0, 0.0)


def test_the_complete_plan_is_left_before_any_attempt() -> None:
    left = estimate_left(a_plan(), [], {"sales": ASSUMED}, lambda days: batches(days, 7, 31))
    assert (left.rows, left.bytes, left.batches) == (2_000, 9_999, 3)


def test_a_price_is_a_number_and_a_currency() -> None:
    assert parse_price(" 4.20 EUR") == Price(Decimal("4.20"), "EUR")
    assert parse_price("4.20 EUR").of(1_800) == "2.10 EUR"


@pytest.mark.parametrize("text", ["", "4.20", "EUR", "4,20 EUR", "-1 EUR", "4 euro"])
def test_anything_else_is_no_price(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 4\.20 EUR"):
        parse_price(text)
