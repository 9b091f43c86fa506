"""Checks of columns and rows: what they promise, and what they find."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pytest

from backfill_assets.core.evidence import Basis, DayEvidence, Severity
from backfill_assets.core.expected_change import UNCHANGED, Contract, parse_change, parse_contract
from backfill_assets.core.measured import NOTHING, Compared, RowCounts, SchemaChange, Side
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.pipeline.judge import judge
from backfill_assets.pipeline.judge_rows import Promises, schema_change
from backfill_assets.pipeline.samples import columns_behind
from backfill_assets_tests.harness.judged import DAY, GOOD, METRICS, PLAIN, dataset, verdict, with_checks

COLUMNS = PLAIN["columns"] | {"tip": {"type": "decimal(9,2)", "tolerance": 0.01}, "seats": {"type": "integer"}}
MEASURES = {"fare": {"tolerance": "2%"}, "tip": {}, "city": {"sum": False, "distinct": True}}


def trips(**changes: object) -> Dataset:
    """A sum with a tolerance, one without, a measure that is no sum, and a column that is no measure."""
    return dataset(columns=COLUMNS, **{"measures": MEASURES, **changes})


def contract(value: object) -> Contract:
    return parse_contract(value, metric_names(trips()), columns=trips().promisable)


def changed(beyond: Mapping[str, int] | None = None, **columns: int) -> Compared:
    most = max(columns.values(), default=0)
    return Compared(RowCounts(changed=most, unchanged=100 - most, columns=columns, beyond=beyond or {}))


def test_a_sum_that_must_not_move_may_move_in_no_row() -> None:
    found = verdict("change_rows", GOOD, trips(), compared=changed(tip=2, fare=3, city=4))
    assert (found.passed, found.refuses) == (False, True)
    assert found.expected == "tip unchanged in every row"
    assert found.found == "tip changed in 2 of 100 rows that both sides have"
    assert found.tolerance == "0.01 in tip"
    assert found.note == (
        "if it is meant, promise it in the expected change: metrics: {tip: …}, or rows: {tip: …} if only rows may change and "
        "their sum must not; in a specification: expected_change or expected_row_change"
    )
    assert verdict("change_rows", GOOD, trips(), compared=changed(fare=3, seats=1)).passed


@pytest.mark.parametrize(
    ("said", "advised", "enough", "useless"),
    [
        ({}, "metrics: {tip: …}, or rows: {tip: …}", [{"tip": "-1%"}, {"rows": {"tip": "any"}}], {"fare": "-1%"}),
        ({"tip": "unchanged"}, "metrics: {tip: …}, or rows: {tip: …}", [{"tip": "-1%"}, {"rows": {"tip": "any"}}], {}),
        (
            {"rows": {"tip": "-8% to 0%"}},
            "promise it: rows: {tip: …}",
            [{"rows": {"tip": "any"}}],
            {"rows": {"tip": "-8% to 0%"}, "metrics": {"tip": "-1%"}},
        ),
    ],
)
def test_what_a_refusal_of_rows_advises_lets_them_pass_and_nothing_less_does(
    said: object, advised: str, enough: list[object], useless: object
) -> None:
    rows = changed({"tip": 2}, tip=2)
    assert advised in verdict("change_rows", GOOD, trips(), contract(said), rows).note
    assert all(verdict("change_rows", GOOD, trips(), contract(one), rows).passed for one in enough)
    assert not verdict("change_rows", GOOD, trips(), contract(useless), rows).passed


def test_a_contract_says_for_which_sums_rows_must_stay() -> None:
    both = changed(tip=2, fare=3)
    pinned = verdict("change_rows", GOOD, trips(), contract({"fare": "unchanged", "tip": "-1%"}), both)
    assert (pinned.passed, pinned.found) == (False, "fare changed in 3 of 100 rows that both sides have")
    assert verdict("change_rows", GOOD, trips(), contract({"tip": "any"}), both).passed


def test_a_promise_of_rows_takes_the_place_of_the_sums() -> None:
    shifted = contract({"rows": {"tip": "any", "seats": "unchanged", "fare": "-8% to 0%"}})
    kept = changed(tip=9, fare=5)
    found = verdict("change_rows", GOOD, trips(), shifted, kept)
    assert found.passed
    assert found.expected == "seats unchanged in every row; fare -8% to +0% in every row"
    broken = verdict("change_rows", GOOD, trips(), shifted, changed({"fare": 2, "seats": 1}, tip=9, fare=5, seats=1))
    assert broken.found == "seats changed in 1, fare changed in 2 of 100 rows that both sides have"
    assert not broken.passed


def test_a_promise_of_rows_blocks_whatever_the_dataset_says() -> None:
    lenient = trips(checks={"change_rows": {"severity": "warn"}})
    assert not verdict("change_rows", GOOD, lenient, compared=changed(tip=1)).refuses
    promised = contract({"rows": {"seats": "unchanged"}})
    found = verdict("change_rows", GOOD, lenient, promised, changed(seats=1))
    assert (found.refuses, found.severity) == (True, Severity.error)


def test_a_promise_of_one_column_makes_no_other_one_block() -> None:
    lenient = trips(checks={"change_rows": {"severity": "warn"}})
    seats = contract({"rows": {"seats": "any"}})
    assert verdict("change_rows", GOOD, lenient, seats, changed(tip=1)).passed
    observed = verdict("change_columns", GOOD, lenient, seats, changed(tip=1))
    assert (observed.found, observed.refuses) == ("tip changed in 1 of 100 rows that both sides have", False)
    both = contract({"metrics": {"tip": "unchanged"}, "rows": {"seats": "any"}})
    assert verdict("change_rows", GOOD, lenient, both, changed(tip=1)).refuses
    assert verdict("change_rows", GOOD, trips(), seats, changed(tip=1)).refuses


def test_figures_of_an_added_column_have_nothing_to_be_compared_with() -> None:
    old, new = (
        {**METRICS, "tip": tip, "distinct_tip": kinds} for tip, kinds in ((None, Decimal(0)), (Decimal(5), Decimal(3)))
    )
    grown = replace(GOOD, shadow=Side(new, GOOD.shadow.counts), published=Side(old))
    tips = trips(measures=MEASURES | {"tip": {"distinct": True}})
    added = Compared(RowCounts(unchanged=100), SchemaChange(added={"tip": "decimal(9,2)"}))
    for check in ("change_tip", "change_distinct_tip"):
        found = verdict(check, grown, tips, compared=added)
        assert (found.passed, found.note) == (True, "the column is new: nothing of it is published to compare with")
    assert not verdict("change_tip", grown, tips).passed
    assert verdict("change_tip", grown, tips, contract({"tip": "unchanged"}), added).refuses


@pytest.mark.parametrize("config", [{"severity": "warn"}, {"blocking": False}])
def test_rows_of_a_sum_that_does_not_block_are_only_reported(config: dict[str, object]) -> None:
    lenient = trips(measures=MEASURES | {"tip": config})
    assert verdict("change_rows", GOOD, lenient, compared=changed(tip=1)).passed
    observed = verdict("change_columns", GOOD, lenient, compared=changed(tip=1))
    assert (observed.passed, observed.refuses, observed.severity) == (False, False, Severity.warn)


def test_columns_without_a_promise_are_reported_without_blocking() -> None:
    all_of_them = changed(city=4, seats=2, fare=3, tip=1)
    observed = verdict("change_columns", GOOD, trips(), compared=all_of_them)
    # A tolerance of fare's total says nothing of its rows: errors in them may cancel out.
    changes = "city changed in 4, seats changed in 2, fare changed in 3"
    assert observed.found == f"{changes} of 100 rows that both sides have"
    assert (observed.passed, observed.refuses) == (False, False)
    assert "expected_row_change: {city: …} in a specification" in observed.note
    named = contract({"metrics": {"distinct_city": "any", "fare": "0% to 1%"}, "rows": {"seats": "any"}})
    assert verdict("change_columns", GOOD, trips(), named, all_of_them).passed
    strict = trips(checks={"change_columns": {"severity": "error"}})
    assert verdict("change_columns", GOOD, strict, compared=all_of_them).refuses


@pytest.mark.parametrize("check", ["change_rows", "change_columns"])
def test_rows_of_a_first_publication_have_nothing_to_be_compared_with(check: str) -> None:
    first = verdict(check, replace(GOOD, published=NOTHING), trips(), compared=Compared())
    assert (first.passed, first.note) == (True, "first load of the day: nothing is published to compare with")
    missing = verdict(check, GOOD, trips(), compared=Compared())
    assert (missing.passed, missing.found) == (False, "rows that were not compared")


def test_only_added_columns_pass_the_schema_contract() -> None:
    table = {"trip_date": "date", "trip": "long", "fare": "float", "toll": "double", "unit": "string"}
    change = schema_change(dataset(), table)
    assert change == SchemaChange({"city": "string"}, {"toll": "double"}, {"fare": "float → double"})
    found = verdict("schema_contract", GOOD, compared=Compared(RowCounts(), change))
    assert found.found == "adds city (string); removes toll (double); changes fare (float → double)"
    assert (found.refuses, "publish under a new dataset name" in found.note) == (True, True)
    added = verdict("schema_contract", GOOD, compared=Compared(RowCounts(), SchemaChange(change.added)))
    assert (added.passed, added.found, added.note) == (True, "adds city (string)", "")
    assert schema_change(dataset(), {}) == SchemaChange()
    assert verdict("schema_contract", GOOD, compared=Compared(RowCounts())).found == "all of them"


def test_a_column_may_go_if_the_dataset_says_so() -> None:
    table = {**{name: column.type for name, column in trips().columns.items()}, "toll": "double"}
    assert schema_change(trips(), table).removed == {"toll": "double"}
    said = trips(dropped_columns=["toll"])
    assert schema_change(said, table) == SchemaChange()
    found = verdict("schema_contract", GOOD, said, compared=Compared(RowCounts()))
    assert (found.passed, found.expected) == (True, "every column of the published table but toll, with its type")


def test_the_promise_of_rows_depends_on_the_day() -> None:
    one_day = contract([{"days": [str(DAY)], "rows": {"fare": "-8% to 0%"}, "metrics": {"tip": "any"}}])
    assert Promises(trips(), DAY, one_day).columns == {"fare": parse_change("-8% to 0%", "")}
    assert Promises(trips(), DAY.replace(day=1), one_day).columns == {"tip": UNCHANGED}


def test_changed_rows_are_wanted_of_the_columns_behind_a_failure_on_the_days_that_fail() -> None:
    def judged(day: dt.date, compared: Compared) -> DayEvidence:
        measured = replace(GOOD, day=day)
        verdicts = judge(trips(), measured, Contract(), compared)
        at = dt.datetime(2024, 4, 1, tzinfo=dt.UTC)
        return DayEvidence("u_1", 1, "trips", day, Basis("", "", "", ""), (), measured, verdicts, at, compared)

    other, third = DAY + dt.timedelta(1), DAY + dt.timedelta(2)
    evidence = [judged(DAY, changed(tip=2, seats=1)), judged(other, changed(tip=1)), judged(third, Compared())]
    wanted = columns_behind(trips(), Contract(), evidence)
    assert {key: tuple(days) for key, days in wanted.items()} == {
        ("change_rows", "tip"): (DAY, other),
        ("change_columns", "seats"): (DAY,),
    }


def test_every_check_can_be_set_to_warn() -> None:
    checks = with_checks(schema_contract={"severity": "warn"}).checks
    assert (checks.schema_contract.blocks, checks.change_rows.blocks, checks.change_columns.blocks) == (
        False,
        True,
        False,
    )


PROVISIONAL: dict[str, object] = {"lookahead_days": 1, "provisional": {"may_change": ["tip"]}}


def finalizes(compared: Compared, *, corrected: bool = False) -> Compared:
    return replace(compared, finalizes=True, corrected=corrected)


def test_finalizing_a_provisional_day_may_change_only_what_it_may() -> None:
    described = trips(**PROVISIONAL)
    assert verdict("change_rows", GOOD, described, compared=finalizes(changed(tip=9))).passed
    found = verdict("change_rows", GOOD, described, compared=finalizes(changed(tip=9, seats=1, fare=2)))
    assert (found.refuses, found.found) == (
        True,
        "fare changed in 2, seats changed in 1 of 100 rows that both sides have",
    )
    assert found.expected == "fare, city, seats unchanged in every row"
    assert found.note == (
        "the published day is provisional, and finalizing it may change only tip (provisional.may_change); if it is meant, promise "
        "it: rows: {fare: …} in the expected change, or expected_row_change: {fare: …} in a specification"
    )
    assert verdict("change_columns", GOOD, described, compared=finalizes(changed(tip=9))).passed
    # A final day, and one whose own deliveries were corrected, are judged like any other.
    assert not verdict("change_rows", GOOD, described, compared=changed(tip=9)).passed
    assert verdict("change_rows", GOOD, described, compared=changed(seats=1)).passed
    assert verdict("change_rows", GOOD, described, compared=finalizes(changed(tip=9, seats=1), corrected=True)).passed
    assert not verdict("change_columns", GOOD, described, compared=finalizes(changed(seats=1), corrected=True)).passed


def test_finalizing_frees_the_metrics_of_what_may_change_and_a_launch_says_otherwise() -> None:
    described = trips(**PROVISIONAL)
    doubled = replace(
        GOOD,
        published=replace(GOOD.published, metrics={**METRICS, "tip": Decimal(10)}),
        shadow=replace(GOOD.shadow, metrics={**METRICS, "tip": Decimal(20)}),
    )
    free = verdict("change_tip", doubled, described, compared=finalizes(changed(tip=9)))
    assert (free.passed, free.note) == (
        True,
        "the published day is provisional, and finalizing it may change this (provisional.may_change)",
    )
    assert not verdict("change_tip", doubled, described, compared=changed(tip=9)).passed
    said = contract({"tip": "unchanged"})
    assert not verdict("change_tip", doubled, described, said, finalizes(changed(tip=9))).passed
    assert not verdict("change_rows", GOOD, described, said, finalizes(changed(tip=9))).passed
    meant = contract({"rows": {"seats": "any"}})
    assert verdict("change_rows", GOOD, described, meant, finalizes(changed(seats=1, tip=1))).passed
    assert not verdict("change_rows", GOOD, described, meant, finalizes(changed(fare=1))).passed


def test_the_rows_that_finalizing_may_not_change_are_shown() -> None:
    described, compared = trips(**PROVISIONAL), finalizes(changed(tip=9, seats=1))
    verdicts = judge(described, GOOD, Contract(), compared)
    one = DayEvidence(
        "u",
        1,
        "trips",
        DAY,
        Basis("i", "c", "k", "p"),
        (),
        GOOD,
        verdicts,
        dt.datetime(2024, 3, 31, tzinfo=dt.UTC),
        compared,
    )
    assert columns_behind(described, Contract(), [one]) == {("change_rows", "seats"): [DAY]}
