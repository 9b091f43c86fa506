"""The live pipeline beside an open unit: neither loses anything, and only the rewritten day becomes stale."""

from __future__ import annotations

import datetime as dt

from backfill_assets.core.days import day_range
from backfill_assets.core.unit import LIVE_TAG
from backfill_assets_tests.dagster.lab import Lab, amounts

DATASET = "tickets_beside"
DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 4))
REWRITTEN, LIVE = DAYS[1], dt.date(2024, 3, 20)


def test_a_day_rewritten_meanwhile_is_alone_stale_and_named_and_nothing_is_lost(lab: Lab) -> None:
    for day in DAYS:
        lab.deliver(DATASET, day, [(1, 10)])
    lab.deliver(DATASET, LIVE, [(7, 70)])
    built = lab.launch(DATASET, DAYS, layers=("raw", "staging", "shadow"))
    assert lab.finished(built) == "COMPLETED_SUCCESS", lab.failures(built)
    unit = lab.unit(built)
    assert amounts(lab, DATASET, DAYS) == {}

    lab.deliver(DATASET, REWRITTEN, [(1, 10), (2, 99)], number=2)
    live = lab.launch(DATASET, (REWRITTEN, LIVE), tags={LIVE_TAG: "true"})
    assert lab.finished(live) == "COMPLETED_SUCCESS", lab.failures(live)
    assert amounts(lab, DATASET, (REWRITTEN, LIVE)) == {REWRITTEN: 109, LIVE: 70}

    refused = lab.backfill("publish", unit.id)
    assert refused.returncode == 1
    assert f"{DATASET} {REWRITTEN} is stale" in refused.stderr
    for day in set(DAYS) - {REWRITTEN}:
        assert str(day) not in refused.stderr
    assert amounts(lab, DATASET, DAYS) == {REWRITTEN: 109}

    resumed = lab.launch(DATASET, (REWRITTEN,), layers=("raw", "staging", "shadow"))
    assert lab.finished(resumed) == "COMPLETED_SUCCESS", lab.failures(resumed)
    published = lab.backfill("publish", unit.id)
    assert published.returncode == 0, published.stderr
    assert amounts(lab, DATASET, (*DAYS, LIVE)) == {DAYS[0]: 10, REWRITTEN: 109, DAYS[2]: 10, DAYS[3]: 10, LIVE: 70}
    assert {str(d) for d in DAYS} <= lab.materialized("published", DATASET)


def test_a_launch_over_days_of_another_unit_is_refused_before_anything_is_written(lab: Lab) -> None:
    days = day_range(dt.date(2024, 4, 1), dt.date(2024, 4, 3))
    for day in days:
        lab.deliver(DATASET, day, [(1, 10)])
    first = lab.launch(DATASET, days[:2], layers=("raw", "staging", "shadow"))
    assert lab.finished(first) == "COMPLETED_SUCCESS", lab.failures(first)

    mixed = lab.launch(DATASET, days)
    assert lab.finished(mixed) != "COMPLETED_SUCCESS"

    text = lab.failures(mixed)
    assert f"claimed by open unit {lab.unit(first).id}" in text
    assert f"not claimed: {DATASET} {days[2]}" in text
    assert str(days[2]) not in lab.materialized("raw", DATASET)
    discarded = lab.backfill("discard", lab.unit(first).id)
    assert discarded.returncode == 0, discarded.stderr
