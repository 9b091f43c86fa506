"""What a comparison with a golden source says of a day."""

from __future__ import annotations

import pytest

from backfill_assets.core.evidence import Severity, Verdict
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import Compared, GoldenCounts
from backfill_assets.dataset.checks import CheckKind, checks_of
from backfill_assets.pipeline.judge import judge
from backfill_assets_tests.harness.judged import GOOD, dataset

BOOKED: dict[str, object] = {
    "table": "golden/bookings",
    "key": ["trip_date", "trip"],
    "columns": {"fare": {"tolerance": 0.01}, "city": {}},
}


def found(counts: GoldenCounts | None, **golden: object) -> Verdict:
    declared = dataset(golden={"booked": BOOKED | golden})
    compared = Compared(golden={"booked": counts} if counts else {})
    return {v.check: v for v in judge(declared, GOOD, Contract(), compared)}["golden_booked"]


def test_each_golden_source_has_a_check_of_its_own() -> None:
    declared = dataset(golden={"booked": BOOKED, "told": BOOKED | {"description": "What the till told."}})
    checks = [c for c in checks_of(declared) if c.kind is CheckKind.golden]
    assert [(c.name, c.description) for c in checks] == [
        ("golden_booked", "agrees with booked by trip_date, trip"),
        ("golden_told", "What the till told."),
    ]


@pytest.mark.parametrize(
    ("counts", "passed", "shown", "note"),
    [
        (GoldenCounts(equal=7), True, "7 rows that agree", ""),
        (GoldenCounts(), True, "0 rows that agree", "neither side has a row of the day"),
        (GoldenCounts(missing_here=1, equal=1), False, "1 missing here; 1 row that agrees", ""),
        (GoldenCounts(missing_there=2, equal=7), False, "2 missing there; 7 rows that agree", ""),
        (GoldenCounts(1, 2, 3000, 4), False, "1 missing here, 2 missing there, 3,000 different; 4 rows that agree", ""),
    ],
)
def test_mismatches_are_reported_by_kind(counts: GoldenCounts, passed: bool, shown: str, note: str) -> None:  # noqa: FBT001
    verdict = found(counts)
    assert (verdict.passed, verdict.expected, verdict.found) == (passed, "every row as in booked", shown)
    assert (verdict.tolerance, verdict.note) == ("0.01 in fare", note)
    assert verdict.refuses is not passed


def test_some_mismatches_may_be_tolerated() -> None:
    assert found(GoldenCounts(1, 1, 1), max_mismatches=3).passed
    verdict = found(GoldenCounts(2, 1, 1), max_mismatches=3)
    assert (verdict.passed, verdict.tolerance) == (False, "3 rows, 0.01 in fare")


@pytest.mark.parametrize("config", [{"severity": "warn"}, {"blocking": False}])
def test_a_golden_source_can_warn_only(config: dict[str, object]) -> None:
    verdict = found(GoldenCounts(different=1), **config)
    assert (verdict.passed, verdict.refuses) == (False, False)
    assert verdict.severity is (Severity.warn if "severity" in config else Severity.error)


def test_a_day_that_was_not_compared_does_not_pass() -> None:
    assert (found(None).passed, found(None).found) == (False, "rows that were not compared")
