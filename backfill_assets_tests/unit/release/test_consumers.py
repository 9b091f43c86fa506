"""When a figure that consumers read has drifted."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.expected_change import UNCHANGED, Change, Clause, Contract
from backfill_assets.dataset.sources import Consumer
from backfill_assets.release.watch import Moments, drifts, expects_change, watched

FINANCE = Consumer.model_validate({"sql": "SELECT sum(margin) FROM sales", "tolerance": "1%"})
EXACT = Consumer(sql="SELECT count(*) FROM sales")


def moments(before: object, after: object, now: object) -> Moments:
    return Moments(*({"finance": {"sum": None if v is None else Decimal(str(v))}} for v in (before, after, now)))


@pytest.mark.parametrize(
    ("before", "after", "now", "change_expected", "drifted"),
    [
        (100, 98, 98, True, False),
        (100, 98, "98.9", True, False),
        (100, 98, 99, True, True),
        (100, 98, 98, False, True),
        (100, 100, "100.9", False, False),
        (100, 100, "98.9", False, True),
        (-100, -100, "-101.1", False, True),
        (-100, -100, "-100.9", False, False),
        (None, 5, 5, True, False),
        (None, 5, 5, False, True),
        (None, None, None, False, False),
        (5, 5, None, False, True),
    ],
)
def test_a_figure_is_held_against_what_it_should_still_be(
    before: object, after: object, now: object, *, change_expected: bool, drifted: bool
) -> None:
    (found,) = watched({"finance": FINANCE}, moments(before, after, now), change_expected=change_expected)
    assert found.drifted is drifted
    assert (found.consumer, found.figure, found.tolerance) == ("finance", "sum", Decimal("0.01"))


def test_every_figure_of_every_consumer_is_compared_in_the_order_of_the_file() -> None:
    one = {"b": {"x": Decimal(1), "y": Decimal(2)}, "a": {"n": Decimal(3)}}
    now = {"b": {"x": Decimal(1), "y": Decimal(9)}, "a": {"n": Decimal(3)}}
    found = watched({"b": EXACT, "a": EXACT}, Moments(one, one, now), change_expected=False)
    assert [(w.consumer, w.figure, w.drifted) for w in found] == [
        ("b", "x", False),
        ("b", "y", True),
        ("a", "n", False),
    ]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.sampled_from([Decimal(0), Decimal("0.05")]))
def test_a_figure_never_drifts_from_itself(value: Decimal, tolerance: Decimal) -> None:
    assert not drifts(value, value, tolerance)
    assert drifts(value, None, tolerance)
    assert drifts(None, value, tolerance)


def test_a_value_that_is_no_number_only_equals_itself() -> None:
    nan = Decimal("NaN")
    assert not drifts(nan, nan, Decimal(0))
    assert drifts(nan, Decimal(1), Decimal(0))
    assert drifts(Decimal("Infinity"), Decimal("-Infinity"), Decimal(0))


def test_only_a_contract_that_lets_something_move_expects_a_change() -> None:
    assert not expects_change(Contract())
    assert not expects_change(Contract((Clause((), {"row_count": UNCHANGED}, "sales"),)))
    assert expects_change(Contract((Clause((), {"margin": Change(Decimal("-0.02"), Decimal("-0.01"))}, "sales"),)))
