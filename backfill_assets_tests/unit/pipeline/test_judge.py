"""Every kind of check, passing and failing."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest

from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.evidence import Severity
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.measured import (
    NOTHING,
    DayMeasurement,
    SameContent,
    Side,
    SourceDay,
    SourceState,
    UpstreamState,
)
from backfill_assets.dataset.checks import checks_of, measure_of, metric_names
from backfill_assets.dataset.definition import Staging
from backfill_assets.dataset.reading import Deduplicate
from backfill_assets.pipeline.judge import judge
from backfill_assets_tests.harness.judged import (
    DAY,
    GOOD,
    METRICS,
    PLAIN,
    SAME,
    dataset,
    shadow,
    verdict,
    with_checks,
    with_metric,
)

NAN = Decimal("NaN")
INFINITE = Decimal("Infinity")


def floating(metric: str, value: Decimal, side: str) -> DayMeasurement:
    """One figure of a side as Spark's floating-point arithmetic gives it."""
    measured = with_metric(metric, value, side)
    return replace(measured, **{side: replace(getattr(measured, side), floating=(metric,))})


EMPTIED = replace(GOOD, shadow=NOTHING)


def source(**changes: object) -> DayMeasurement:
    return replace(GOOD, source=replace(GOOD.source, **changes))


def test_a_good_day_passes_every_check_once() -> None:
    verdicts = judge(dataset(), GOOD, Contract(), SAME)
    assert [v.check for v in verdicts] == [c.name for c in checks_of(dataset())]
    assert len({v.check for v in verdicts}) == len(verdicts) == 24
    assert [str(v) for v in verdicts if not v.passed] == []
    assert {v.day for v in verdicts} == {DAY}


@pytest.mark.parametrize(
    ("check", "measured", "found"),
    [
        ("unique_key", shadow(duplicate_keys=2), "2 duplicate keys"),
        ("not_null", shadow(nulls__fare=3, nulls__trip=1), "1 in trip, 3 in fare"),
        ("not_empty", EMPTIED, "0 rows"),
        ("not_empty", replace(EMPTIED, published=NOTHING), "0 rows"),
        ("source_present", source(deliveries=0, rows=0), "none"),
        ("source_present", source(deliveries=1, rows=0), "1 deliveries without a row"),
        ("corrupt_rows", source(corrupt_rows=1, outside_rows=1), "1 unreadable, 1 of another day, of 100 rows"),
        ("source_freshness", source(delivered_at=dt.datetime(2024, 4, 2, 12, tzinfo=dt.UTC)), "61.0 h after it"),
        ("source_freshness", source(delivered_at=None), "nothing was delivered"),
        ("change_row_count", with_metric("row_count", Decimal(101)), "100 → 101 (+1.0000%)"),
        ("change_fare", with_metric("fare", Decimal(300)), "250.5 → 300 (+19.7605%)"),
        ("change_p50_fare", with_metric("p50_fare", Decimal("2.1")), "2 → 2.1 (+5.0000%)"),
        ("change_distinct_city", with_metric("distinct_city", Decimal(8)), "7 → 8 (+14.2857%)"),
        ("change_fare", with_metric("fare", None), "250.5 → nothing"),
        ("change_fare", with_metric("fare", None, "published"), "nothing → 250.5"),
        ("change_fare", with_metric("fare", NAN), "250.5 → NaN"),
        ("change_fare", with_metric("fare", INFINITE), "250.5 → Infinity"),
        ("reconcile_row_count", with_metric("row_count", Decimal(99)), "99"),
        ("reconcile_fare", with_metric("fare", NAN, "staging"), "250.5"),
        ("reconcile_fare", with_metric("fare", Decimal("250.5000000000001"), "staging"), "250.5"),
        ("reconcile_fare", with_metric("fare", None, "staging"), "250.5"),
        ("reference_cities", shadow(unmatched__cities=11), "11 of 100 without a match (11.00%)"),
        (
            "reference_cities",
            shadow(unmatched__cities=6, ambiguous__cities=5),
            "6 of 100 without a match (6.00%), 5 with more than one version",
        ),
        ("rule_fare_is_positive", shadow(rule__fare_is_positive=1), "1 failing row"),
        ("rule_lenient", shadow(rule__lenient=3), "3 failing rows"),
    ],
)
def test_a_bad_figure_fails_its_check_and_blocks(check: str, measured: DayMeasurement, found: str) -> None:
    result = verdict(check, measured)
    assert (result.passed, result.found) == (False, found)
    assert result.refuses
    assert str(result).startswith(f"2024-03-30 {check}: expected {result.expected}, found {found}")


