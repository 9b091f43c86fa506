"""What is offered to accept the findings of failed checks: exactly what was found, and only what may be declared at all."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backfill_assets.core.evidence import Basis, DayEvidence
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.measured import Compared, DayMeasurement, RowCounts, Side
from backfill_assets.core.unit import OPENED_BY, ReleaseMode, Unit
from backfill_assets.dataset.checks import metric_names
from backfill_assets.orchestration.launches import expected_changes
from backfill_assets.pipeline.acceptance import expected_change_for
from backfill_assets.pipeline.judge import judge
from backfill_assets_tests.harness.judged import GOOD, PLAIN, SAME, dataset

AT = dt.datetime(2024, 4, 1, tzinfo=dt.UTC)
COLUMNS = PLAIN["columns"] | {"tip": {"type": "decimal(9,2)"}}
TRIPS = dataset(columns=COLUMNS, measures={"fare": {"tolerance": "2%"}, "tip": {}}, checks={})
MOVED = Compared(RowCounts(changed=5, unchanged=95, columns={"tip": 5, "fare": 5}))
Figures = Mapping[str, Decimal | None]


def day(number: int) -> dt.date:
    return dt.date(2024, 3, number)


def figures(row_count: object = 100, fare: object = 250, tip: object = 40) -> Figures:
    return {
        name: Decimal(str(value)) if value is not None else None
        for name, value in {"row_count": row_count, "fare": fare, "tip": tip}.items()
    }


def measured(number: int, new: Figures, old: Figures | None = None) -> DayMeasurement:
    """A day whose staging agrees with its shadow, so that only the comparison with the published day can fail."""
    source = replace(GOOD.source, delivered_at=AT)
    published = Side(old or figures(), {}, "f")
    return replace(
        GOOD, day=day(number), shadow=Side(new, {}, "f"), published=published, staging=Side(new), source=source
    )


def checked(one: DayMeasurement, contract: Contract | None = None, compared: Compared = MOVED) -> DayEvidence:
    verdicts = judge(TRIPS, one, contract or Contract(), compared)
    return DayEvidence("u_1", 1, "trips", one.day, Basis("", "", "", ""), (), one, verdicts, AT, compared)


def offered(*evidence: DayEvidence, contract: Contract | None = None, opened_by: str = "b_1") -> str:
    days = tuple(one.day for one in evidence)
    unit = Unit("u_1", opened_by, AT, "anna", {"trips": days}, ReleaseMode.auto, contract or Contract())
    return expected_change_for(unit, evidence, {"trips": TRIPS})


def declared(plain: object) -> Contract:
    return parse_contract(plain, metric_names(TRIPS), dataset="trips", columns=TRIPS.promisable)


def read_by_the_command(text: str) -> Contract:
    return declared(expected_changes(text, [TRIPS], "--expected-change")["trips"])


def test_days_that_were_halved_are_offered_by_their_range_and_with_just_what_failed() -> None:
    halved = [checked(measured(n, figures(fare=125, tip=20))) for n in range(11, 21)]
    good = [checked(measured(n, figures()), compared=SAME) for n in (10, 21)]
    assert not any(one.passed for one in halved)
    assert json.loads(offered(*good, *halved)) == {
        "trips": [{"days": {"start": "2024-03-11", "end": "2024-03-20"}, "metrics": {"fare": "-50%", "tip": "-50%"}}]
    }
    assert offered(*good) == ""


def test_days_are_apart_where_other_metrics_failed_or_in_the_other_direction() -> None:
    found = offered(
        checked(measured(1, figures(tip=20))),
        checked(measured(3, figures(tip=80))),
        checked(measured(4, figures(tip="20.4", fare=300))),
    )
    assert json.loads(found)["trips"] == [
        {"days": ["2024-03-01", "2024-03-04"], "metrics": {"tip": "-50% to -49%"}},
        {"days": ["2024-03-03"], "metrics": {"tip": "+100%"}},
        {"days": ["2024-03-04"], "metrics": {"fare": "+20%"}},
    ]


def test_an_odd_day_does_not_hide_in_the_band_of_the_others() -> None:
    days = [checked(measured(n, figures(tip="39.96" if n != 7 else "0.4"))) for n in range(1, 31)]
    assert json.loads(offered(*days))["trips"] == [
        {"days": [str(day(n)) for n in range(1, 31) if n != 7], "metrics": {"tip": "-0.1%"}},
        {"days": ["2024-03-07"], "metrics": {"tip": "-99%"}},
    ]


def test_nothing_is_offered_for_a_dataset_that_is_not_loaded() -> None:
    one = checked(measured(1, figures(tip=20)))
    unit = Unit("u_1", "b_1", AT, "anna", {"trips": (one.day,)}, ReleaseMode.auto, Contract())
    assert expected_change_for(unit, [one], {"trips": TRIPS}) != ""
    assert expected_change_for(unit, [one], {}) == ""


def test_what_the_unit_declares_already_is_kept() -> None:
    plain: list[dict[str, object]] = [
        {"metrics": {"fare": "-50%"}},
        {"days": ["2024-03-01"], "metrics": {"row_count": "unchanged"}, "rows": {"city": "any"}},
    ]
    contract = declared(plain)
    found = offered(checked(measured(1, figures(fare=125, tip=30)), contract), contract=contract)
    assert json.loads(found)["trips"] == [*plain, {"days": ["2024-03-01"], "metrics": {"tip": "-25%"}}]


figure = st.decimals(-(10**6), 10**6, places=2, allow_nan=False)
rows = st.integers(1, 10**6)
found_days = st.lists(st.tuples(rows, rows, figure, figure, figure, figure), min_size=1, max_size=6)


@given(found_days, st.sampled_from(["row_count", "fare", "tip"]), st.decimals("0.001", 2, places=3))
def test_an_offer_accepts_exactly_what_was_found(
    found: Sequence[tuple[object, ...]], metric: str, more: Decimal
) -> None:
    days = [measured(n, figures(*new[::2]), figures(*new[1::2])) for n, new in enumerate(found, 1)]
    evidence = [checked(one) for one in days]
    text = offered(*evidence)
    assume(text)
    contract = read_by_the_command(text)

    for one, before in zip(days, evidence, strict=True):
        failed = {v.check.removeprefix("change_") for v in before.verdicts if v.refuses} - {"rows"}
        assert not [str(v) for v in judge(TRIPS, one, contract, MOVED) if v.refuses]
        assert {m for m in metric_names(TRIPS) if contract.expected(m, one.day) is not None} == failed
        assert contract.expected_rows(one.day) == {}
    # No band is wider than its days: beyond the largest and the smallest change the same declaration refuses.
    for clause in contract.clauses:
        shares = [
            new / old - 1
            for one in days
            if one.day in clause.days
            for old, new in [(one.published.metrics.get(metric), one.shadow.metrics.get(metric))]
            if old and new
        ]
        band = clause.metrics.get(metric)
        if band is not None:
            step = Decimal("0.000001")
            assert min(shares) - step < band.low <= min(shares) + step
            assert max(shares) - step <= band.high < max(shares) + step
            assert not band.allows(Decimal(10**6), Decimal(10**6) * (1 + max(shares) + more))
            assert not band.allows(Decimal(10**6), Decimal(10**6) * (1 + min(shares) - more))


DUPLICATE = replace(measured(1, figures(tip=20)), shadow=Side(figures(tip=20), {"duplicate_keys": 1}, "f"))


@pytest.mark.parametrize(
    "one",
    [
        checked(DUPLICATE),
        checked(measured(1, figures(tip=0))),
        checked(measured(1, figures(tip=None))),
        checked(measured(1, figures(tip="NaN"))),
        checked(measured(1, figures(tip=10**10), figures(tip=1))),
        checked(measured(1, figures(tip=20), figures(tip=0))),
        checked(measured(1, figures(tip=20), figures(tip=None))),
        checked(measured(1, figures(row_count=0, fare=None, tip=None))),
        # Errors that cancel out: the sum is right, its rows are not; alone, and beside another sum that moved.
        checked(measured(1, figures())),
        checked(measured(1, figures(fare=300))),
        # Rows were exchanged.
        checked(
            measured(1, figures(tip=20)), compared=Compared(replace(MOVED.rows or RowCounts(), added=2, removed=2))
        ),
    ],
)
def test_nothing_is_offered_for_what_no_declaration_of_a_change_may_excuse(one: DayEvidence) -> None:
    assert not one.passed
    assert offered(one) == ""
    assert offered(checked(measured(2, figures(tip=20))), one) == ""


def test_a_broken_promise_is_not_loosened_to_what_was_found() -> None:
    contract = declared({"tip": "-50%"})
    assert offered(checked(measured(1, figures(tip=30)), contract), contract=contract) == ""


def test_nothing_is_offered_that_a_campaign_or_a_launch_would_not_take() -> None:
    halved = checked(measured(1, figures(tip=20)))
    assert offered(halved)
    assert offered(halved, opened_by=f"{OPENED_BY}fix-1") == ""
    scattered = [
        checked(replace(measured(1, figures(tip=20)), day=dt.date(2024, 1, 1) + dt.timedelta(2 * n)))
        for n in range(200)
    ]
    assert offered(*scattered) == ""
    assert offered(*scattered[:100])
