"""What the soak counts as lost rows and as mixed reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.model import Commit, DayRows, Poll, Record, View, lost_rows, mixed_reads

ROWS = 10
ONE, TWO = dt.date(2024, 1, 1), dt.date(2024, 1, 2)


def moment(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=number)


def view(shown: Mapping[dt.date, int]) -> View:
    return {day: DayRows(ROWS, number, number) for day, number in shown.items()}


def commit(version: int, *days: dt.date, undoes: str = "") -> Commit:
    return Commit(version, f"r{version}" if version else "", frozenset(days), undoes, moment(10 * version))


GOOD = Record(
    rows=ROWS,
    deliveries={ONE: [moment(0), moment(15)], TWO: [moment(0)]},
    commits=[commit(0), commit(1, ONE), commit(2, ONE, TWO), commit(3, ONE, TWO, undoes="r2"), commit(4, TWO)],
    views={
        0: {},
        1: view({ONE: 1}),
        2: view({ONE: 2, TWO: 1}),
        3: view({ONE: 1}),
        4: view({ONE: 1, TWO: 1}),
    },
    polls=[Poll("polars", 1, 1, view({ONE: 1})), Poll("spark", 1, 3, view({ONE: 2, TWO: 1}))],
)


def test_releases_and_rollbacks_that_do_what_they_say_break_nothing() -> None:
    assert (lost_rows(GOOD), mixed_reads(GOOD)) == ((), ())


def seen(version: int, day: dt.date, rows: DayRows | None) -> Record:
    changed = {**GOOD.views[version], day: rows}
    return replace(GOOD, views={**GOOD.views, version: {d: r for d, r in changed.items() if r is not None}}, polls=())


def test_a_day_with_too_few_rows_has_lost_some() -> None:
    (found,) = lost_rows(seen(4, TWO, DayRows(ROWS - 1, 1, 1)))
    assert found == "version 4 shows 9 rows of 2024-01-02, 10 were delivered"


def test_a_day_that_was_delivered_and_never_came_is_lost_but_not_one_that_was_rolled_back() -> None:
    never = dt.date(2024, 1, 3)
    (found,) = lost_rows(replace(GOOD, deliveries={**GOOD.deliveries, never: [moment(0)]}))
    assert found.startswith("2024-01-03 was delivered")
    assert lost_rows(replace(GOOD, commits=GOOD.commits[:4])) == ()


@pytest.mark.parametrize(
    ("record", "observed"),
    [
        (seen(2, ONE, DayRows(ROWS, 1, 2)), "deliveries 1 and 2"),
        (seen(4, ONE, DayRows(ROWS, 2, 2)), "version 4 (r4) changed 2024-01-01, which is none of its days"),
        (seen(3, ONE, DayRows(ROWS, 2, 2)), "did not bring 2024-01-01 back"),
        (seen(2, TWO, None), "version 2 shows nothing of 2024-01-02"),
        (seen(2, TWO, DayRows(ROWS, 2, 2)), "version 2 shows delivery 2 of 2024-01-02, expected one of 1..1"),
    ],
)
def test_a_commit_that_does_something_else_is_reported(record: Record, observed: str) -> None:
    assert any(observed in line for line in mixed_reads(record))


def test_a_day_never_goes_back_to_an_older_delivery_unless_it_is_rolled_back() -> None:
    back = replace(GOOD, commits=[*GOOD.commits[:3], commit(3, ONE, TWO), GOOD.commits[4]])
    views = {**GOOD.views, 3: view({ONE: 1, TWO: 1})}
    observed = mixed_reads(replace(back, views=views))
    assert observed == ("version 3 shows delivery 1 of 2024-01-01, expected one of 2..2",)


@given(st.dictionaries(st.sampled_from([ONE, TWO]), st.integers(1, 3)), st.integers(0, 4), st.integers(0, 2))
def test_a_poll_is_true_exactly_if_a_version_shows_it_between_its_begin_and_its_end(
    shown: dict[dt.date, int], first: int, more: int
) -> None:
    poll = Poll("polars", first, first + more, view(shown))
    real = any(GOOD.views.get(v) == view(shown) for v in range(first, first + more + 1))
    assert (mixed_reads(replace(GOOD, polls=[poll])) == ()) is real