@pytest.mark.parametrize(
    ("check", "measured"),
    [
        ("corrupt_rows", source(corrupt_rows=1)),
        ("source_freshness", source(delivered_at=dt.datetime(2024, 4, 1, 11, tzinfo=dt.UTC))),
        ("change_fare", with_metric("fare", Decimal("255.51"))),
        ("change_fare", with_metric("fare", Decimal("245.49"))),
        ("reference_cities", shadow(unmatched__cities=0, checked__cities=0)),
        ("rule_lenient", shadow(rule__lenient=2)),
        ("reconcile_fare", floating("fare", Decimal("250.5000000000001"), "staging")),
        ("reconcile_fare", floating("fare", Decimal("250.5000000000001"), "shadow")),
    ],
)
def test_a_figure_at_its_limit_passes(check: str, measured: DayMeasurement) -> None:
    assert verdict(check, measured).passed


def test_a_day_whose_models_keep_no_row_is_refused_unless_a_published_one_is_promised_to_be_emptied() -> None:
    """Staging said `WHERE status = 'OK'` where the supplier wrote `ok`: the new day was published empty, all green."""
    new = replace(EMPTIED, published=NOTHING)
    promise = parse_contract({"row_count": "any"}, metric_names(dataset()))
    assert verdict("not_empty", EMPTIED).note.startswith("none of 100 rows is left; if such days are right")
    assert verdict("not_empty", EMPTIED, contract=promise).passed
    assert not verdict("not_empty", new, contract=promise).passed
    assert not verdict("not_empty", EMPTIED, with_checks(row_count={"tolerance": "100%"})).passed
    # Files of later days do not show whether the day has rows.
    assert verdict("not_empty", replace(source(rows=0, rows_read=50), shadow=NOTHING)).passed
    assert not verdict("not_empty", new, with_checks(not_empty={"severity": "warn"})).refuses


@pytest.mark.parametrize(("orders", "days_off", "passed"), [(5, 0, False), (5, 5, False), (0, 5, True), (0, 0, True)])
def test_a_day_that_is_built_from_others_has_rows_where_each_that_must_have_some_has(
    orders: int, days_off: int, *, passed: bool
) -> None:
    of = {"orders": {"on_missing": "fail"}, "days_off": {"on_missing": "pass"}}
    built = dataset(source=None, references={}, checks={}, upstream=of)
    measured = replace(EMPTIED, upstream=UpstreamState({"orders": orders, "days_off": days_off}))
    assert verdict("not_empty", measured, built).passed is passed
    optional = dataset(source=None, references={}, checks={}, upstream={n: {"on_missing": "pass"} for n in of})
    assert verdict("not_empty", measured, optional).passed is not (orders and days_off)


def test_nothing_is_asked_of_an_upstream_whose_history_has_not_begun() -> None:
    of = {"orders": {"on_missing": "fail"}, "days_off": {"on_missing": "fail"}}
    built = dataset(source=None, references={}, checks={}, upstream=of)
    later = built.linked({"orders": GOOD.day + ONE_DAY, "days_off": GOOD.day})
    measured = replace(GOOD, upstream=UpstreamState({"days_off": 5}))
    assert not verdict("upstream_present", measured, built).passed
    assert (
        verdict("upstream_present", measured, later).found
        == "5 of days_off, none of orders, whose history begins later"
    )
    assert verdict("upstream_present", measured, later).passed
    assert not verdict("not_empty", replace(EMPTIED, upstream=UpstreamState({"days_off": 5})), later).passed
    assert not verdict("upstream_present", replace(GOOD, upstream=UpstreamState({"orders": 5})), later).passed


