"""Inputs of a day: its digest changes exactly when something that the day is built from changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.delivery import Delivery, Place
from backfill_assets.core.measured import SameContent, SourceDay, SourceState
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import place_of, received
from backfill_assets.dataset.releasing import Provisional
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.evidence.inputs import (
    Deliveries,
    awaited,
    awaited_in,
    by_delivery_day,
    deliveries_of,
    fact_inputs,
    force_by_day,
    lost_days,
    names_ever,
    origins,
    source_state,
    staged_inputs,
    surplus_days,
)
from backfill_assets_tests.harness.judged import BY_KEY, PLAIN, dataset

NOON = dt.datetime(2024, 1, 9, 12, tzinfo=dt.UTC)
DAYS = [dt.date(2024, 1, day) for day in range(1, 11)]
REFERENCES = {"cities": "aa"}


def delivered(day: dt.date, fingerprint: str = "f", hours: int = 0) -> Delivery:
    at = NOON + dt.timedelta(hours=hours)
    return Delivery("trips", day, f"{day}.csv", fingerprint, 10, at, at, rows=5, corrupt_rows=1)


def late(days: int, lookback: int = 0, lookahead: int = 0) -> Dataset:
    source = PLAIN["source"] | {"late_days": days}
    return dataset(source=source, staging=BY_KEY, lookback_days=lookback, lookahead_days=lookahead)


def state_of(
    described: Dataset,
    day: dt.date,
    known: Deliveries,
    staged: Mapping[dt.date, StagedDay],
    gone: Collection[Place] = (),
    rows: Mapping[dt.date, int] | None = None,
) -> SourceState:
    return source_state(described, day, known, staged, DAYS[-1], gone, rows or {})


@given(st.integers(0, 3), st.sampled_from(DAYS), st.sampled_from(DAYS))
def test_a_delivery_counts_for_the_days_that_it_may_hold(days: int, business: dt.date, delivery: dt.date) -> None:
    found = deliveries_of(late(days), business, by_delivery_day([delivered(delivery)]))
    assert bool(found) == (0 <= (delivery - business).days <= days)


@given(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.sampled_from(DAYS), st.sampled_from(DAYS))
def test_a_late_file_moves_exactly_the_days_that_read_it(
    late_days: int, lookback: int, lookahead: int, business: dt.date, delivery: dt.date
) -> None:
    described = late(late_days, lookback, lookahead)
    before = by_delivery_day(delivered(day) for day in DAYS)
    after = by_delivery_day([*(delivered(day) for day in DAYS), delivered(delivery, "other")])
    distance = (delivery - business).days
    staged_moves = staged_inputs(described, business, before, {}) != staged_inputs(described, business, after, {})
    moved = [fact_inputs(described, business, known, {}, DAYS[-1]) for known in (before, after)]
    assert staged_moves == (0 <= distance <= late_days)
    first = max(dt.date(2024, 1, 1), business - dt.timedelta(days=lookback))
    assert (moved[0] != moved[1]) == ((first - business).days <= distance <= late_days + lookahead)


@given(st.permutations([delivered(DAYS[0], f) for f in "abc"]))
def test_the_order_of_deliveries_does_not_count(deliveries: list[Delivery]) -> None:
    described, day = late(0), DAYS[0]
    sorted_ones = by_delivery_day(sorted(deliveries, key=lambda d: d.fingerprint))
    shuffled = by_delivery_day(deliveries)
    assert staged_inputs(described, day, shuffled, REFERENCES) == staged_inputs(described, day, sorted_ones, REFERENCES)


def test_when_a_file_was_landed_does_not_count_but_its_content_and_references_do() -> None:
    described, day = late(0), DAYS[0]
    one = delivered(day)

    def inputs(delivery: Delivery, references: dict[str, str]) -> str:
        return staged_inputs(described, day, by_delivery_day([delivery]), references)

    before = inputs(one, REFERENCES)
    assert inputs(replace(one, landed_at=NOON + dt.timedelta(days=1)), REFERENCES) == before
    assert inputs(replace(one, fingerprint="g"), REFERENCES) != before
    assert inputs(replace(one, path="else.csv"), REFERENCES) != before
    assert inputs(one, {"cities": "bb"}) != before


def test_the_state_of_the_source_sums_the_deliveries_and_takes_the_newest_time() -> None:
    deliveries = by_delivery_day([delivered(DAYS[0]), delivered(DAYS[0], "g", hours=3), delivered(DAYS[2])])
    staged = {DAYS[0]: StagedDay("trips", DAYS[0], "i", "c", outside_rows=4)}
    state = state_of(late(1), DAYS[0], deliveries, staged)
    assert (state.deliveries, state.rows, state.corrupt_rows, state.outside_rows, state.rows_read) == (2, 10, 2, 4, 10)
    assert state.delivered_at == NOON + dt.timedelta(hours=3)
    assert state_of(late(0), DAYS[9], deliveries, {}) == SourceState()


def test_days_looked_back_at_count_where_they_have_no_delivery_or_bad_rows() -> None:
    described = late(0).model_copy(update={"lookback_days": 2})
    known = by_delivery_day([delivered(DAYS[1]), replace(delivered(DAYS[2]), corrupt_rows=0)])
    staged = {DAYS[1]: StagedDay("trips", DAYS[1], "i", "c", outside_rows=4)}
    assert state_of(described, DAYS[2], known, staged).faulty_beside == (
        SourceDay(DAYS[0], 0, 0),
        SourceDay(DAYS[1], 5, 5),
    )
    # The corrected file of a path replaces the truncated one, whatever its time of change.
    cut = received((), [delivered(day) for day in DAYS[:3]])
    good = received(cut, [replace(delivered(day, "g", hours=-1), corrupt_rows=0) for day in DAYS[:3]])
    assert state_of(described, DAYS[2], force_by_day(described, [*cut, *good]), {}).faulty_beside == ()
    assert state_of(described, DAYS[2], force_by_day(described, [*cut, *good]), {}).corrupt_rows == 0


def test_a_day_awaits_the_days_that_it_looks_ahead_to_until_they_are_over() -> None:
    described = late(0, lookback=1, lookahead=2)
    assert awaited(described, DAYS[1], {}, DAYS[0]) == (DAYS[2], DAYS[3])
    assert awaited(described, DAYS[1], {}, DAYS[2]) == (DAYS[3],)
    assert awaited(described, DAYS[1], {}, DAYS[9]) == ()
    assert awaited(described.model_copy(update={"end": DAYS[2]}), DAYS[1], {}, DAYS[0]) == (DAYS[2],)
    assert awaited(late(0, lookback=2), DAYS[1], {}, DAYS[0]) == ()


def test_a_provisional_day_awaits_the_days_that_it_looks_ahead_to_until_they_have_landed() -> None:
    described = late(0, lookahead=2).model_copy(update={"provisional": Provisional(may_change=("fare",))})
    empty, full = replace(delivered(DAYS[2]), rows=0), delivered(DAYS[2])
    for known, over, days in (
        ([], DAYS[1], DAYS[2:4]),
        ([], DAYS[9], DAYS[2:4]),
        ([empty], DAYS[9], DAYS[2:4]),
        ([full], DAYS[9], DAYS[3:4]),
        # What comes before its day is over may not be all of it.
        ([full], DAYS[1], DAYS[2:4]),
        ([full, delivered(DAYS[3])], DAYS[3], ()),
    ):
        by_day = by_delivery_day([delivered(DAYS[1]), *known])
        assert awaited(described, DAYS[1], by_day, over) == tuple(days)
        names = awaited_in(origins(described, DAYS[1], by_day, over))
        assert names == {f"awaited:{day}" for day in days}
    # That the awaited days are over changes nothing as long as they have not landed.
    own = by_delivery_day([delivered(DAYS[1])])
    assert fact_inputs(described, DAYS[1], own, {}, DAYS[1]) == fact_inputs(described, DAYS[1], own, {}, DAYS[9])
    lenient = described.model_copy(update={"source": described.feed.model_copy(update={"on_missing": OnMissing.pass_})})
    assert awaited(lenient, DAYS[1], {}, DAYS[9]) == ()
    assert awaited(lenient, DAYS[1], {}, DAYS[2]) == (DAYS[3],)


def test_the_file_of_a_day_that_is_looked_ahead_to_is_no_copy_of_an_earlier_one() -> None:
    described, copy = late(0, lookahead=1), "g"
    known = by_delivery_day([delivered(DAYS[0], copy), delivered(DAYS[3]), delivered(DAYS[4], copy)])
    (same,) = state_of(described, DAYS[3], known, {}).identical
    assert same.days == (DAYS[0], DAYS[4])


def test_a_day_whose_window_ends_has_other_inputs_and_origins_even_if_nothing_was_delivered() -> None:
    described, known = late(0, lookahead=1), by_delivery_day([delivered(DAYS[0])])
    early, final = (origins(described, DAYS[0], known, newest) for newest in DAYS[:2])
    assert early == (*final, f"awaited:{DAYS[1]}")
    assert len({fact_inputs(described, DAYS[0], known, {}, newest) for newest in DAYS[:3]}) == 2
    names = names_ever(described, DAYS[0], known, DAYS[0])
    assert [one in own for one, own in zip(early, names, strict=True)] == [True, True]


def test_raw_has_lost_files_with_fewer_rows_than_were_landed() -> None:
    known = [delivered(DAYS[0]), delivered(DAYS[0], "g"), delivered(DAYS[1])]
    assert lost_days(known, {DAYS[0]: 10, DAYS[1]: 5}) == set()
    assert lost_days(known, {DAYS[0]: 9, DAYS[1]: 7}) == {DAYS[0]}
    assert lost_days(known, {}) == {DAYS[0], DAYS[1]}
    # Raw has surplus rows where it has more than the ledger knows, also on days unknown to the ledger.
    assert surplus_days(known, {DAYS[0]: 10, DAYS[1]: 6, DAYS[2]: 1, DAYS[3]: 0}) == {DAYS[1], DAYS[2]}


def test_files_of_later_days_are_read_and_count_for_nothing_else() -> None:
    """A day without its file passed `source_present` with its neighbour's, was published empty, and then was late."""
    later = by_delivery_day([delivered(DAYS[1]), delivered(DAYS[2], "g", hours=30)])
    alone = state_of(late(2), DAYS[0], later, {})
    assert alone == SourceState(corrupt_rows=2, rows_read=10)
    both = state_of(late(2), DAYS[1], later, {})
    assert (both.deliveries, both.rows, both.delivered_at, both.rows_read) == (1, 5, NOON, 10)


