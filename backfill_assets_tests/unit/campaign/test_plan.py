"""A plan is data: its canaries, batches and steps follow from its inputs, and it survives storage."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.campaign.plan import (
    Days,
    Estimate,
    Plan,
    PlannedDataset,
    StepKind,
    batches,
    choose_canaries,
    explain,
    shown_bytes,
    steps,
)
from backfill_assets.campaign.specification import Specification
from backfill_assets.core.canonical import from_json, to_json
from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.layers import Layer
from backfill_assets_tests.harness.specifications import specification

FIRST, LAST = dt.date(1995, 1, 1), dt.date(1996, 6, 30)
RANGE = day_range(FIRST, LAST)
DAYS = st.sets(st.dates(FIRST, dt.date(1995, 12, 31)), min_size=1, max_size=80)
NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def asked(**changes: object) -> Specification:
    own: dict[str, object] = {
        "backfill_id": "tax-fix",
        "source_range": {"start": "1995-01-01", "end": "1996-06-30"},
        "target": {"dataset": "order_items", "partition_key": "order_date"},
        "execution": {"partitions_per_batch": 7, "max_concurrency": 2, "canary": {"partitions": 3}},
        "publish_window": ["22:00-05:00"],
        "notify": {"webhook": "env:HOOK"},
    }
    return specification(**own | changes)


def planned(name: str = "order_items", layers: tuple[Layer, ...] = (Layer.staging, Layer.shadow)) -> PlannedDataset:
    return PlannedDataset(name, layers, RANGE, "c0de", {day: f"i{day:%j}" for day in RANGE}, 1_234_567, 89_000_000)


def a_plan(**changes: Any) -> Plan:
    datasets = (planned(), planned("daily_sales", (Layer.shadow,)))
    canaries = choose_canaries(RANGE, {}, 3)
    made = Plan(
        "tax-fix", "5pec", NOW, datasets, canaries, steps(asked(), datasets, canaries, 31),
        Estimate(2_469_134, 123_456, 180, 3_700.4, "4.31 EUR"), ("mind the gap",),
    )  # fmt: skip
    return replace(made, **changes)


@given(DAYS, st.dictionaries(st.dates(FIRST, dt.date(1995, 12, 31)), st.integers(0, 100)), st.integers(0, 100))
def test_canaries_are_so_many_different_days_of_the_plan_and_begin_with_the_oldest(
    days: set[dt.date], sizes: dict[dt.date, int], count: int
) -> None:
    canaries = choose_canaries(days, sizes, count)
    assert set(canaries) <= days
    assert len(canaries) == len(set(canaries)) == min(count, len(days))
    if count:
        assert canaries[0] == min(days)
    if count > 1 and len(days) > 1:
        assert canaries[1] == max(days)
    if count > 2:
        assert max(sizes.get(day, 0) for day in canaries) == max(sizes.get(day, 0) for day in days)


def test_after_oldest_newest_and_largest_come_the_edges_of_months() -> None:
    largest = dt.date(1995, 5, 17)
    canaries = choose_canaries(RANGE, {largest: 9, dt.date(1995, 6, 1): 8}, 6)
    assert canaries[:3] == (FIRST, LAST, largest)
    assert canaries[3:] == (dt.date(1995, 1, 31), dt.date(1995, 2, 1), dt.date(1995, 2, 28))


@given(DAYS, st.integers(1, 20), st.integers(1, 40))
def test_batches_cover_exactly_the_days_in_order_without_gaps_and_within_their_runs(
    days: set[dt.date], size: int, chunk_days: int
) -> None:
    cut = batches(days, size, chunk_days)
    assert [day for batch in cut for day in batch] == sorted(days)
    assert all(1 <= len(batch) <= min(size, chunk_days) for batch in cut)
    assert all(later - earlier == ONE_DAY for batch in cut for earlier, later in pairwise(batch))


def test_a_batch_ends_where_its_run_ends() -> None:
    assert [len(batch) for batch in batches(RANGE[:20], 4, 10)] == [4, 4, 2, 4, 4, 2]


def test_a_plan_comes_back_from_its_json_as_it_was() -> None:
    plan = a_plan()
    again = from_json(Plan, to_json(plan))
    assert again == plan
    assert (again.fingerprint, to_json(again)) == (plan.fingerprint, to_json(plan))
    assert json.loads(to_json(plan))["datasets"][0]["days"] == [["1995-01-01", "1996-06-30"]]


def test_days_with_gaps_come_back_as_well() -> None:
    gaps = (RANGE[0], RANGE[2], RANGE[3])
    plan = a_plan(datasets=(replace(planned(), days=gaps),))
    assert from_json(Plan, to_json(plan)).targets == {"order_items": gaps}


@pytest.mark.parametrize(
    "change",
    [
        {"specification": "other"},
        {"campaign": "other"},
        {"canaries": RANGE[:3]},
        {"steps": ()},
        {"datasets": (planned(),)},
        {"datasets": (replace(planned(), code_version="beef"), planned("daily_sales", (Layer.shadow,)))},
        {"datasets": (replace(planned(), inputs={FIRST: "x"}), planned("daily_sales", (Layer.shadow,)))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_moves_with_what_will_be_done(change: dict[str, Any]) -> None:
    assert a_plan(**change).fingerprint != a_plan().fingerprint


def test_the_fingerprint_stays_where_only_time_estimate_or_warnings_differ() -> None:
    later = a_plan(created_at=NOW + ONE_DAY, estimate=Estimate(0, 0, 0, 0.0), warnings=())
    assert later.fingerprint == a_plan().fingerprint


def test_targets_follow_from_the_datasets() -> None:
    plan = a_plan()
    assert plan.targets == {"order_items": RANGE, "daily_sales": RANGE}
    assert list(plan.targets) == ["order_items", "daily_sales"]


def kinds(found: Specification, canaries: Days = RANGE[:2]) -> list[StepKind]:
    return [step.kind for step in steps(found, (planned(),), canaries, 31)]


def test_steps_are_numbered_and_those_that_are_not_asked_for_are_left_out() -> None:
    assert kinds(asked()) == list(StepKind)
    bare = asked(notify=None, approval={"required": False})
    assert kinds(bare, ()) == [k for k in StepKind if k.value not in {"announce", "canary", "approve"}]
    assert StepKind.announce not in kinds(asked(notify={"webhook": "env:HOOK", "on": ["published"]}))
    numbers = [step.number for step in a_plan().steps]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_days_of_canary_and_rest_are_those_that_each_will_launch() -> None:
    plan = a_plan()
    days = {step.kind: step.days for step in plan.steps}
    assert days[StepKind.canary] == tuple(sorted(plan.canaries))
    assert days[StepKind.rest] == tuple(day for day in RANGE if day not in plan.canaries)
    assert days[StepKind.publish] == RANGE


def test_explain_shows_every_step_in_its_own_words_with_estimate_and_warnings() -> None:
    plan = a_plan()
    text = explain(plan)
    assert all(f"{step.number}. {step.text}" in text for step in plan.steps)
    assert "180 batches, 1:01:40 one after another, 4.31 EUR; 2,469,134 rows, reads 123 KB" in text
    assert text.endswith("warnings\n  mind the gap")
    assert f"plan {plan.fingerprint[:12]}" in text
    assert "(staging, shadow of order_items; shadow of daily_sales) in 6 batches" in text
    assert "warnings" not in explain(a_plan(warnings=()))


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (999_999, "1 MB"), (1_234_567_890, "1.23 GB"), (5 * 10**18, "5e+03 PB")],
)
def test_bytes_are_shown_with_three_digits(size: int, text: str) -> None:
    assert shown_bytes(size) == text
