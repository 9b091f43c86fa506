"""Deliveries in force: the last file of each path counts, in an order that depends on no time stamp and no split of launches."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.delivery import Deed, Delivery, DeliveryEntry
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import (
    heads,
    in_force,
    in_order,
    out_of_path,
    packed_twice,
    received,
    require_known_decision,
    require_months,
    standings,
)
from backfill_assets.evidence.inputs import force_by_day, origin, origins, origins_ever, staged_inputs
from backfill_assets_tests.harness.judged import PLAIN, dataset
from backfill_assets_tests.harness.supplier import D7, D8, D9, PATHS, Act, Pages, Supplier, acts, merged, print_of

NOON = dt.datetime(2024, 2, 1, 12, tzinfo=dt.UTC)


def described(deduplicate: str = "latest_delivery", order_by: str = "time") -> Dataset:
    return dataset(
        source=PLAIN["source"] | {"late_days": 2, "order_by": order_by}, staging={"deduplicate": deduplicate}
    )


def a_file(day: dt.date, path: str, content: str, hours: int = 0) -> Delivery:
    at = NOON + dt.timedelta(hours=hours)
    return Delivery("trips", day, path, content, 1, at, at, rows=1)


def contents(known: tuple[Delivery, ...], how: str = "latest_delivery") -> list[str]:
    return [one.fingerprint for one in in_force(described(how), known)]


def book(*landings: list[Delivery]) -> tuple[Delivery, ...]:
    """The known deliveries after consecutive landings."""
    known: dict[tuple[dt.date, str, str], Delivery] = {}
    for found in landings:
        for one in received(tuple(known.values()), in_order(described(), found)):
            known[one.content] = one
    return tuple(known.values())


@given(acts)
def test_the_deliveries_that_count_follow_the_sources_whatever_happens(story: list[Act]) -> None:
    supplier = Supplier(described(), Pages())
    for act in story:
        supplier.act(act)
        known = supplier.book.known()
        force = in_force(supplier.dataset, known)
        said = supplier.model.counts()
        assert [((one.day, one.path), one.fingerprint) for one in force] == [(p, print_of(c)) for p, c in said]
        assert merged(force) == supplier.model.rows()
        assert len({one.order for one in known}) == len(known)


@given(st.permutations([D7, D8, D9]), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_it_makes_no_difference_which_day_is_landed_first_or_with_which(days: list[dt.date], hours: list[int]) -> None:
    """A file of day 8 that landed before that of day 7 lost to it if it had the older time of change."""
    files = [a_file(day, path, path, hour) for (day, path), hour in zip(PATHS, hours, strict=True)]
    alone = book(*[[one for one in files if one.day == day] for day in days])
    assert in_force(described(), alone) == in_force(described(), book(files))
    assert [one.day for one in in_force(described(), alone)] == [D7, D7, D8, D9]


def test_a_file_that_comes_back_to_what_it_was_counts_again_whatever_its_time_of_change() -> None:
    first, wrong = a_file(D7, "a", "A", 5), a_file(D7, "a", "B", 1)
    known = book([first], [wrong])
    assert contents(known) == ["B"]
    known = book([first], [wrong], [replace(first, delivered_at=NOON)])
    assert contents(known) == ["A"]
    assert {one.fingerprint: one.delivered_at for one in known}["A"] == NOON
    assert received(known, [first]) == ()


def test_a_correction_is_behind_all_that_came_before_it_and_before_days_that_come_later() -> None:
    known = book([a_file(D7, "a", "A"), a_file(D8, "b", "B")], [a_file(D7, "a", "A2")], [a_file(D9, "c", "C")])
    assert contents(known) == ["B", "A2", "C"]


def test_another_landing_that_was_faster_keeps_its_content_the_newer_one() -> None:
    """Otherwise a slow run that saw the old file would put it over a file that a later run has landed."""
    known = book([a_file(D7, "a", "B")])
    (slow,) = received(known, [a_file(D7, "a", "A")], seen={})
    assert (slow.order, contents((*known, slow))) == (0, ["B"])
    (again,) = received((*known, slow), [a_file(D7, "a", "A")], seen={(D7, "a"): known[0].order})
    assert contents((*known, again)) == ["A"]


def test_files_of_one_landing_are_ordered_by_time_and_path_or_by_the_path_alone() -> None:
    files = [a_file(D7, "x-1", "1", 3), a_file(D7, "x-2", "2", 1), a_file(D7, "x-3", "3", 1)]
    assert [one.path for one in in_order(described(), files)] == ["x-2", "x-3", "x-1"]
    assert [one.path for one in in_order(described(order_by="path"), files)] == ["x-1", "x-2", "x-3"]


@pytest.mark.parametrize(
    ("how", "expected"), [("latest_delivery", ["1", "2", "8"]), ("latest_file", ["2", "8"]), ("none", ["1", "2", "8"])]
)
def test_the_latest_file_of_a_delivery_day_replaces_the_older_ones_completely(how: str, expected: list[str]) -> None:
    known = book([a_file(D7, "a-1", "1"), a_file(D7, "a-2", "2", 1), a_file(D8, "b", "8")])
    assert contents(known, how) == expected
    without = tuple(replace(one, withdrawn=one.fingerprint == "2") for one in known)
    assert contents(without, how) == ["1", "8"]


def test_a_file_outside_the_path_counts_alone_and_not_beside_files_in_it() -> None:
    orders, returns, moved = (f"x/{D7}/orders-1.csv", f"x/{D7}/returns.csv", f"old/{D8}.csv")
    known = book([a_file(D7, orders, "A"), a_file(D7, returns, "B", 1), a_file(D8, moved, "C")])

    def astray(path: str, deliveries: tuple[Delivery, ...] = known, how: str = "latest_delivery") -> list[str]:
        narrowed = dataset(source=PLAIN["source"] | {"path": path}, staging={"deduplicate": how})
        return [one.path for one in out_of_path(narrowed, deliveries)]

    assert astray("x/{day}/*.csv") == []
    assert astray("x/{day}/orders*.csv") == [returns]
    # No file of a day fits: its files may be elsewhere by now.
    assert astray("y/{day}.csv") == []
    # A file with the right name that came for another day does not fit this day.
    assert astray("old/{day}.csv", book([a_file(D7, moved, "C"), a_file(D7, f"old/{D7}.csv", "D")])) == [moved]
    # Only the newest of a day's files counts: only that one has to fit.
    assert astray("x/{day}/orders*.csv", how="latest_file") == [returns]
    assert astray("x/{day}/returns*.csv", how="latest_file") == []
    # A marker that an earlier path found: it adds nothing, but as the newest file of its day only it would count.
    marked = tuple(replace(one, rows=one.path != returns) for one in known)
    assert astray("x/{day}/orders*.csv", marked) == []
    assert astray("x/{day}/orders*.csv", marked, how="latest_file") == [returns]
    for gone, found in ((returns, []), (orders, [])):
        left = tuple(replace(one, withdrawn=one.path == gone) for one in known)
        assert astray("x/{day}/orders*.csv", left) == found


def test_files_of_days_do_not_vanish_when_the_path_names_months() -> None:
    monthly = dataset(source=PLAIN["source"] | {"path": "x/{yyyymm}.csv"})
    known = book([a_file(D7, f"x/{D7}.csv", "A"), a_file(D8, f"x/{D8}.csv", "B")])
    # The file of the last day of a month is not the file of the month.
    last = a_file(monthly.due(D7), f"x/{monthly.due(D7)}.csv", "C")
    for landed in (known, book(list(known), [last])):
        with pytest.raises(
            SourceError, match=rf"x/{D7}.csv and 1 more landed while source.path named days. No file of"
        ):
            require_months(monthly, landed)
        require_months(dataset(), landed)
    require_months(monthly, book(list(known), [a_file(monthly.due(D7), f"x/{D7:%Y%m}.csv", "D")]))
    require_months(monthly, [replace(known[0], withdrawn=True), replace(known[1], rows=0)])


@pytest.mark.parametrize(
    ("first", "second", "twice"),
    [
        ("x.csv", "x.csv.gz", True), ("x.csv.gz", "x.csv.zst", True), ("x", "x.GZ", True), ("a/x.csv", "b/x.csv.gz", False),
        ("x.csv", "x.gz", False), ("x.csv", "y.csv.gz", False), ("x.csv", "x.csv.bz2", False),
    ],
)  # fmt: skip
def test_a_file_that_was_compressed_after_it_landed_would_count_twice(first: str, second: str, twice: bool) -> None:  # noqa: FBT001
    counted = [replace(a_file(day, path, path), rows=1) for day, path in ((D7, first), (D7, second), (D8, second))]
    known = book(counted)

    def found(how: str, deliveries: tuple[Delivery, ...] = known) -> list[str]:
        return [one.path for one in packed_twice(dataset(staging={"deduplicate": how}), deliveries)]

    assert found("none") == found("latest_delivery") == ([first, second] if twice else [])
    # Only one counts, or one has nothing to count.
    assert found("latest_file") == []
    assert found("none", tuple(replace(one, withdrawn=one.path == first) for one in known)) == []
    assert found("none", tuple(replace(one, rows=int(one.path != first)) for one in known)) == []


def test_a_withdrawn_file_stays_out_and_other_content_of_its_path_counts() -> None:
    known = book([a_file(D7, "a", "A")])
    out = tuple(replace(one, withdrawn=True) for one in known)
    assert contents(out) == []
    assert received(out, [a_file(D7, "a", "A", 9)]) == ()
    (corrected,) = received(out, [a_file(D7, "a", "B")])
    assert contents((*out, corrected)) == ["B"]
    (wrong_again,) = received((*out, corrected), [a_file(D7, "a", "A")])
    assert contents((corrected, wrong_again)) == []
    assert contents(known) == ["A"]
    assert known[0].order == out[0].order


def test_an_order_that_moves_moves_the_inputs_and_makes_a_published_day_late() -> None:
    first = [a_file(D7, "a", "A"), a_file(D7, "b", "B")]
    known, again = book(first), book(first, [a_file(D7, "a", "A2")], [a_file(D7, "a", "A")])

    def inputs(deliveries: tuple[Delivery, ...]) -> tuple[str, tuple[str, ...]]:
        force = force_by_day(described(), deliveries)
        return staged_inputs(described(), D7, force, {}), origins(described(), D7, force, D7)

    assert contents(again) == ["B", "A"]
    assert set(inputs(again)[1]) == set(inputs(known)[1])
    assert inputs(again) != inputs(known)
    # A new number alone does not make a published day late; evidence is stale, because a model can see the number.
    alone = inputs(book(first[:1], [a_file(D7, "a", "A2")], [a_file(D7, "a", "A")]))
    assert (alone[0] != inputs(book(first[:1]))[0], alone[1]) == (True, inputs(book(first[:1]))[1])
    # A file that was read again may have other rows.
    assert inputs(tuple(replace(one, landings=2) for one in known)) != inputs(known)


def test_rows_that_raw_had_lost_return_with_their_number() -> None:
    (known,) = book([a_file(D7, "a", "A")])
    lost = replace(known, rows=0, landings=0)
    assert received((lost,), [a_file(D7, "a", "A", 7)]) == (known,)


def test_a_file_landed_again_for_another_reading_gets_new_counts_and_keeps_its_number() -> None:
    """Otherwise the ledger says how it was read earlier, and it is unknown what raw keeps of it."""
    (one,) = book([replace(a_file(D7, "x", "aa"), reading="lines+header 1", rows=3)])
    (again,) = received((one,), [replace(one, reading="lines 2", rows=4, corrupt_rows=1)])
    assert again == replace(one, reading="lines 2", rows=4, corrupt_rows=1, landings=2)


def test_a_delivery_that_was_read_again_is_still_found_by_the_names_in_stored_contents() -> None:
    """The same bytes explain no rows that come or go."""
    (one,) = book([a_file(D7, "x", "aa")])
    again = replace(one, landings=3)
    assert origin(one) in origins_ever(again)
    assert origin(one) != origin(again)
    assert not origins_ever(again) & origins_ever(replace(again, fingerprint="bb"))


def test_what_does_not_count_only_because_it_was_purged_waits_for_a_decision() -> None:
    """Otherwise a day would be built without a file, and the checks of its other files might all pass."""

    def purged(one: Delivery) -> Delivery:
        return replace(one, rows=0, landings=0, withdrawn=True)

    def journal(one: Delivery, *deeds: Deed) -> list[DeliveryEntry]:
        return [DeliveryEntry("trips", one.day, one.path, one.fingerprint, deed, one.order, NOON) for deed in deeds]

    old, new, other = (
        a_file(D7, path, content, hour) for hour, (path, content) in enumerate([("p", "1"), ("p", "2"), ("q", "3")])
    )
    first, second, third = book([old, other], [new])
    superseded = next(one for one in (first, second, third) if one.fingerprint == "1")
    rest = [one for one in (first, second, third) if one is not superseded]
    said = journal(superseded, Deed.purged)
    require_known_decision(described(), [purged(superseded), *rest], said)
    (again,) = received([purged(superseded), *rest], [old])
    for withdrawn_by_a_person in (False, True):
        decided = [*journal(superseded, Deed.withdrawn), *said] if withdrawn_by_a_person else said
        if withdrawn_by_a_person:
            require_known_decision(described(), [again, *rest], decided)
        else:
            with pytest.raises(SourceError, match=r"trips 2024-..-..: p \(1\) would count, and was purged.*--undo"):
                require_known_decision(described(), [again, *rest], decided)
    require_known_decision(
        described(), [replace(again, withdrawn=False), *rest], [*said, *journal(again, Deed.restored)]
    )
    # Of the files of a day the latest one counts; if it is withdrawn, the one that was purged would.
    newest = max(rest, key=lambda one: one.order)
    loser = next(one for one in rest if one is not newest)
    require_known_decision(described("latest_file"), [newest, purged(loser)], journal(loser, Deed.purged))
    with pytest.raises(SourceError, match="would count, and was purged"):
        require_known_decision(
            described("latest_file"),
            [replace(newest, withdrawn=True), purged(loser)],
            [*journal(loser, Deed.purged), *journal(newest, Deed.withdrawn)],
        )


def test_each_delivery_is_shown_with_why_it_does_not_count() -> None:
    known = book([a_file(D7, "a", "A" * 64), a_file(D7, "b", "b" * 64, 1)], [a_file(D7, "a", "B" * 64)])
    out = tuple(replace(one, withdrawn=one.path == "b") for one in known)
    entry = DeliveryEntry("trips", D7, "b", "b" * 64, Deed.withdrawn, 1, NOON, "ada", "wrong store")
    shown = {one.delivery.fingerprint[0]: (one.counts, one.why) for one in standings(described(), out, [entry])}
    assert shown == {
        "A": (False, "superseded by BBBBBBBB, delivered at 2024-02-01 12:00:00 UTC"),
        "B": (True, ""),
        "b": (False, "withdrawn by ada at 2024-02-01 12:00:00 UTC: wrong store"),
    }
    observed = {one.delivery.path: one.why for one in standings(described("latest_file"), book(list(chain(
        [a_file(D7, "a", "A")], [a_file(D7, "b", "B", 1)]))))}  # fmt: skip
    assert observed == {"a": "superseded by b: latest_file takes the newest file of a day", "b": ""}
    assert len(heads(known)) == 2
