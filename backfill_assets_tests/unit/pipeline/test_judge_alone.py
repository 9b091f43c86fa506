"""Which days of a batch are also built alone, and what is said of them."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.days import day_range
from backfill_assets.core.measured import Alone
from backfill_assets.dataset.checks import checks_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.references import AsOf, Reference
from backfill_assets.dataset.sources import Format
from backfill_assets.pipeline.judge_rows import days_to_build_alone, judge_alone
from backfill_assets_tests.harness.tables import dataset, derived

DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 9))
LOOKS_BACK = dataset().model_copy(update={"lookback_days": 2})


def names(described: Dataset) -> set[str]:
    return {check.name for check in checks_of(described)}


def test_only_datasets_that_look_back_have_the_check() -> None:
    assert "same_alone" not in names(dataset()) | names(derived("totals", "sales"))
    assert "same_alone" in names(LOOKS_BACK)
    assert "same_alone" in names(derived("totals", "sales", lookback=1))


@given(st.text(max_size=9), st.sets(st.sampled_from(DAYS), min_size=2))
def test_the_last_day_and_one_other_are_built_alone_and_the_same_seed_draws_the_same(
    seed: str, days: set[dt.date]
) -> None:
    drawn, last = days_to_build_alone(LOOKS_BACK, tuple(days), seed)
    assert last == max(days)
    assert drawn in days - {last}
    assert days_to_build_alone(LOOKS_BACK, sorted(days), seed) == (drawn, last)


def test_where_days_look_ahead_the_first_day_is_built_alone_as_well() -> None:
    ahead = dataset().model_copy(update={"lookahead_days": 1})
    assert "same_alone" in names(ahead)
    first, *_, last = days_to_build_alone(ahead, DAYS, "u 1")
    assert (first, last) == (DAYS[0], DAYS[-1])
    assert days_to_build_alone(ahead, DAYS[:2], "u 1") == DAYS[:2]


def test_every_other_day_is_drawn_by_some_seed() -> None:
    assert {days_to_build_alone(LOOKS_BACK, DAYS, f"u {n}")[0] for n in range(99)} == set(DAYS[:-1])


def test_a_batch_of_one_day_and_days_that_see_no_others_are_not_built_alone() -> None:
    assert days_to_build_alone(LOOKS_BACK, DAYS[:1], "") == days_to_build_alone(dataset(), DAYS, "") == ()
    assert judge_alone(()).passed


def test_one_day_that_does_not_come_out_the_same_fails_the_batch_and_is_named() -> None:
    found = judge_alone((Alone(DAYS[0], 5, 0), Alone(DAYS[8], 7, 3)))
    assert (found.passed, found.found) == (False, "2024-03-09: 3 of 7 rows differ when built alone")
    assert judge_alone((Alone(DAYS[0], 5, 0), Alone(DAYS[8], 7, 0))).found == "the same on 2024-03-01, 2024-03-09"


def test_a_day_of_each_version_that_few_days_see_is_built_alone() -> None:
    costs = Reference(format=Format.csv, path="c.csv", as_of=AsOf.published, columns={"kind": "string"})
    dated = dataset().model_copy(update={"references": {"costs": costs}})
    usual = {day: {"costs": "b"} for day in DAYS}
    odd = DAYS[1]
    for number in range(20):
        chosen = days_to_build_alone(dated, DAYS, f"u {number}", {**usual, odd: {"costs": "a"}})
        assert {odd, DAYS[-1]} <= set(chosen)
    each = {day: {"costs": str(number)} for number, day in enumerate(DAYS)}
    assert len(days_to_build_alone(dated, DAYS, "u", each)) <= 7
