"""The dataset: what it derives from its keys, and the defaults of its checks."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backfill_assets.core.days import day_range
from backfill_assets.core.errors import InvalidDayError, MisfitError
from backfill_assets.core.evidence import Severity
from backfill_assets.core.unit import LateData
from backfill_assets.dataset.checks import CheckConfig, Checks, Measure
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.releasing import Publication
from backfill_assets_tests.harness.judged import BY_KEY, PLAIN, dataset

START = dt.date(2024, 1, 1)
some_days = st.sets(st.dates(START, dt.date(2024, 3, 1)), min_size=1, max_size=5).map(lambda d: tuple(sorted(d)))


def test_defaults_are_careful() -> None:
    bare = {key: PLAIN[key] for key in ("name", "partition_column", "start", "key", "columns", "source")}
    found = Dataset.model_validate(bare)
    assert (found.time_zone, found.end, found.chunk_days, found.lookback_days) == ("UTC", None, 31, 0)
    assert (found.publication, found.late_data) == (Publication.auto, LateData.hold)
    assert found.retention.keep_for == dt.timedelta(days=30)
    checks = found.checks
    assert checks.row_count.tolerance == checks.reconciliation.tolerance == checks.corrupt_rows.max_rows == 0
    assert all(getattr(checks, name).blocks for name in ("unique_key", "not_null", "source_present", "row_count"))


def test_required_columns_are_the_key_the_partition_and_those_declared() -> None:
    assert dataset().required_columns == ("trip_date", "trip", "fare")


def test_the_zone_is_that_of_the_business_day() -> None:
    assert dt.datetime(2024, 7, 1, tzinfo=dataset().zone).utcoffset() == dt.timedelta(hours=2)


def test_a_dataset_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        dataset().name = "other"  # type: ignore[misc]


def test_all_columns_but_those_that_match_rows_are_compared_and_texts_and_booleans_group_them() -> None:
    columns = PLAIN["columns"] | {"late": {"type": "boolean"}, "zone": {"type": "string"}, "at": {"type": "timestamp"}}
    found = dataset(columns=columns)
    assert list(found.compared) == ["fare", "city", "late", "zone", "at"]
    assert found.dimension_columns == ("late", "zone")
    assert dataset(columns=columns, dimensions=["city", "trip"]).dimension_columns == ("city", "trip")
    assert dataset(dimensions=[]).dimension_columns == ()


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        (
            {"columns": {"city": {"type": "string", "tolerance": 1}}},
            ("columns", "city", "tolerance"),
            "holds no numbers",
        ),
        ({"columns": {"trip": {"type": "long", "tolerance": 1}}}, ("columns", "trip", "tolerance"), "must be equal"),
        ({"dimensions": ["town"]}, ("dimensions",), "dimensions names 'town', which is not declared in columns"),
        ({"dropped_columns": ["fare"]}, ("dropped_columns",), "dropped_columns names 'fare', which is still a column"),
        ({"dimensions": ["city", "city"]}, ("dimensions",), "dimensions names 'city' 2 times"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], path: tuple[str, ...], message: str) -> None:
    whole = {**changes, "columns": PLAIN["columns"] | changes.get("columns", {})}
    with pytest.raises(ValidationError) as refused:
        dataset(**whole)
    cause = refused.value.errors()[0]["ctx"]["error"]
    ((where, text),) = cause.problems
    assert (where, message in text) == (path, True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "tills/{day}/*.csv"}, "source.path 'tills/{day}/*.csv' may find several files of a day"),
        ({"path": "tills/**/{day}.csv"}, "may find several files of a day"),
        ({"path": "till[12]/{day}.csv"}, "may find several files of a day"),
        ({"late_days": 1}, "source.late_days lets files of several days bring rows of a day"),
    ],
)
def test_the_relation_of_several_files_of_a_day_must_be_declared(source: dict[str, Any], message: str) -> None:
    """Two tills sold the same article on one day, and files were not declared to add up: only the sales of one were published."""
    said = PLAIN["source"] | source
    with pytest.raises(ValidationError, match=re.escape(message)):
        dataset(source=said)
    for how in ("latest_delivery", "latest_file", "none"):
        dataset(source=said, staging={"deduplicate": how})
    # A path without a wildcard has one file per day: files replace each other.
    assert dataset().staging.deduplicate == "latest_delivery"


def test_a_tolerance_is_a_finite_number_from_zero_on() -> None:
    for value in (-0.1, "nan", "inf", "1%"):
        with pytest.raises(ValidationError):
            dataset(columns=PLAIN["columns"] | {"fare": {"type": "double", "tolerance": value}})


@pytest.mark.parametrize(
    ("day", "end", "shown"),
    [("2023-12-31", None, "2024-01-01.."), ("2024-02-01", "2024-01-31", "2024-01-01..2024-01-31")],
)
def test_a_day_outside_the_history_is_refused(day: str, end: str | None, shown: str) -> None:
    bounded = dataset(end=end)
    bounded.check_days((START,))
    with pytest.raises(
        InvalidDayError, match=f"{day} is outside the history of trips \\({shown}\\); choose other days"
    ):
        bounded.check_days((START, dt.date.fromisoformat(day)))


@given(some_days, st.integers(0, 5))
def test_delivery_days_are_the_days_and_those_after_them(days: tuple[dt.date, ...], late: int) -> None:
    source = dataset(source=PLAIN["source"] | {"late_days": late}, staging=BY_KEY)
    found = source.delivery_days(days)
    assert found == tuple(sorted(set(found)))
    assert set(found) == {d + dt.timedelta(days=i) for d in days for i in range(late + 1)}


def by_month(late: int = 0, path: str = "{yyyymm}.csv", **more: object) -> Dataset:
    return dataset(source=PLAIN["source"] | {"path": path, "late_days": late}, staging=BY_KEY, **more)


@given(some_days, st.integers(0, 40))
def test_a_file_of_a_month_is_due_on_its_last_day(days: tuple[dt.date, ...], late: int) -> None:
    source = by_month(late)
    found = source.delivery_days(days)
    daily = dataset(source=PLAIN["source"] | {"late_days": late}, staging=BY_KEY).delivery_days(days)
    assert found == tuple(sorted({source.due(day) for day in daily}))
    assert all((day + dt.timedelta(days=1)).day == 1 for day in found)


@given(some_days, st.integers(0, 40), st.sampled_from(["{day}.csv", "{yyyymm}.csv"]))
def test_a_delivery_day_brings_exactly_the_days_that_read_it(days: tuple[dt.date, ...], late: int, path: str) -> None:
    source = by_month(late, path)
    for delivered in source.delivery_days(days[:3]):
        near = day_range(max(START, delivered - dt.timedelta(days=90)), delivered)
        assert source.brought_by(delivered) == tuple(d for d in near if delivered in source.delivery_days((d,)))


def test_a_delivery_day_brings_no_day_after_the_end() -> None:
    assert by_month(end="2024-01-20").brought_by(dt.date(2024, 1, 31)) == day_range(START, dt.date(2024, 1, 20))


def test_an_extract_writes_no_file_of_a_month() -> None:
    extract = {"database": "env:SHOP", "query": "SELECT 1 AS trip WHERE day = :day"}
    with pytest.raises(ValidationError, match=r"an extract writes one file per day; write \{day\} there"):
        dataset(
            source={"path": "{yyyymm}.parquet", "format": "parquet", "columns": {"trip": "long"}, "extract": extract}
        )


@given(some_days, st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_window_never_reaches_out_of_the_history(days: tuple[dt.date, ...], back: int, ahead: int, more: int) -> None:
    end = max(days) + dt.timedelta(days=more)
    found = dataset(lookback_days=back, lookahead_days=ahead, end=str(end)).with_window(days)
    assert set(days) <= set(found)
    before, after = dt.timedelta(days=back), dt.timedelta(days=ahead)
    assert set(found) == {
        d for day in days for d in day_range(max(START, day - before), min(end, day + after)) if START <= d <= end
    }


def test_a_day_is_due_when_the_days_that_its_release_group_looks_ahead_to_are_over() -> None:
    now = dt.datetime(2024, 3, 10, 12, tzinfo=dt.UTC)
    plain = dataset(time_zone="UTC")
    assert (plain.live_day(now), plain.newest_to_launch(now)) == (dt.date(2024, 3, 9), dt.date(2024, 3, 9))
    behind = plain.linked({}, 2)
    assert (behind.live_day(now), behind.newest_to_launch(now)) == (dt.date(2024, 3, 7), dt.date(2024, 3, 7))
    assert behind.newest_day(now) == plain.newest_day(now)
    today = dataset(time_zone="UTC", end_offset=1)
    assert (today.newest_to_launch(now), today.newest_over(now)) == (dt.date(2024, 3, 10), dt.date(2024, 3, 9))
    assert today.linked({}, 1).newest_to_launch(now) == dt.date(2024, 3, 8)
    assert today.linked({}, 1).newest_due(now) == dt.date(2024, 3, 8)
    ended = dataset(time_zone="UTC", end="2024-03-09").linked({}, 2)
    assert ended.newest_to_launch(now) == dt.date(2024, 3, 9)


def test_a_day_that_may_be_provisional_sees_no_day_before_the_daily_run_of_that_day_begins() -> None:
    said = {"lookahead_days": 2, "provisional": {"may_change": ["fare"]}, "live": {"at": "03:00"}, "time_zone": "UTC"}
    described, day = dataset(**said), dt.date(2024, 3, 8)
    after = [day + dt.timedelta(days=n) for n in (1, 2)]
    night, morning = (dt.datetime(2024, 3, 10, hour, tzinfo=dt.UTC) for hour in (2, 3))
    assert (described.newest_settled(night), described.newest_settled(morning)) == (day, after[0])
    assert described.newest_over(night) == after[0]
    assert described.seen_at(night).with_window((day,)) == (day,)
    assert described.seen_at(morning).with_window((day,)) == (day, after[0])
    # A day that is built sees itself.
    assert described.seen_at(night).with_window((day, after[0])) == (day, after[0])
    assert described.with_window((day,)) == (day, *after)
    assert described.seen_at(night).days_ahead(day) == tuple(after)
    assert described.linked({}, 0, "05:00").newest_settled(morning) == day
    plain = dataset(**said | {"provisional": None})
    assert plain.seen_at(night) is plain
    assert plain.newest_settled(night) == plain.newest_over(night)


@pytest.mark.parametrize(("at", "first"), [("03:00", dt.date(2024, 3, 29)), ("02:30", dt.date(2024, 10, 25))])
def test_days_settle_one_after_the_other_where_clocks_change(at: str, first: dt.date) -> None:
    said = {"lookahead_days": 1, "provisional": {"may_change": ["fare"]}, "live": {"at": at}}
    described = dataset(**said, time_zone="Europe/Berlin")
    begin = dt.datetime.combine(first, dt.time(), dt.UTC)
    seen = [described.newest_settled(begin + dt.timedelta(minutes=30 * n)) for n in range(24 * 2 * 5)]
    assert seen == sorted(seen)
    assert len(set(seen)) >= 5


def test_only_a_check_that_blocks_keeps_days_back_that_look_ahead() -> None:
    loose = PLAIN["checks"] | {"source_present": {"severity": "warn"}}
    dataset(checks=loose)
    with pytest.raises(ValidationError, match=r"only this check keeps a day back .*; let it block"):
        dataset(checks=loose, lookahead_days=1)
    with pytest.raises(ValidationError, match=r"lookahead_days: source\.path names months"):
        dataset(source=PLAIN["source"] | {"path": "{yyyymm}.csv"}, lookahead_days=1)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"lookahead_days": 0}, r"provisional: no day looks ahead to others.*set lookahead_days"),
        ({"source": PLAIN["source"] | {"late_days": 1}, "staging": BY_KEY}, r"provisional: with source\.late_days"),
        ({"audit": "ledger"}, r"provisional: days are marked in the audit column is_provisional; set audit: columns"),
        ({"provisional": {"may_change": ["fares"]}}, r"may_change names 'fares', which is not declared"),
        ({"provisional": {"may_change": ["trip"]}}, r"may_change names 'trip', by which rows are matched"),
        ({"provisional": {"may_change": ["fare", "fare"]}}, r"may_change names 'fare' 2 times"),
        ({"provisional": {"may_change": []}}, r"at least 1 item"),
        (
            {"columns": PLAIN["columns"] | {"is_provisional": {"type": "boolean"}}},
            r"columns declares 'is_provisional', a name reserved",
        ),
    ],
)
def test_provisional_days_that_make_no_sense_are_refused(said: dict[str, object], message: str) -> None:
    wanted: dict[str, object] = {"lookahead_days": 1, "provisional": {"may_change": ["fare"]}}
    assert dataset(**wanted).shown(())["is_provisional"] == "boolean"
    assert dict(dataset(**wanted).audit_columns)["is_provisional"] == "boolean"
    assert "is_provisional" not in {*dataset().shown(PLAIN["columns"]), *dataset().audit_columns}
    # The last days may still wait when no more are to be provisional.
    assert "is_provisional" in dataset().shown(["is_provisional"])
    assert "is_provisional" not in dataset(dropped_columns=["is_provisional"]).shown(["is_provisional"])
    with pytest.raises(ValidationError, match=message):
        dataset(**wanted | said)


def test_a_published_day_after_the_end_keeps_itself_in_its_window() -> None:
    day = dt.date(2024, 3, 5)
    ended = dataset(end="2024-03-01", lookback_days=1, lookahead_days=1)
    assert ended.with_window((day,)) == (day - dt.timedelta(days=1), day)


def test_contradictions_carry_the_path_of_their_key() -> None:
    with pytest.raises(ValidationError) as refused:
        dataset(key=["ride"], partition_column="day")
    cause = refused.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, MisfitError)
    assert [path for path, _ in cause.problems] == [("key",), ("partition_column",)]


@pytest.mark.parametrize("kind", ["string", "decimal(38,38)", "decimal(1,0)", "decimal(10, 2)", "timestamp"])
def test_a_known_type_is_accepted_without_its_spaces(kind: str) -> None:
    columns = PLAIN["columns"] | {"city": {"type": kind}}
    assert dataset(columns=columns).columns["city"].type == kind.replace(" ", "")


@pytest.mark.parametrize(
    "kind", ["int", "STRING", "decimal", "decimal(0,0)", "decimal(39,1)", "decimal(2,3)", "long\n", "array<int>"]
)
def test_an_unknown_type_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="use string, boolean, smallint"):
        dataset(columns=PLAIN["columns"] | {"city": {"type": kind}})


@pytest.mark.parametrize("path", ["", ".", "/a", "../a", "a/../b", "a\\b", "s3://a/b", "a\0b"])
def test_a_path_that_leaves_the_sources_is_refused(path: str) -> None:
    reference = PLAIN["references"]["cities"] | {"path": path}
    with pytest.raises(ValidationError, match="use a path relative to the sources folder"):
        dataset(references={"cities": reference})


def test_a_warning_never_blocks_and_cannot_be_set_to() -> None:
    assert CheckConfig().blocks
    assert not CheckConfig(severity=Severity.warn).blocks
    assert not CheckConfig(blocking=False).blocks
    assert not CheckConfig(severity=Severity.warn, blocking=False).blocks
    with pytest.raises(ValidationError, match="contradict each other; drop one"):
        CheckConfig(severity=Severity.warn, blocking=True)


def test_checks_have_no_other_keys() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Checks.model_validate({"uniqe_key": {}})
    with pytest.raises(ValidationError, match="Extra inputs"):
        Measure.model_validate({"sums": True})


@pytest.mark.parametrize(
    ("where", "value"), [("corrupt_rows", {"max_rows": -1}), ("rules", {"a": {"sql": "x > 0", "max_failing": -1}})]
)
def test_a_limit_is_never_negative(where: str, value: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Checks.model_validate({where: value})