def test_a_day_is_checked_for_the_days_that_it_looks_back_at() -> None:
    absent, bad = SourceDay(DAY - dt.timedelta(2), 0, 0), SourceDay(DAY - dt.timedelta(1), 5, 2)
    short = source(faulty_beside=(absent, bad))
    present, corrupt = verdict("source_present", short), verdict("corrupt_rows", short)
    assert (present.refuses, present.found) == (True, "1 deliveries, none for 2024-03-28, which the day looks back at")
    assert (corrupt.refuses, corrupt.found.partition("; ")[2]) == (
        True,
        "2 such rows of 2024-03-29, which the day looks back at",
    )
    tolerant = dataset(source=PLAIN["source"] | {"on_missing": "pass"})
    assert verdict("source_present", short, tolerant).passed
    # The limit applies to each day separately.
    assert verdict("corrupt_rows", source(faulty_beside=(replace(bad, bad_rows=1),))).passed


NEXT = DAY + ONE_DAY


def test_a_day_is_published_when_the_days_that_it_looks_ahead_to_have_landed() -> None:
    waits, bad = source(awaited=(NEXT,), faulty_beside=(SourceDay(NEXT, 0, 0),)), SourceDay(NEXT, 5, 2)
    present = verdict("source_present", waits)
    assert (present.refuses, present.found) == (
        True,
        "1 deliveries, none yet for 2024-03-31, which the day looks ahead to",
    )
    assert present.note == "launch the day again when 2024-03-31 is over"
    tolerant = dataset(source=PLAIN["source"] | {"on_missing": "pass"})
    assert verdict("source_present", waits, tolerant).refuses
    empty = verdict("source_present", replace(waits, source=replace(waits.source, rows=0, deliveries=0)), tolerant)
    assert (empty.refuses, "lets such days pass" in empty.note) == (True, False)
    assert verdict("source_present", source(faulty_beside=(SourceDay(NEXT, 0, 0),)), tolerant).passed
    missing = verdict("source_present", source(faulty_beside=(SourceDay(NEXT, 0, 0),)))
    assert (missing.refuses, missing.found) == (True, "1 deliveries, none for 2024-03-31, which the day looks ahead to")
    corrupt = verdict("corrupt_rows", source(faulty_beside=(bad,)))
    assert (corrupt.refuses, corrupt.found.partition("; ")[2]) == (
        True,
        "2 such rows of 2024-03-31, which the day looks ahead to",
    )


def test_a_provisional_day_is_published_without_the_days_that_it_awaits() -> None:
    described = dataset(lookahead_days=1, provisional={"may_change": ["fare"]})
    waits = source(awaited=(NEXT,), faulty_beside=(SourceDay(NEXT, 0, 0),))
    present = verdict("source_present", waits, described)
    assert (present.passed, present.note) == (True, "the day is provisional until 2024-03-31 is over and has landed")
    assert present.found == "1 deliveries, none yet for 2024-03-31, which the day looks ahead to"
    own = verdict("source_present", replace(waits, source=replace(waits.source, rows=0, deliveries=0)), described)
    assert own.refuses
    before = replace(waits, source=replace(waits.source, faulty_beside=(SourceDay(DAY - ONE_DAY, 0, 0),)))
    assert verdict("source_present", before, described).refuses


def test_a_delivery_whose_file_is_gone_is_named_and_refuses_nothing() -> None:
    one, several = source(gone=("a.csv",)), source(gone=("a.csv", "b.csv", "c.csv"), deliveries=3)
    assert verdict("source_present", one).passed
    assert verdict("source_present", one).note == "source gone: a.csv; its rows are read from raw"
    assert verdict("source_present", several).note.startswith("source gone: a.csv and 2 more")
    assert verdict("source_present", GOOD).note == ""
    empty = verdict("source_present", source(rows=0, gone=("a.csv",)))
    assert empty.refuses
    assert empty.note.endswith("source gone: a.csv; its rows are read from raw")


def test_nothing_equals_nothing_and_what_is_no_number_does_not_equal_itself() -> None:
    for value in (None, NAN, INFINITE):
        both = replace(with_metric("fare", value), published=with_metric("fare", value, "published").published)
        staged = replace(both, staging=with_metric("fare", value, "staging").staging)
        for check in ("change_fare", "reconcile_fare"):
            found = verdict(check, staged)
            assert found.passed is (value is None), (check, value)
            assert ("let the model write a number or null" in found.note) is (value is not None)


