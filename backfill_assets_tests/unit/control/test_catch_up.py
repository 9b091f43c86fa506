"""Gaps are filled by bounded backfills, one after the other; each day is built once unless something behind it moves."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_assets.core.delivery import Deed
from backfill_assets.core.errors import ClaimedDaysError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import REASON_TAG, AttemptState, Hold, ReleaseMode, UnitState
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.releasing import CatchUp, CatchUpOrder, Live, Publication
from backfill_assets.dataset.sources import OnMissing, Upstream
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.tables import day, layout
from backfill_assets_tests.unit.control.catching import DUE, FIRST, GROUP, LAST, Shop

pytestmark = pytest.mark.slow

Opened = Callable[..., Shop]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    shops: list[Shop] = []

    def open_shop(asked: CatchUp | None = None, watch_days: int = 1, **contract: object) -> Shop:
        shops.append(Shop(tmp_path, asked, watch_days, **contract))
        return shops[-1]

    yield open_shop
    for shop in shops:
        shop.world.close()


@pytest.fixture
def shop(opened: Opened) -> Shop:
    return opened()


def test_all_gaps_are_filled_by_bounded_backfills_and_each_day_is_built_once(shop: Shop) -> None:
    assert shop.state().to is None
    # The newest day is all that the group watches: it comes first.
    assert shop.catch_up() == [(LAST,), DUE[:4], DUE[4:8]]
    assert shop.published() == shop.published("sales") == list(DUE)
    assert set(shop.built.values()) == {1}
    done = shop.state()
    assert (done.to, done.ready, done.waiting, done.unit, done.runs) == (LAST, (), {}, "", 0)
    shop.pass_time(days=2)
    shop.deliver(day(60))
    assert [shop.state().waiting, shop.state().ready] == [{day(59): "sales has no delivery"}, (day(60),)]


def test_a_backfill_is_of_a_unit_that_has_claimed_its_days_and_says_why(shop: Shop) -> None:
    said = shop.step()
    (request,) = shop.backfills.requests
    assert said == f"launched backfill b1 over sales, totals {LAST} in unit {shop.newest.id}"
    assert request.layers == {
        "sales": (Layer.raw, Layer.staging, Layer.shadow, Layer.published),
        "totals": (Layer.shadow, Layer.published),
    }
    assert request.tags[REASON_TAG] == "catch up: 1 due day not published"
    assert (shop.newest.mode, shop.newest.catches_up) == (ReleaseMode.auto, True)
    with pytest.raises(ClaimedDaysError):
        shop.world.open_unit({"sales": [LAST, day(59)]})


def test_nothing_is_launched_while_a_backfill_works_and_a_lost_launch_is_made_again(shop: Shop) -> None:
    shop.step()
    assert shop.step() == ""
    assert len(shop.backfills.requests) == 1
    # The process died after it opened the unit.
    shop.backfills.at_work.clear()
    assert shop.step().startswith("launched backfill b2")
    assert len(shop.world.ledger.units()) == 1


def test_days_that_are_claimed_held_undelivered_or_live_are_left_out_until_they_are_free(shop: Shop) -> None:
    claimed, held, empty, live, *_ = DUE
    unit = shop.world.open_unit({"totals": [claimed]})
    shop.world.ledger.hold([Hold(("sales", held), "wrong logic", "ada", shop.world.clock.now())])
    (path_of(layout(shop.folder).sources) / "x" / f"{empty}.csv").unlink()
    shop.live.add(live)
    assert shop.state().waiting == {
        claimed: f"totals is claimed by open unit {unit.id}",
        held: "sales is on hold: wrong logic",
        empty: "sales has no delivery",
        live: "a live run works on it",
    }
    shop.catch_up()
    assert shop.published() == list(DUE[4:])
    shop.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    shop.world.ledger.lift("sales", [held])
    shop.deliver(empty)
    shop.live.clear()
    assert shop.catch_up() == [DUE[:4]]
    assert set(shop.built.values()) == {1}


def test_days_that_fail_their_checks_are_set_aside_and_the_others_go_on(shop: Shop) -> None:
    shop.build_next()
    bad = DUE[1]
    assert shop.step()
    shop.run(failing={bad})
    assert shop.step().startswith(f"gave up unit {shop.newest.id}")
    assert shop.newest.state is UnitState.discarded
    (text,) = [why for d, why in shop.state().waiting.items() if d == bad]
    assert text.startswith(f"it failed its checks in unit {shop.newest.id}: {bad} unique_key")
    assert shop.catch_up() == [(DUE[0], *DUE[2:5]), DUE[5:8]]
    assert bad not in shop.published()
    shop.pass_time(days=3)
    assert all(bad not in days for days in shop.catch_up())
    assert shop.built[bad] == 1


@pytest.mark.parametrize("move", ["a new file", "a landed file", "its code"])
def test_a_day_that_failed_is_built_again_when_something_behind_it_has_moved(shop: Shop, move: str) -> None:
    shop.build_next()
    bad = DUE[1]
    shop.step()
    shop.run(failing={bad})
    shop.catch_up()
    assert bad in shop.state().waiting
    if move == "its code":
        shop.corrects_its_code()
    else:
        shop.deliver(bad, "id\n7\n")
    if move == "a landed file":
        shop.land(bad)
    assert shop.state().ready == (bad,)
    assert shop.catch_up() == [(bad,)]
    assert shop.published() == list(DUE)


def test_it_stops_when_all_days_of_a_unit_failed_and_goes_on_when_something_has_moved(shop: Shop) -> None:
    shop.build_next()
    shop.step()
    shop.run(failing=DUE[:4])
    assert shop.step().startswith("gave up unit")
    assert shop.step() == ""
    assert shop.state().stops.startswith(f"all days of the last unit wait ({FIRST}: it failed its checks")
    assert f"backfill run sales totals {FIRST}..{DUE[3]}" in shop.state().stops
    shop.pass_time(days=3)
    assert shop.step() == ""
    shop.corrects_its_code()
    assert shop.state().stops == ""
    shop.catch_up()
    assert shop.published()[: len(DUE)] == list(DUE)


def test_days_on_hold_no_longer_stop_the_others(shop: Shop) -> None:
    shop.build_next()
    shop.step()
    shop.run(failing=DUE[:4])
    shop.step()
    holds = [Hold(("sales", d), "not now", "ada", shop.world.clock.now()) for d in DUE[:4]]
    shop.world.ledger.hold(holds)
    assert shop.catch_up() == [DUE[4:8]]


def test_a_backfill_without_verdicts_is_made_again_then_of_half_the_days_down_to_one(shop: Shop) -> None:
    shop.build_next()
    poison, sizes = DUE[2], []
    for _ in range(60):
        if shop.step().startswith("launched"):
            days = shop.backfills.requests[-1].days
            sizes.append(len(days))
            # A model that crashes on one day ends the whole backfill.
            shop.run(but=days if poison in days else ())
        shop.pass_time(minutes=3)
    assert sizes[:6] == [4, 4, 2, 4, 4, 2]
    assert shop.published() == [d for d in DUE if d != poison]
    assert "could not be built" in shop.state().waiting[poison]
    shop.pass_time(days=1)
    shop.deliver(day(59))
    assert shop.step().startswith("launched")
    assert poison in shop.state().ready or poison in shop.backfills.requests[-1].days


def test_a_failed_backfill_is_not_made_again_at_once(shop: Shop) -> None:
    shop.step()
    shop.run(but={LAST})
    assert shop.step() == ""
    shop.pass_time(minutes=6)
    assert shop.step().startswith("launched backfill b2")


def test_a_cancelled_backfill_is_left_to_people(shop: Shop) -> None:
    shop.step()
    shop.end(shop.newest, cancelled=True)
    shop.pass_time(days=1)
    assert shop.step() == ""
    assert shop.newest.id in shop.state().unit
    assert f"backfill resume {shop.newest.id}" in shop.state().unit


def test_with_approval_a_complete_unit_waits_and_nothing_else_is_launched(opened: Opened) -> None:
    shop = opened(publication=Publication.approval)
    shop.step()
    assert shop.newest.mode is ReleaseMode.manual
    assert Layer.published not in shop.backfills.requests[0].layers["sales"]
    shop.run()
    shop.pass_time(days=1)
    assert shop.step() == ""
    evidence = shop.world.publisher().evidence_hash(shop.newest.id)
    assert shop.state().unit.endswith(f"backfill publish {shop.newest.id} --evidence {evidence}")
    shop.world.publisher().release(shop.newest.id)
    assert shop.step().startswith("launched backfill b2")


def test_days_that_a_user_gives_up_are_not_built_again_by_themselves(opened: Opened) -> None:
    shop = opened(publication=Publication.approval)
    shop.step()
    shop.run()
    shop.world.publisher().release(shop.newest.id)
    shop.step()
    shop.run()
    shop.world.ledger.move(shop.newest.id, {UnitState.open}, UnitState.discarded)
    assert shop.step() == ""
    assert "it was given up with unit" in shop.state().stops
    shop.deliver(DUE[0], "id\n9\n")
    assert shop.step().startswith("launched")


def test_the_day_of_a_failed_live_run_is_taken_over_and_that_of_a_working_one_is_not(shop: Shop) -> None:
    shop.land(LAST)
    failed = shop.world.open_unit({name: [LAST] for name in GROUP}, live=True)
    attempt = shop.world.ledger.start_attempt(failed.id, "sales", [LAST], "run_1", dt.timedelta(hours=1))
    assert shop.state().waiting == {LAST: "a live run works on it"}
    assert shop.catch_up() == [DUE[:4], DUE[4:8]]
    shop.world.ledger.end_attempt(attempt.number, AttemptState.failed)
    shop.pass_time(minutes=6)
    assert shop.catch_up() == [(LAST,)]
    assert shop.world.ledger.unit(failed.id).state is UnitState.discarded


def test_the_day_of_a_live_run_that_failed_its_checks_waits_until_something_behind_it_has_moved(shop: Shop) -> None:
    failed = shop.world.open_unit({name: [LAST] for name in GROUP}, live=True)
    shop.build(failed, [LAST], failing={LAST})
    shop.pass_time(hours=1)
    assert shop.state().waiting[LAST].startswith(f"it failed its checks in unit {failed.id}")
    shop.catch_up()
    assert shop.published() == list(DUE[:-1])
    shop.brings(LAST, 99)
    assert shop.catch_up() == [(LAST,)]
    assert shop.world.ledger.unit(failed.id).state is UnitState.discarded


def test_the_newest_days_come_first_if_that_is_asked_for(opened: Opened) -> None:
    shop = opened(CatchUp(days_per_run=4, order=CatchUpOrder.newest))
    assert shop.catch_up() == [(LAST,), DUE[4:8], DUE[:4]]


def test_days_that_look_back_are_filled_in_turn_and_wait_for_those_before_them(opened: Opened) -> None:
    shop = opened()
    shop.says("totals", upstream={"sales": Upstream(lookback_days=1)})
    shop.world.ledger.hold([Hold(("sales", DUE[5]), "wrong logic", "ada", shop.world.clock.now())])
    assert shop.catch_up() == [DUE[:4], DUE[4:5]]
    assert shop.state().waiting[DUE[7]] == f"it is built from {DUE[6]} as well, which waits"
    shop.world.ledger.lift("sales", [DUE[5]])
    assert shop.catch_up() == [DUE[5:]]


def test_days_that_are_missing_in_other_datasets_are_not_of_the_same_unit(shop: Shop) -> None:
    # A dataset that was added to the group: its upstream has its history already.
    shop.land(*DUE)
    for d in DUE[2:]:
        unit = shop.world.open_unit({"sales": [d]})
        shop.world.build(unit, "sales", {d: [d.day]})
        shop.world.publisher().release(unit.id)
    assert shop.catch_up() == [(LAST,), DUE[:2], DUE[2:6], DUE[6:8]]
    assert [sorted(r.layers) for r in shop.backfills.requests] == [["totals"], [*GROUP], ["totals"], ["totals"]]
    assert shop.published() == list(DUE)


def test_the_end_is_estimated_from_what_the_last_units_took(shop: Shop) -> None:
    assert (shop.state().runs, shop.state().until) == (3, None)
    shop.build_next()
    state = shop.state()
    assert (state.runs, len(state.ready)) == (2, 8)
    assert state.until is not None


def test_a_late_first_file_is_still_run_by_a_live_run_and_does_not_wait_for_old_history(shop: Shop) -> None:
    shop.build_next()
    shop.step()
    shop.pass_time(days=1)
    shop.brings(day(59), 59)
    assert [(late.day, late.gap) for late in shop.late.of("sales")] == [(day(59), True)]


def test_a_closed_history_is_filled_up_to_its_end(opened: Opened) -> None:
    shop = opened(end=DUE[5])
    assert [d for days in shop.catch_up() for d in days] == [DUE[5], *DUE[:5]]


def test_a_group_that_does_not_ask_is_left_alone(opened: Opened) -> None:
    shop = opened(live=Live())
    assert shop.catching_up.groups == ()


def test_a_unit_of_datasets_that_are_no_longer_one_group_is_given_up(shop: Shop) -> None:
    shop.step()
    shop.end(shop.newest)
    assert shop.catching_up.step(("sales",)).startswith(f"gave up unit {shop.newest.id}")


def test_a_history_that_ends_in_the_future_is_filled_up_to_yesterday(opened: Opened) -> None:
    shop = opened(end=day(400))
    assert [d for days in shop.catch_up() for d in days] == [LAST, *DUE[:-1]]
    assert shop.state().waiting == {}


def test_its_backfills_come_after_those_of_people(shop: Shop) -> None:
    shop.step()
    assert shop.backfills.requests[0].tags["dagster/priority"] == "-1"


def test_a_unit_is_left_alone_while_one_of_its_datasets_cannot_be_loaded(opened: Opened) -> None:
    shop = opened(publication=Publication.approval)
    shop.step()
    shop.run()
    left = Catalog({"sales": shop.loaded["sales"]})
    catching_up = replace(shop.catching_up, warehouse=replace(shop.warehouse, catalog=left))
    assert catching_up.groups == (("sales",),)
    assert catching_up.step(("sales",)) == f"unit {shop.newest.id} waits: totals cannot be loaded"
    assert shop.newest.state is UnitState.open


def test_it_stops_after_three_single_days_that_could_not_be_built_until_the_code_is_another(opened: Opened) -> None:
    shop = opened(CatchUp(days_per_run=1))
    for _ in range(60):
        if shop.step().startswith("launched"):
            shop.run(but=DUE)
        shop.pass_time(minutes=3)
    assert [request.days for request in shop.backfills.requests] == [(d,) for d in (LAST, *DUE[:2]) for _ in range(2)]
    assert "could not be built" in shop.state().stops
    shop.corrects_its_code()
    assert shop.state().stops == ""
    assert [d for days in shop.catch_up() for d in days] == [LAST, *DUE[:-1]]


def test_with_one_day_per_run_it_stops_after_three_days_that_failed_their_checks(opened: Opened) -> None:
    shop = opened(CatchUp(days_per_run=1))
    for _ in range(10):
        if shop.step().startswith("launched"):
            shop.run(failing=DUE)
    assert [request.days for request in shop.backfills.requests] == [(LAST,), (DUE[0],), (DUE[1],)]
    assert "failed its checks" in shop.state().stops


def test_a_day_that_could_not_be_built_comes_after_all_others_and_alone(shop: Shop) -> None:
    shop.build_next()
    poison = DUE[0]
    for _ in range(70):
        if shop.step().startswith("launched"):
            shop.run(but=DUE if poison in shop.backfills.requests[-1].days else ())
        shop.pass_time(minutes=3)
    assert shop.published() == list(DUE[1:])
    shop.pass_time(days=1)
    shop.brings(day(59), 59)
    shop.brings(day(60), 60)
    shop.pass_time(days=1)
    asked = len(shop.backfills.requests)
    shop.catch_up()
    assert [request.days for request in shop.backfills.requests[asked:]][-1] == (poison,)


def test_a_day_that_failed_because_of_the_day_before_is_built_again_once_that_one_is_published(opened: Opened) -> None:
    shop = opened(CatchUp(days_per_run=9))
    shop.says("totals", upstream={"sales": Upstream(lookback_days=1)})
    shop.step()
    # The row of the fourth day is wrong, and the total of the fifth one shows it.
    shop.land(*DUE)
    for name, d in (("sales", DUE[3]), ("totals", DUE[4])):
        shop.world.build(shop.newest, name, {day: [day.day] for day in DUE if day not in {d, DUE[3]}})
        shop.world.build(shop.newest, name, {d: [0]}, passed=False)
    shop.end(shop.newest)
    assert shop.step().startswith("gave up")
    assert [d for d in DUE if d not in shop.state().ready] == list(DUE[3:])
    shop.brings(DUE[3], 33)
    assert DUE[3] in shop.state().ready
    shop.catch_up()
    assert shop.published() == list(DUE)


def test_the_live_unit_of_a_late_file_is_not_given_up_for_a_gap_of_a_dataset_below(shop: Shop) -> None:
    shop.land(LAST)
    unit = shop.world.open_unit({"sales": [LAST]})
    shop.world.build(unit, "sales", {LAST: [28]})
    shop.world.publisher().release(unit.id)
    late = shop.world.open_unit({name: [LAST] for name in GROUP}, live=True)
    shop.pass_time(hours=1)
    assert shop.state().waiting == {LAST: f"totals is claimed by open unit {late.id}"}
    shop.catch_up()
    assert shop.world.ledger.unit(late.id).state is UnitState.open


def test_a_failed_live_unit_that_somebody_has_resumed_is_left_to_them(shop: Shop) -> None:
    shop.land(LAST)
    failed = shop.world.open_unit({name: [LAST] for name in GROUP}, live=True)
    shop.pass_time(hours=1)
    shop.backfills.at_work[failed.id] = "resumed"
    shop.catch_up_but(failed.id)
    assert shop.world.ledger.unit(failed.id).state is UnitState.open
    assert LAST not in shop.published()


def test_a_release_that_failed_is_tried_again_less_and_less_often(shop: Shop) -> None:
    shop.step()
    unit, pauses, last = shop.newest, [], shop.world.clock.now()
    for _ in range(400):
        if shop.backfills.at_work:
            shop.build(unit, [LAST])
            shop.end(unit)
        if shop.step():
            pauses.append((shop.world.clock.now() - last).total_seconds() // 60)
            last = shop.world.clock.now()
        shop.pass_time(minutes=1)
    # A minute of each is that of the backfill.
    assert pauses[:5] == [5, 11, 21, 41, 81]
    assert shop.newest.id == unit.id
    assert shop.built[LAST] == 1


def test_a_release_that_has_failed_for_months_is_still_tried_again(shop: Shop) -> None:
    shop.step()
    unit = shop.newest
    shop.build(unit, [LAST])
    shop.end(unit)
    shop.backfills.over[unit.id] *= 100
    shop.pass_time(days=2)
    assert shop.step().startswith("launched")


def test_a_withdrawn_delivery_whose_file_is_still_there_does_not_count(shop: Shop) -> None:
    shop.build_next()
    shop.land(DUE[0])
    (delivery,) = shop.world.ledger.deliveries("sales", [DUE[0]])
    shop.world.ledger.change_deliveries([delivery], Deed.withdrawn, "ada", "wrong")
    assert shop.state().waiting == {DUE[0]: "sales has no delivery"}
    shop.brings(DUE[0], 7)
    assert DUE[0] in shop.state().ready


def test_a_missing_delivery_does_not_hold_back_days_that_may_do_without_it(opened: Opened) -> None:
    shop = opened()
    shop.says("totals", upstream={"sales": Upstream(lookback_days=1, on_missing=OnMissing.pass_)})
    (path_of(layout(shop.folder).sources) / "x" / f"{DUE[2]}.csv").unlink()
    shop.world.ledger.hold([Hold(("sales", DUE[6]), "wrong logic", "ada", shop.world.clock.now())])
    assert sorted(shop.state().waiting) == [DUE[2], *DUE[6:]]
    assert shop.catch_up() == [(*DUE[:2], *DUE[3:5]), (DUE[5],)]


def test_a_day_that_crashes_in_live_runs_as_well_is_tried_once_a_day_and_holds_nothing_back(opened: Opened) -> None:
    shop = opened(watch_days=30)
    shop.build_next()
    bad = shop.backfills.requests[0].days[0]
    poison = next(d for d in DUE if d != bad and d not in shop.published())
    asked: set[str] = set()
    launched = []
    for _ in range(600):
        for late in shop.late.of("sales"):
            # As the sensor `late_deliveries` does: once for each state of the deliveries.
            if not late.waits_for and late.deliveries not in asked:
                asked.add(late.deliveries)
                unit = shop.world.open_unit({name: [late.day] for name in GROUP}, live=True)
                if late.day != poison:
                    shop.build(unit, [late.day])
                    shop.world.publisher().release(unit.id)
        if shop.step().startswith("launched"):
            days = shop.backfills.requests[-1].days
            launched += [shop.world.clock.now()] if poison in days else []
            shop.run(but=DUE if poison in days else ())
        shop.pass_time(minutes=5)
    assert [d for d in DUE if d not in shop.published()] == [poison]
    # Two backfills of each size down to a single day, then two a day.
    assert len(launched) <= 6 + 2 * 4


def test_with_approval_a_failed_day_is_set_aside_and_the_others_go_on(opened: Opened) -> None:
    shop = opened(publication=Publication.approval)
    shop.build_next()
    shop.world.publisher().release(shop.newest.id)
    shop.step()
    shop.run(failing={DUE[1]})
    assert shop.step().startswith("gave up")
    assert list(shop.state().waiting) == [DUE[1]]
    assert shop.step().startswith("launched")
    assert shop.newest.targets["sales"] == (DUE[0], *DUE[2:5])


def test_with_approval_days_of_a_unit_that_crashed_are_not_taken_for_given_up(opened: Opened) -> None:
    shop = opened(publication=Publication.approval)
    shop.step()
    shop.run()
    shop.world.publisher().release(shop.newest.id)
    shop.step()
    shop.run(but={DUE[1]})
    shop.pass_time(minutes=6)
    shop.step()
    shop.run(but={DUE[1]})
    assert shop.step().startswith("gave up")
    assert shop.state().waiting == {}


def test_a_day_that_could_not_be_built_holds_back_those_that_look_back_at_it(opened: Opened) -> None:
    shop = opened(CatchUp(days_per_run=1))
    shop.says("totals", upstream={"sales": Upstream(lookback_days=1, on_missing=OnMissing.pass_)})
    for _ in range(8):
        if shop.step().startswith("launched"):
            shop.run(but=DUE[:1])
        shop.pass_time(minutes=6)
    assert sorted(shop.state().waiting) == list(DUE)
    shop.pass_time(days=1)
    shop.brings(day(59), 59)
    # Its day is over: it is tried again, before all others.
    assert shop.step().startswith("launched")
    assert shop.backfills.requests[-1].days == (FIRST,)
    shop.run()
    shop.catch_up()
    assert shop.published() == [*DUE, day(59)]


def test_of_many_days_that_cannot_be_built_the_one_that_has_waited_longest_is_tried_next(opened: Opened) -> None:
    shop = opened(CatchUp(days_per_run=1), end=DUE[4])
    for _ in range(700):
        if shop.step().startswith("launched"):
            shop.run(but=DUE)
        shop.pass_time(minutes=10)
    tried = Counter(d for request in shop.backfills.requests for d in request.days)
    assert set(tried) == set(DUE[:5])
    assert max(tried.values()) - min(tried.values()) <= 4


def test_days_that_may_be_empty_wait_until_something_older_or_they_have_been_delivered(opened: Opened) -> None:
    shop = opened()
    source = shop.world.datasets["sales"].landing.model_copy(update={"on_missing": OnMissing.pass_})
    shop.says(source=source)
    for d in (*DUE[:3], DUE[5]):
        (path_of(layout(shop.folder).sources) / "x" / f"{d}.csv").unlink()
    assert shop.state().waiting == dict.fromkeys(DUE[:3], "sales has no delivery yet")
    assert DUE[5] in shop.state().ready
