"""The first sentence of a report names the worst concern, whichever level has found it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from backfill_assets.core.certificate import Certificate, Disagreement
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.evidence import Basis, DatasetDay, DayEvidence, Severity, Verdict
from backfill_assets.core.expected_change import Change
from backfill_assets.core.measured import Seam
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.checks import Check, CheckKind, Level
from backfill_assets.report.concerns import Concern, checks_of, of_certificate, of_seams, of_verdicts
from backfill_assets.report.facts import ReviewedDay
from backfill_assets.report.judgement import Grounds, Outcome, judge_unit
from backfill_assets.report.series import DayState, MetricChange, Point, Series, relative
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.judged import DAY, GOOD

DAYS = (ReviewedDay("trips", DAY, DayState.passed, 3, 3, "e"),)
LEVELS = {
    Level.structural: {
        CheckKind.unique_key, CheckKind.not_null, CheckKind.not_empty, CheckKind.source_present, CheckKind.upstream_present,
        CheckKind.corrupt_rows, CheckKind.source_freshness, CheckKind.reference, CheckKind.rule, CheckKind.schema, CheckKind.keys,
        CheckKind.alone, CheckKind.identical, CheckKind.nulls,
    },
    Level.aggregate: {CheckKind.change, CheckKind.reconciliation, CheckKind.upstream_total, CheckKind.seams},
    Level.row: {CheckKind.rows, CheckKind.columns},
    Level.golden: {CheckKind.golden},
}  # fmt: skip


def failing(check: str, severity: Severity = Severity.error) -> Mapping[DatasetDay, DayEvidence]:
    blocks = severity is Severity.error
    verdict = Verdict(check, DAY, passed=False, severity=severity, blocks=blocks, expected="nothing", found="something")
    made = DayEvidence("u", 1, "trips", DAY, Basis("", "", "", ""), (), GOOD, (verdict,), START)
    return {("trips", DAY): made}


def sentence(concerns: Sequence[Concern], days: Sequence[ReviewedDay] = DAYS, **changes: object) -> str:
    grounds = replace(Grounds(UnitState.open, days, concerns, (), (), ()), **changes)  # type: ignore[arg-type]
    return judge_unit(grounds).sentence


def check(kind: CheckKind, severity: Severity = Severity.error, subject: str = "") -> Check:
    return Check("a_check", kind, subject, severity, severity is Severity.error, "")


def of_kind(kind: CheckKind, severity: Severity = Severity.error) -> tuple[Concern, ...]:
    return of_verdicts(failing("a_check", severity), {"trips": [check(kind, severity)]})


def test_every_kind_of_check_has_a_level() -> None:
    assert {kind: check(kind).level for kind in CheckKind} == {
        kind: level for level, kinds in LEVELS.items() for kind in kinds
    }


def test_numbers_of_rows_belong_to_the_structure() -> None:
    assert check(CheckKind.change, subject="row_count").level is Level.structural
    assert check(CheckKind.change, subject="revenue").level is Level.aggregate


@pytest.mark.parametrize("kind", CheckKind)
def test_the_sentence_names_level_check_day_found_and_expected(kind: CheckKind) -> None:
    assert sentence(of_kind(kind)) == (
        f"Not ready: {check(kind).level.value} check a_check of trips fails on {DAY}: found something, expected nothing."
    )


def test_a_check_that_is_no_longer_declared_counts_as_structural() -> None:
    (concern,) = of_verdicts(failing("old_check"), {})
    assert concern.level is Level.structural


def test_a_warning_does_not_keep_it_from_being_ready_but_is_named() -> None:
    judged = judge_unit(Grounds(UnitState.open, DAYS, of_kind(CheckKind.change, Severity.warn), (), (), ()))
    assert judged.outcome is Outcome.warning
    assert judged.sentence.startswith(
        f"Ready to publish, but look at this first: aggregate check a_check of trips warns on {DAY}: found something"
    )


def test_what_blocks_comes_before_what_warns_and_then_the_level_decides() -> None:
    def order() -> Iterator[Concern]:
        yield Concern(Level.structural, "trips", "warned", DAY, "", "", blocks=False)
        yield Concern(Level.golden, "trips", "golden", DAY, "", "", blocks=True)
        yield Concern(Level.row, "trips", "rows", DAY, "", "", blocks=True)
        yield Concern(Level.aggregate, "trips", "sum", DAY, "", "", blocks=True)
        yield Concern(Level.aggregate, "trips", "count", DAY, "", "", blocks=True)

    worst, *others = checks_of(order())
    assert (worst.first.check, worst.days, len(others)) == ("sum", 1, 4)
    assert "; 3 other checks found something too" in sentence(tuple(order()))


def test_a_seam_that_was_brought_in_warns_with_both_steps() -> None:
    seam = Seam("trips", "fare", DAY, Decimal(10), Decimal(5000), 0.2, 9.1, introduced=True)
    assert "aggregate check fare_seam of trips warns" in sentence(of_seams([seam]))
    assert "a step of +5,000 from the day before (+9.1 times the usual spread)" in sentence(of_seams([seam]))
    assert of_seams([replace(seam, introduced=False)]) == ()


def test_a_certificate_names_day_columns_and_recomputation_and_what_was_touched() -> None:
    other = Disagreement(DAY, "other shuffle", ("fare", "city"), ({"trip": 1},))
    made = Certificate(
        "c", "trips", "u", (DAY,), "", {}, (), {}, (other,), ("published trips 2024-04-01",), START, "ada"
    )
    both = of_certificate(made, blocks=True)
    assert [c.found for c in both] == [
        "fare and city came out differently (other shuffle)", "published trips 2024-04-01 changed meanwhile",
    ]  # fmt: skip
    assert sentence(both).startswith(
        f"Not ready: certificate check recomputation of trips fails on 2 of 1 day, first on {DAY}"
    )


def test_missing_and_stale_days_are_counted_with_the_first_and_why() -> None:
    stale = replace(DAYS[0], state=DayState.stale, why=("is stale: its upstream changed since it was checked",))
    missing = replace(DAYS[0], state=DayState.missing)
    assert sentence((), (DAYS[0], stale, missing)) == (
        f"Not ready: of 3 days 1 not built yet, 1 stale; first trips {DAY}: is stale: its upstream changed since it was checked."
    )


def test_a_good_verdict_counts_days_checks_certificates_golden_sources_and_says_what_it_waits_for() -> None:
    assert sentence((), pending="ab" * 32, proofs={"trips": 1}, golden=2) == (
        "Ready to publish: 1 of 1 day pass all 3 checks; nothing was published for these days before; recomputing 1 of 1 day gives "
        "the same rows; 2 golden sources agree; waits for an approval of evidence abababababab."
    )


def test_days_that_were_rewritten_after_a_rollback_are_not_called_as_before() -> None:
    back, read_again = (replace(DAYS[0], state=state) for state in (DayState.rolled_back, DayState.rewritten))
    assert sentence((), (back, back, read_again), state=UnitState.rolled_back) == (
        "Rolled back: readers see 2 days as they were before; 1 day rewritten since."
    )


def series(metric: str, *figures: tuple[int | None, int | None]) -> Series:
    points = [
        Point(DAY + ONE_DAY * n, *(None if value is None else Decimal(value) for value in pair))
        for n, pair in enumerate(figures)
    ]
    known = [change for p in points if (change := relative(p.old, p.new)) is not None]
    moved = Change(min(known), max(known)) if known else None
    return Series("trips", metric, MetricChange("trips", metric, len(known), moved, ()), tuple(points))


def test_days_that_had_no_row_are_reported_although_no_metric_of_the_others_changes() -> None:
    observed = (series("row_count", (2, 2), (None, 4), (0, 4)), series("fare", (10, 10), (None, 40), (None, 40)))
    assert "no metric" not in sentence((), series=observed)
    assert "; 2 of 3 days had no published row before." in sentence((), series=observed)


def test_a_metric_that_comes_from_nothing_or_goes_to_nothing_is_named() -> None:
    rows = series("row_count", (2, 2), (2, 2), (2, 2))
    observed = sentence(
        (), series=(rows, series("refunds", (0, 1000), (None, 5), (5, 5)), series("tip", (3, None), (1, 1)))
    )
    assert "; refunds comes from nothing on 2 days; tip goes to nothing on 1 day." in observed
    assert "no metric changes" in sentence((), series=(rows, series("refunds", (0, 0), (None, None), (5, 5))))


def test_reasons_that_refuse_a_campaign_make_it_not_ready_and_a_closed_window_is_reported() -> None:
    judged = judge_unit(
        Grounds(UnitState.open, DAYS, (), (), (), (), refusals=("it is stopped.", "its file has moved"))
    )
    assert (judged.outcome, judged.sentence) == (
        Outcome.not_ready, "Not ready: it is stopped; its file has moved.",
    )  # fmt: skip
    assert sentence((), later="the window opens at 22:00").endswith("; but not now: the window opens at 22:00.")


def test_a_recomputation_is_reported_with_its_days_and_the_datasets_without_one() -> None:
    days = tuple(replace(DAYS[0], dataset=name) for name in ("orders", "trips"))
    assert "; recomputing 1 of 2 days gives the same rows (none of orders)." in sentence((), days, proofs={"trips": 1})
