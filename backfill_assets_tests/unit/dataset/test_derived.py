"""A dataset without a source: what its contract may say, and how its days are judged."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest
from pydantic import ValidationError

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.evidence import Verdict
from backfill_assets.core.expected_change import Change, Contract, parse_contract
from backfill_assets.core.measured import NOTHING, Compared, DayMeasurement, Side, SourceState, UpstreamState
from backfill_assets.dataset.checks import checks_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.pipeline.judge import judge

DAY = dt.date(2024, 3, 30)
TOTALS: dict[str, object] = {
    "name": "totals",
    "partition_column": "day",
    "start": "2024-03-01",
    "key": ["day"],
    "columns": {"day": {"type": "date"}, "fare": {"type": "long"}},
    "upstream": {"trips": {"lookback_days": 2}},
    "measures": {"fare": {}},
    "checks": {"reconciliation": {"totals": {"fare": {"upstream": "trips", "sql": "sum(fare)"}}}},
}
MEASURED = DayMeasurement(
    DAY,
    shadow=Side({"row_count": Decimal(1), "fare": Decimal(30)}),
    published=NOTHING,
    staging=NOTHING,
    source=SourceState(),
    upstream=UpstreamState({"trips": 3}, {"fare": Decimal(30)}),
)


def totals(**changes: object) -> Dataset:
    return Dataset.model_validate({**TOTALS, **changes})


def verdicts(measured: DayMeasurement, dataset: Dataset | None = None) -> dict[str, Verdict]:
    return {v.check: v for v in judge(dataset or totals(), measured, Contract(), Compared())}


def test_a_dataset_without_a_source_has_the_checks_of_its_upstream_instead() -> None:
    names = [check.name for check in checks_of(totals())]
    first = ["unique_key", "not_null", "not_empty", "upstream_present", "same_alone", "change_row_count", "change_fare"]
    assert names == [
        *first,
        "schema_contract",
        "change_keys",
        "change_rows",
        "change_columns",
        "seams",
        "null_share",
        "reconcile_fare",
    ]


def test_a_day_that_agrees_with_its_upstream_passes() -> None:
    assert all(v.passed for v in verdicts(MEASURED).values())


def test_a_total_that_differs_from_the_upstream_fails_with_both_figures() -> None:
    found = verdicts(replace(MEASURED, upstream=UpstreamState({"trips": 3}, {"fare": Decimal(31)})))["reconcile_fare"]
    assert (found.passed, found.expected, found.found) == (False, "31 as in trips", "30")


def test_a_day_without_upstream_rows_fails_unless_the_dataset_lets_it_pass() -> None:
    empty = replace(MEASURED, upstream=UpstreamState({"trips": 0}, {"fare": Decimal(30)}))
    refused = verdicts(empty)["upstream_present"]
    assert (refused.passed, refused.found) == (False, "0 of trips")
    assert "nothing of trips" in refused.note
    lenient = totals(upstream={"trips": {"on_missing": "pass"}})
    assert verdicts(empty, lenient)["upstream_present"].passed


def test_a_day_is_checked_for_the_upstream_days_that_it_looks_back_at() -> None:
    before = tuple(DAY - dt.timedelta(i) for i in (2, 1))
    short = replace(MEASURED, upstream=replace(MEASURED.upstream, absent={"trips": before}))
    refused = verdicts(short)["upstream_present"]
    assert (refused.refuses, refused.found, refused.note) == (
        True,
        "3 of trips, none of trips for 2024-03-28..2024-03-29, which the day looks back at",
        "trips of 2024-03-28..2024-03-29 is neither published nor in this unit: launch it for these days as well",
    )
    lenient = totals(upstream={"trips": {"lookback_days": 2, "on_missing": "pass"}})
    assert verdicts(short, lenient)["upstream_present"].passed


def test_an_empty_day_agrees_with_an_empty_upstream() -> None:
    counted = {"reconciliation": {"totals": {"row_count": {"upstream": "trips", "sql": "count(*)"}}}}
    lenient = totals(upstream={"trips": {"on_missing": "pass"}}, checks=counted)
    nothing = replace(MEASURED, shadow=NOTHING, upstream=UpstreamState({"trips": 0}, {"row_count": None}))
    assert verdicts(nothing, lenient)["reconcile_row_count"].passed
    found = verdicts(replace(nothing, shadow=MEASURED.shadow), lenient)["reconcile_row_count"]
    assert (found.passed, found.expected, found.found) == (False, "0 as in trips", "1")


def test_upstream_days_reach_back_but_not_before_the_history() -> None:
    assert totals().upstream_days("trips", (DAY,)) == tuple(DAY - dt.timedelta(i) for i in (2, 1, 0))
    assert totals().upstream_days("trips", (dt.date(2024, 3, 2),)) == (dt.date(2024, 3, 1), dt.date(2024, 3, 2))
    assert totals().delivery_days((DAY,)) == ()
    with pytest.raises(DatasetError, match="built from trips"):
        _ = totals().landing


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"upstream": {}}, "source and upstream are both missing"),
        ({"upstream": {"totals": {}}}, "the dataset itself"),
        ({"upstream": {"raw": {}}}, "a table of the models has that name"),
        ({"staging": {"deduplicate": "none"}}, "staging needs a source"),
        ({"checks": {"corrupt_rows": {"max_rows": 1}}}, "checks.corrupt_rows needs a source"),
        ({"checks": {"reconciliation": {"metrics": ["row_count"]}}}, "reconciliation.metrics needs a source"),
        ({"checks": {"reconciliation": {"totals": {"fare": {"upstream": "x", "sql": "1"}}}}}, "'x' is not declared"),
        ({"checks": {"reconciliation": {"totals": {"day": {"upstream": "trips", "sql": "1"}}}}}, "summed measure"),
    ],
)
def test_what_a_derived_dataset_cannot_say_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        totals(**changes)


def test_a_contract_of_several_datasets_speaks_to_each_of_its_own() -> None:
    trips = parse_contract({"row_count": "-50%"}, ["row_count"], dataset="trips")
    both = trips.updated(parse_contract({"fare": "unchanged"}, ["fare"], dataset="totals"), ["totals"])
    assert both.of("trips").expected("row_count", DAY) == Change(Decimal("-0.5"), Decimal("-0.5"))
    assert both.of("totals").expected("row_count", DAY) is None
    newer = both.updated(parse_contract({"row_count": "-25%"}, ["row_count"], dataset="trips"), ["trips"])
    assert newer.of("trips").expected("row_count", DAY) == Change(Decimal("-0.25"), Decimal("-0.25"))
    assert newer.of("totals").hash == both.of("totals").hash
    withdrawn = newer.updated(Contract(), ["trips"])
    assert not withdrawn.of("trips")
    assert withdrawn.of("totals").hash == both.of("totals").hash