@pytest.mark.parametrize(
    ("deduplicate", "days", "passed", "note"),
    [
        ("latest_delivery", 1, True, "for each key the rows of the newest delivery are kept"),
        ("latest_delivery", 2, False, "delivered for several days: 2024-03-30..2024-03-31"),
        ("none", 1, False, "each of them is counted"),
        ("none", 2, False, "delivered for several days: 2024-03-30..2024-03-31"),
    ],
)
def test_files_of_equal_content_are_warned_of_where_their_rows_add_up(
    deduplicate: str, days: int, passed: object, note: str
) -> None:
    twice = source(identical=(SameContent(("a.csv", "b.csv"), tuple(DAY + dt.timedelta(i) for i in range(days))),))
    found = verdict("identical_files", twice, dataset(staging={"deduplicate": deduplicate}))
    assert (found.passed, found.found, found.note) == (passed, "a.csv = b.csv", note)
    assert not found.refuses
    together = replace(twice, source=replace(twice.source, aggregated=True))
    assert not verdict("identical_files", together).passed
    strict = with_checks(identical_files={"severity": "error"}).model_copy(
        update={"staging": Staging(deduplicate=Deduplicate.none)}
    )
    assert verdict("identical_files", twice, strict).refuses
    assert verdict("identical_files", GOOD).found == "none"


def test_the_days_end_is_that_of_its_time_zone() -> None:
    # On 31 March 2024 Berlin begins summer time: that day ends at 22:00 UTC, the one before at 23:00.
    late = replace(source(delivered_at=dt.datetime(2024, 4, 2, 10, tzinfo=dt.UTC)), day=dt.date(2024, 3, 31))
    assert verdict("source_freshness", late).found == "36.0 h after it"
    assert verdict("source_freshness", late).passed


def test_a_day_that_nothing_was_delivered_for_passes_where_the_dataset_says_so() -> None:
    tolerant = dataset(source=PLAIN["source"] | {"on_missing": "pass"})
    nothing = DayMeasurement(DAY, NOTHING, NOTHING, NOTHING, SourceState())
    verdicts = judge(tolerant, nothing, Contract(), SAME)
    assert [v.check for v in verdicts if not v.passed] == []
    present = next(v for v in verdicts if v.check == "source_present")
    assert "lets such days pass" in present.note
    assert not verdict("source_present", nothing).passed


def test_a_day_may_lack_rows_in_the_file_of_its_month_once_that_was_written_after_it() -> None:
    monthly = PLAIN["source"] | {"path": "{yyyymm}.csv"}
    tolerant, strict = dataset(source=monthly | {"on_missing": "pass"}), dataset(source=monthly)
    ended = replace(GOOD, shadow=NOTHING, published=NOTHING, source=replace(GOOD.source, rows=0))
    assert verdict("source_present", ended, tolerant).passed
    assert verdict("source_present", ended, strict).note == "no source data was delivered for the day"
    missing = replace(ended, source=SourceState(rows_read=3))
    found = verdict("source_present", missing, tolerant)
    assert (found.refuses, found.found) == (True, "none")
    assert found.note.startswith(
        "no source data was delivered for the day; on_missing: pass needs a file of the month that was last changed after the day; "
    )
    assert found.note.endswith("; files of later days, with 3 rows, do not replace its own")
    # In Berlin the day ends at 23:00 UTC.
    for hour, passed in ((22, False), (23, True)):
        at = dt.datetime(2024, 3, 30, hour, tzinfo=dt.UTC)
        growing = replace(ended, source=replace(ended.source, delivered_at=at))
        assert verdict("source_present", growing, tolerant).passed is passed
        # What was written during the day has rows of it; a day that it looks back at may have none.
        absent = (SourceDay(DAY - dt.timedelta(1), 0, 0),)
        early = replace(GOOD, source=replace(GOOD.source, delivered_at=at, faulty_beside=absent))
        assert verdict("source_present", early, tolerant).passed


def test_a_first_publication_has_nothing_to_be_compared_with() -> None:
    first = replace(GOOD, published=NOTHING)
    result = verdict("change_row_count", first)
    assert (result.passed, result.expected, result.found) == (True, "any", "100")
    assert result.note == "first load of the day: nothing is published to compare with"
    promised = parse_contract({"row_count": "-50%"}, metric_names(dataset()))
    assert not verdict("change_row_count", first, contract=promised).passed


