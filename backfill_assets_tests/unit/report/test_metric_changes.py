"""How far metrics have moved over the days so far, beside what was promised."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from backfill_assets.core.evidence import Basis, DayEvidence
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.measured import NOTHING, Side
from backfill_assets.pipeline.judge import judge
from backfill_assets.report.series import MetricChange, metric_changes
from backfill_assets_tests.harness.judged import DAY, GOOD, METRICS, SAME, dataset

PROMISED = parse_contract({"fare": "-6% to -1%"}, ["fare"])


def evidence(day: dt.date, contract: Contract = PROMISED, **shadow: str) -> DayEvidence:
    """The changes of a day with the metrics of the kit, except for these."""
    metrics: Mapping[str, Decimal] = METRICS | {name: Decimal(value) for name, value in shadow.items()}
    measured = replace(GOOD, day=day, shadow=Side(metrics, GOOD.shadow.counts, "f"))
    verdicts = judge(dataset(), measured, contract, SAME)
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return DayEvidence("u", 1, "trips", day, Basis("", "", "", ""), (), measured, verdicts, now)


def of(metric: str, *days: DayEvidence) -> MetricChange:
    (found,) = [change for change in metric_changes(days) if change.metric == metric]
    return found


def test_the_range_of_a_change_is_shown_beside_its_promise() -> None:
    days = evidence(DAY, fare="240"), evidence(DAY + dt.timedelta(1), fare="245.49")
    found = of("fare", *days)
    assert (found.dataset, found.days, str(found.range)) == ("trips", 2, "-4.1917% to -2%")
    assert found.promised == ("-6% to -1% (the launch's contract)",)
    rows = of("row_count", *days)
    assert (str(rows.range), rows.promised) == ("unchanged", ("unchanged (the dataset's tolerance)",))


def test_metrics_come_in_the_order_of_their_checks() -> None:
    found = [change.metric for change in metric_changes([evidence(DAY)])]
    assert found == ["row_count", "fare", "p05_fare", "p50_fare", "p95_fare", "distinct_city"]


def test_several_promises_are_all_named() -> None:
    other = evidence(DAY + dt.timedelta(1), Contract())
    assert of("fare", evidence(DAY, fare="240"), other).promised == (
        "-6% to -1% (the launch's contract)", "-2% to +2% (the dataset's tolerance)",
    )  # fmt: skip


def test_a_day_with_nothing_to_compare_with_is_not_counted() -> None:
    first = evidence(DAY, Contract())
    new = replace(first, measured=replace(first.measured, published=NOTHING))
    assert (of("fare", new).days, of("fare", new).range, of("fare", new).promised) == (0, None, ())
    assert of("fare", new, evidence(DAY, fare="240")).days == 1


def test_rounding_of_floating_point_sums_is_no_change_and_a_huge_change_can_be_shown() -> None:
    assert str(of("fare", evidence(DAY, fare="250.50000000000003")).range) == "unchanged"
    assert str(of("fare", evidence(DAY, fare="1e40")).range).startswith("+399")
    assert str(of("fare", evidence(DAY, fare="250.5001")).range) == "+0% to +0.0001%"
