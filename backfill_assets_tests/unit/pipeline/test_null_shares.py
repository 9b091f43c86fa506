"""Shares of nulls, by the statistics of data files: which days are compared with which."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal

import pytest

from backfill_assets.core.evidence import Severity
from backfill_assets.core.measured import Compared, NullRise
from backfill_assets.core.release import DataFile
from backfill_assets.pipeline.seams import null_rises
from backfill_assets_tests.harness.judged import GOOD, SAME, verdict, with_checks

FIRST = dt.date(2024, 3, 1)
DAYS = tuple(FIRST + dt.timedelta(days=i) for i in range(10))


def file(day: dt.date, nulls: int, rows: int = 100, **others: object) -> tuple[DataFile, ...]:
    stats = {"numRecords": rows, "nullCount": {"city": nulls, **others}}
    return (DataFile(f"{day}.parquet", 1, day, 0, json.dumps(stats)),)


def rises(**sides: dict[dt.date, tuple[DataFile, ...]]) -> dict[dt.date, list[tuple[str, str]]]:
    found = null_rises(["city"], sides["built"], sides.get("published", {}), sides.get("around", {}))
    return {day: [(f"{one.share:.2f}", f"{one.before:.2f}") for one in own] for day, own in found.items() if own}


def test_a_new_day_is_compared_with_the_days_before_it_wherever_they_are() -> None:
    published, around = {d: file(d, 2) for d in DAYS[:2]}, {DAYS[2]: file(DAYS[2], 4)}
    built = {DAYS[3]: file(DAYS[3], 90), DAYS[4]: file(DAYS[4], 3)}
    assert rises(built=built, published=published, around=around) == {DAYS[3]: [("0.90", "0.02")]}


def test_the_first_days_of_a_history_are_compared_with_those_after_them() -> None:
    built = {d: file(d, 80 if d == DAYS[0] else 1) for d in DAYS[:4]}
    assert rises(built=built) == {DAYS[0]: [("0.80", "0.01")]}
    assert rises(built={d: built[d] for d in DAYS[:3]}) == {}


def test_a_day_that_is_published_is_compared_with_what_is_published_of_it() -> None:
    published = {d: file(d, 0) for d in DAYS[:4]} | {DAYS[4]: file(DAYS[4], 80)}
    assert rises(built={DAYS[4]: file(DAYS[4], 80)}, published=published) == {}
    assert rises(built={DAYS[3]: file(DAYS[3], 80)}, published=published) == {DAYS[3]: [("0.80", "0.00")]}


@pytest.mark.parametrize(
    "own",
    [
        file(DAYS[4], 9, rows=9),
        (DataFile("x", 1, DAYS[4], 0, ""),),
        (DataFile("x", 1, DAYS[4], 0, '{"numRecords": 50}'),),
        (*file(DAYS[4], 50), DataFile("y", 1, DAYS[4], 0, '{"numRecords": 5, "nullCount": {}}')),
        (),
    ],
    ids=["few rows", "no statistics", "no counts", "one file without", "no file"],
)
def test_few_rows_or_missing_statistics_give_no_verdict(own: tuple[DataFile, ...]) -> None:
    assert rises(built={DAYS[4]: own}, published={d: file(d, 0) for d in DAYS[:4]}) == {}


def test_files_of_a_day_count_together_and_days_without_a_row_do_not_count() -> None:
    published = {d: (*file(d, 0, rows=50), *file(d, 10, rows=50)) for d in DAYS[:3]} | {DAYS[3]: ()}
    assert rises(built={DAYS[4]: file(DAYS[4], 60)}, published=published) == {DAYS[4]: [("0.60", "0.10")]}


def test_a_rise_beyond_the_tolerance_is_a_warning_unless_the_dataset_says_otherwise() -> None:
    risen = Compared(SAME.rows, null_rises=(NullRise("city", Decimal("0.31"), Decimal("0.05")),))
    found = verdict("null_share", GOOD, compared=risen)
    assert (found.passed, found.severity, found.refuses) == (False, Severity.warn, False)
    assert (found.found, found.tolerance) == ("city 31% (was 5%)", "25% points")
    assert verdict("null_share", GOOD, with_checks(null_share={"max_rise": "26%"}), compared=risen).passed
    assert verdict("null_share", GOOD, with_checks(null_share={"severity": "error"}), compared=risen).refuses
    fallen = replace(risen, null_rises=())
    assert verdict("null_share", GOOD, compared=fallen).passed