def test_the_file_of_a_month_is_there_for_the_days_of_which_it_has_rows() -> None:
    """It may end before a day while the month is not over."""
    described = dataset(source=PLAIN["source"] | {"path": "{yyyymm}.csv"}, staging=BY_KEY, lookback_days=1)
    (month,) = described.delivery_days((DAYS[1],))
    known = by_delivery_day([delivered(month)])
    rows = {DAYS[0]: 3, DAYS[1]: 2, DAYS[2]: 0}
    found = {day: state_of(described, day, known, {}, rows=rows) for day in DAYS[:4]}
    assert {day: (one.deliveries, one.rows) for day, one in found.items()} == {
        DAYS[0]: (1, 3),
        DAYS[1]: (1, 2),
        DAYS[2]: (1, 0),
        DAYS[3]: (1, 0),
    }
    assert all((one.corrupt_rows, one.rows_read, one.delivered_at) == (1, 5, NOON) for one in found.values())
    assert [one.day for one in found[DAYS[3]].faulty_beside if not one.rows] == [DAYS[2]]


def test_late_rows_in_the_file_of_the_next_month_do_not_replace_the_file_of_a_month() -> None:
    source = PLAIN["source"] | {"path": "{yyyymm}.csv", "late_days": 2}
    described = dataset(source=source, staging=BY_KEY, lookback_days=1)
    ends = dt.date(2024, 1, 30), dt.date(2024, 1, 31)
    january, february = (delivered(month) for month in described.delivery_days((ends[1],)))
    staged = dict.fromkeys(ends, 1)
    for known in ([february], [february, replace(january, rows=0, corrupt_rows=0)]):
        state = state_of(described, ends[1], by_delivery_day(known), {}, rows=staged)
        assert (state.rows, state.rows_read, state.faulty_beside) == (0, 5, (SourceDay(ends[0], 0, 1),))
    state = state_of(described, ends[1], by_delivery_day([january, february]), {}, rows=staged)
    assert (state.deliveries, state.rows, state.rows_read) == (1, 1, 10)