def test_a_day_without_a_row_before_and_after_keeps_any_promise() -> None:
    empty = replace(GOOD, published=NOTHING, shadow=NOTHING)
    promised = parse_contract({"row_count": "-50%", "fare": "-6% to -1.2%"}, metric_names(dataset()))
    for check in ("change_row_count", "change_fare"):
        assert verdict(check, empty, contract=promised).passed
        assert not verdict(check, replace(empty, published=GOOD.published), contract=promised).passed


def test_a_contract_replaces_the_tolerance_on_its_days_only() -> None:
    contract = parse_contract([{"days": [str(DAY)], "metrics": {"fare": "-50%"}}], metric_names(dataset()))
    halved = with_metric("fare", Decimal("125.25"))
    assert verdict("change_fare", halved, contract=contract).passed
    assert verdict("change_fare", halved, contract=contract).note == "the launch's contract"
    unchanged = verdict("change_fare", GOOD, contract=contract)
    assert (unchanged.passed, unchanged.expected, unchanged.tolerance) == (False, "-50%", "")
    other_day = replace(halved, day=dt.date(2024, 3, 29))
    failed = verdict("change_fare", other_day, contract=contract)
    assert (failed.passed, failed.expected, failed.tolerance) == (False, "-2% to +2%", "2%")
    assert failed.note == "the dataset's tolerance"


@pytest.mark.parametrize("config", [{"severity": "warn"}, {"blocking": False}])
def test_a_check_that_does_not_block_still_fails(config: dict[str, object]) -> None:
    result = verdict("unique_key", shadow(duplicate_keys=1), with_checks(unique_key=config))
    assert not result.passed
    assert not result.refuses
    assert result.severity is (Severity.warn if "severity" in config else Severity.error)


@pytest.mark.parametrize("config", [{"severity": "warn"}, {"blocking": False}])
def test_a_promised_change_blocks_whatever_the_dataset_says_about_unpromised_changes(
    config: dict[str, object],
) -> None:
    lenient = dataset(
        measures=PLAIN["measures"] | {"fare": {"tolerance": "2%", **config}},
        checks=PLAIN["checks"] | {"row_count": config},
    )
    promised = parse_contract({"row_count": "unchanged", "fare": "-1.5% to -0.8%"}, metric_names(lenient))
    for metric in ("row_count", "fare"):
        tripled = with_metric(metric, METRICS[metric] * 3)
        outside = verdict(f"change_{metric}", tripled, lenient, promised)
        assert (outside.passed, outside.severity, outside.refuses) == (False, Severity.error, True)
        assert not verdict(f"change_{metric}", tripled, lenient).refuses
        other_day = replace(promised.clauses[0], days=(dt.date(2024, 3, 29),))
        assert not verdict(f"change_{metric}", tripled, lenient, Contract((other_day,))).refuses


def test_there_is_no_freshness_check_without_a_limit() -> None:
    names = {c.name for c in checks_of(with_checks(source_freshness={}))}
    assert "source_freshness" not in names


def test_an_unmeasured_count_fails_no_check_but_a_missing_metric_does() -> None:
    bare = replace(GOOD, shadow=Side({"row_count": METRICS["row_count"]}))
    failed = {v.check for v in judge(dataset(), bare, Contract(), SAME) if not v.passed}
    assert failed == {
        "change_fare",
        "change_p05_fare",
        "change_p50_fare",
        "change_p95_fare",
        "change_distinct_city",
        "reconcile_fare",
    }


def test_a_metric_belongs_to_its_measure() -> None:
    assert metric_names(dataset()) == tuple(METRICS)
    assert {m: measure_of(m, dataset()) for m in METRICS if m != "row_count"} == {
        "fare": "fare",
        "p05_fare": "fare",
        "p50_fare": "fare",
        "p95_fare": "fare",
        "distinct_city": "city",
    }


def test_a_metric_of_a_column_whose_name_looks_like_a_metric_belongs_to_that_column() -> None:
    columns = PLAIN["columns"] | {"p50_trip": {"type": "long"}, "distinct_trip": {"type": "long"}}
    tricky = dataset(columns=columns, measures={"p50_trip": {}, "distinct_trip": {"distinct": True}, "fare": {}})
    assert measure_of("p50_trip", tricky) == "p50_trip"
    assert measure_of("distinct_distinct_trip", tricky) == "distinct_trip"
