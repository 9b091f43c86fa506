"""A history that is missing is filled by native backfills of a real Dagster, while one of its days fails its checks."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import suppress

from backfill_assets.core.days import day_range
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.unit import UnitState
from backfill_assets.orchestration.services import services_of
from backfill_assets_tests.dagster.lab import BEHIND, Lab, amounts
from backfill_assets_tests.harness.waiting import wait_for

DAYS = day_range(dt.date(2024, 1, 1), dt.date(2024, 1, 4))
FIRST, BAD, THIRD, EMPTY = DAYS


def test_a_history_fills_itself_without_the_day_that_fails_until_its_file_is_corrected(lab: Lab) -> None:
    for day, amount in ((FIRST, 10), (BAD, -20), (THIRD, 30)):
        lab.deliver(BEHIND, day, [(1, amount)])

    wait_for(lambda: stepped(lab, {FIRST: 10, THIRD: 30}), "the days that pass to be published", 420)
    opened = [unit for unit in reversed(lab.application.ledger.units(BEHIND)) if unit.catches_up]
    assert [(unit.targets[BEHIND], unit.state) for unit in opened] == [
        ((FIRST, BAD), UnitState.discarded), ((FIRST, THIRD), UnitState.published),
    ]  # fmt: skip
    (found,) = json.loads(lab.backfill("status", BEHIND, "--json").stdout)["catch_up"]
    assert found["to"] == str(FIRST)
    assert f"it failed its checks in unit {opened[0].id}: {BAD} rule_not_negative" in found["waiting"][str(BAD)]
    assert found["waiting"][str(EMPTY)] == f"{BEHIND} has no delivery"

    lab.deliver(BEHIND, BAD, [(1, 20)], number=2)
    wait_for(lambda: stepped(lab, {FIRST: 10, BAD: 20, THIRD: 30}), "the corrected day to be published", 420)
    text = lab.backfill("status", BEHIND).stdout
    assert f"{BEHIND}: caught up to {THIRD}" in text
    (release, *_) = lab.application.ledger.releases(BEHIND)
    assert release.manifest.reason == "catch up: 1 due day not published"
    built = [day for attempt in lab.application.ledger.attempts() if attempt.dataset == BEHIND for day in attempt.days]
    assert sorted(built) == [FIRST, FIRST, BAD, BAD, THIRD]


def stepped(lab: Lab, expected: dict[dt.date, int]) -> bool:
    """Take a step beside the sensor, which looks each minute; whether these days are published, and Dagster knows it."""
    # Not while the sensor takes one.
    with lab.instance as instance, suppress(BackfillError):
        services_of(lab.application, instance, lab.url).catching_up.step((BEHIND,))
    opened = lab.application.ledger.units(BEHIND, states={UnitState.open})
    known = {str(day) for day in expected} <= lab.materialized("published", BEHIND)
    return amounts(lab, BEHIND, DAYS) == expected and known and not opened