def test_deliveries_whose_file_is_gone_are_named_among_all_that_a_day_reads() -> None:
    one, other = delivered(DAYS[1]), delivered(DAYS[2], "g", hours=30)
    known = by_delivery_day([one, other])
    assert state_of(late(1), DAYS[1], known, {}, {place_of(one)}).gone == (one.path,)
    assert state_of(late(1), DAYS[1], known, {}, {place_of(other)}).gone == (other.path,)
    assert state_of(late(0), DAYS[1], known, {}, {place_of(other)}).gone == ()
    assert state_of(late(1), DAYS[1], known, {}).gone == ()


def test_files_of_equal_content_are_named_among_all_that_a_day_reads() -> None:
    one, again = delivered(DAYS[0]), replace(delivered(DAYS[0]), path="again.csv")
    same = SameContent(tuple(sorted((one.path, "again.csv"))), (DAYS[0],))
    assert state_of(late(0), DAYS[0], by_delivery_day([one, again]), {}).identical == (same,)
    # The last file of a path counts, and a file without a row doubles none.
    corrected = replace(delivered(DAYS[0], "g", hours=1), path="again.csv")
    assert state_of(late(0), DAYS[0], by_delivery_day([one, corrected]), {}).identical == ()
    assert state_of(late(0), DAYS[0], by_delivery_day([one, replace(again, rows=0)]), {}).identical == ()
    next_day = by_delivery_day([one, delivered(DAYS[1])])
    assert state_of(late(0), DAYS[0], next_day, {}).identical == ()
    (across,) = state_of(late(1), DAYS[0], next_day, {}).identical
    assert across.days == (DAYS[0], DAYS[1])


def test_a_file_of_an_earlier_day_that_comes_again_for_a_later_one_is_named() -> None:
    """A stale export: its rows came out once more, as those of the new day."""
    today = delivered(DAYS[9])

    def identical(*others: Delivery, lookback: int = 0) -> tuple[SameContent, ...]:
        return state_of(late(0, lookback), DAYS[9], by_delivery_day([today, *others]), {}).identical

    for back in range(1, 10):
        before = delivered(DAYS[9 - back])
        same = SameContent((before.path, today.path), (before.day, today.day))
        assert identical(before) == ((same,) if back <= 7 else ())
    # It is named once, also if the day looks back at the other one.
    assert identical(delivered(DAYS[8]), lookback=1) == identical(delivered(DAYS[8]))
    assert identical(delivered(DAYS[8]), delivered(DAYS[7]))[0].days == (DAYS[7], DAYS[8], DAYS[9])
    # Other days are named on their own, and a file without a row repeats none.
    assert identical(delivered(DAYS[7], "g"), delivered(DAYS[8], "g")) == ()
    assert identical(replace(delivered(DAYS[8]), rows=0)) == ()
    assert identical(delivered(DAYS[9] + dt.timedelta(days=1))) == ()
