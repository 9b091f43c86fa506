"""Units, claims and holds: the contract of `Ledger`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from backfill_assets.core.errors import ClaimedDaysError, HeldDaysError, UnitError
from backfill_assets.core.expected_change import Change, Clause, Contract
from backfill_assets.core.unit import AttemptState, LateData, ReleaseMode, UnitState
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.unit.ledger.samples import LEASE, NOON, a_hold, a_launch, a_manifest, a_unit, march

CONTRACT = Contract((Clause(march(1, 2), {"row_count": Change(Decimal("-0.5"), Decimal("-0.5"))}),))
OPEN = {UnitState.open}


def opened(ledger: Ledger, days: tuple[dt.date, ...], by: str = "b_1", *, live: bool = False, **more: object) -> str:
    return ledger.assign(a_launch(days, by, live=live), a_unit(days, by, live=live, **more)).id


def test_a_launch_on_free_days_opens_its_proposal_with_all_its_claims(ledger: Ledger) -> None:
    proposal = a_unit(march(1, 4), contract=CONTRACT, mode=ReleaseMode.manual)
    assert ledger.assign(a_launch(march(1, 4)), proposal) == proposal
    assert ledger.unit(proposal.id) == proposal
    assert ledger.claims("flights", march(1, 9)) == dict.fromkeys(march(1, 4), proposal.id)
    assert ledger.claims("flights", [march(1)[0], march(9)[0]]) == {march(1)[0]: proposal.id}
    assert ledger.claims("orders", march(1, 9)) == {}
    assert ledger.claims("flights", []) == {}


def test_a_second_step_of_the_same_launch_joins_its_unit(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 4))
    assert ledger.assign(a_launch(march(2, 3)), a_unit(march(1, 4), id="u_other")).id == unit
    assert [u.id for u in ledger.units()] == [unit]


def test_a_launch_of_exactly_one_units_days_joins_it(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 4))
    assert opened(ledger, march(2, 3), "b_2") == unit


def test_a_launch_of_claimed_and_free_days_is_refused_and_leaves_nothing(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 4))
    with pytest.raises(ClaimedDaysError, match=unit):
        opened(ledger, march(4, 5), "b_2")
    assert [u.id for u in ledger.units()] == [unit]
    assert ledger.claims("flights", march(5)) == {}


def test_a_proposal_beyond_its_launch_claims_all_its_days(ledger: Ledger) -> None:
    targets = {"flights": march(1, 4), "orders": march(1, 2)}
    unit = ledger.assign(a_launch(march(1, 2)), a_unit(march(1, 4), targets=targets))
    assert unit.targets == targets
    assert ledger.claims("flights", march(1, 9)) == dict.fromkeys(march(1, 4), unit.id)
    assert ledger.claims("orders", march(1, 9)) == dict.fromkeys(march(1, 2), unit.id)


def test_a_proposal_is_refused_when_days_beyond_its_launch_are_claimed(ledger: Ledger) -> None:
    other = opened(ledger, march(4), "b_1")
    with pytest.raises(ClaimedDaysError, match=rf"flights 2013-03-04: claimed by open unit {other}"):
        ledger.assign(a_launch(march(1, 2), "b_2"), a_unit(march(1, 4), "b_2"))
    assert ledger.claims("flights", march(1, 3)) == {}


def test_a_live_launch_that_may_publish_goes_past_a_claim_and_keeps_all_its_days(ledger: Ledger) -> None:
    other = opened(ledger, march(1, 2))
    launch = a_launch(march(2, 3), "r_1", live=True, late_data=LateData.publish)
    unit = ledger.assign(launch, a_unit(march(2, 3), "r_1", live=True))
    assert unit.targets == {"flights": march(2, 3)}
    assert ledger.claims("flights", march(1, 3)) == {**dict.fromkeys(march(1, 2), other), march(3)[0]: unit.id}


def test_a_live_unit_that_went_past_a_claim_is_opened_again_with_its_own_claims_only(ledger: Ledger) -> None:
    opened(ledger, march(1, 2))
    launch = a_launch(march(2, 3), "r_1", live=True, late_data=LateData.publish)
    unit = ledger.assign(launch, a_unit(march(2, 3), "r_1", live=True)).id
    ledger.move(unit, OPEN, UnitState.published)
    ledger.move(unit, {UnitState.published}, UnitState.open)
    assert ledger.claims("flights", march(3)) == {march(3)[0]: unit}


def test_a_live_launch_that_must_wait_is_refused(ledger: Ledger) -> None:
    opened(ledger, march(1, 2))
    with pytest.raises(ClaimedDaysError):
        opened(ledger, march(2), "r_1", live=True)


def test_a_live_launch_of_a_day_on_hold_is_refused(ledger: Ledger) -> None:
    ledger.hold([a_hold(march(2)[0], "doubled rows")])
    with pytest.raises(HeldDaysError, match="doubled rows"):
        opened(ledger, march(2), "r_1", live=True)
    assert opened(ledger, march(1), "r_2", live=True) == "u_r_2"
    assert opened(ledger, march(2), "b_3") == "u_b_3"


def test_a_named_unit_is_joined_or_refused(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 4))
    named = a_launch(march(2), "b_2", named=unit)
    assert ledger.assign(named, a_unit(march(2), "b_2")).id == unit
    with pytest.raises(UnitError, match="u_nowhere"):
        ledger.assign(a_launch(march(2), "b_2", named="u_nowhere"), a_unit(march(2), "b_2"))
    ledger.move(unit, OPEN, UnitState.discarded)
    with pytest.raises(UnitError, match="discarded"):
        ledger.assign(named, a_unit(march(2), "b_2"))


def test_a_named_unit_that_a_sibling_step_has_just_published_is_joined(ledger: Ledger) -> None:
    unit = ledger.assign(a_launch(march(1, 3)), a_unit(march(1, 3))).id
    ledger.move(unit, {UnitState.open}, UnitState.published)
    found = ledger.assign(a_launch(march(2), "b_2", named=unit), a_unit(march(2), "b_2"))
    assert (found.id, found.state) == (unit, UnitState.published)
    for state in (UnitState.discarded, UnitState.rolled_back):
        ledger.move(unit, set(UnitState), state)
        with pytest.raises(UnitError, match=f"is {state.value}; launch without the tag"):
            ledger.assign(a_launch(march(2), "b_2", named=unit), a_unit(march(2), "b_2"))


def test_a_launch_whose_unit_is_over_is_refused_and_opens_no_second_one(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 2))
    ledger.move(unit, OPEN, UnitState.published)
    again = ledger.assign(a_launch(march(1, 2)), a_unit(march(1, 2), id="u_again"))
    assert (again.id, again.state) == (unit, UnitState.published)


@pytest.mark.parametrize(
    "proposal",
    [
        a_unit(march(1, 2), "b_other"),
        a_unit(march(1)),
        a_unit(march(1, 2), state=UnitState.published),
        a_unit(march(1, 2), targets={"orders": march(1, 2)}),
    ],
)
def test_a_proposal_that_does_not_fit_its_launch_is_refused(ledger: Ledger, proposal: object) -> None:
    with pytest.raises(UnitError, match="propose"):
        ledger.assign(a_launch(march(1, 2)), proposal)  # type: ignore[arg-type]
    with pytest.raises(UnitError, match="propose"):
        ledger.assign(a_launch(()), a_unit(march(1, 2)))


def test_an_unknown_unit_is_refused_by_name(ledger: Ledger) -> None:
    questions: tuple[Callable[[], object], ...] = (
        lambda: ledger.unit("u_x"),
        lambda: ledger.set_contract("u_x", CONTRACT),
        lambda: ledger.set_mode("u_x", ReleaseMode.auto),
        lambda: ledger.move("u_x", OPEN, UnitState.discarded),
    )
    for refused in questions:
        with pytest.raises(UnitError, match="there is no unit 'u_x'"):
            refused()


def test_units_are_listed_newest_first_by_dataset_and_state(ledger: Ledger) -> None:
    for i in range(3):
        opened(ledger, march(i + 1), f"b_{i}", opened_at=NOON + dt.timedelta(hours=i))
    ledger.move("u_b_1", OPEN, UnitState.discarded)
    assert [u.id for u in ledger.units()] == ["u_b_2", "u_b_1", "u_b_0"]
    assert [u.id for u in ledger.units(states=OPEN)] == ["u_b_2", "u_b_0"]
    assert [u.id for u in ledger.units("flights", {UnitState.discarded})] == ["u_b_1"]
    assert ledger.units("orders") == ()


def test_the_units_that_a_launch_opened_are_those_of_all_its_release_groups(ledger: Ledger) -> None:
    for number, launch in enumerate(("b_1", "b_1/orders", "b_10", "bx1/orders")):
        opened(ledger, march(number + 1), launch)
    assert {unit.opened_by for unit in ledger.units(launch="b_1")} == {"b_1", "b_1/orders"}
    assert ledger.units(launch="b") == ()


def test_contract_and_mode_of_an_open_unit_can_be_changed(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 2))
    assert ledger.set_contract(unit, CONTRACT).contract == CONTRACT
    assert ledger.set_mode(unit, ReleaseMode.manual).mode is ReleaseMode.manual
    assert ledger.unit(unit) == a_unit(march(1, 2), contract=CONTRACT, mode=ReleaseMode.manual)


def test_contract_and_mode_of_a_unit_that_is_over_stay(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 2))
    ledger.move(unit, OPEN, UnitState.published)
    with pytest.raises(UnitError, match="published, not open: its contract"):
        ledger.set_contract(unit, CONTRACT)
    with pytest.raises(UnitError, match="published, not open: its mode"):
        ledger.set_mode(unit, ReleaseMode.manual)
    assert not ledger.unit(unit).contract


def test_a_unit_that_ends_frees_its_claims_and_loses_its_running_attempts(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 2))
    ended = ledger.start_attempt(unit, "flights", march(1), "r_0", LEASE).number
    ledger.end_attempt(ended, AttemptState.done)
    ledger.start_attempt(unit, "flights", march(2), "r_1", LEASE)
    assert ledger.move(unit, OPEN, UnitState.discarded).state is UnitState.discarded
    assert ledger.unit(unit).state is UnitState.discarded
    assert ledger.claims("flights", march(1, 2)) == {}
    assert [a.state for a in ledger.attempts(unit)] == [AttemptState.done, AttemptState.lost]


def test_a_move_from_another_state_is_refused_and_named(ledger: Ledger) -> None:
    unit = opened(ledger, march(1))
    with pytest.raises(UnitError, match="is open, not discarded or published"):
        ledger.move(unit, {UnitState.published, UnitState.discarded}, UnitState.rolled_back)
    assert ledger.unit(unit).state is UnitState.open


def test_a_unit_that_comes_back_takes_its_claims_again(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 2))
    ledger.move(unit, OPEN, UnitState.published)
    assert ledger.move(unit, {UnitState.published}, UnitState.open).state is UnitState.open
    assert ledger.claims("flights", march(1, 2)) == dict.fromkeys(march(1, 2), unit)


def test_a_unit_cannot_come_back_over_the_claims_of_another(ledger: Ledger) -> None:
    unit = opened(ledger, march(1, 2))
    ledger.move(unit, OPEN, UnitState.published)
    other = opened(ledger, march(2, 3), "b_2")
    with pytest.raises(ClaimedDaysError, match=rf"2013-03-02: claimed by open unit {other}"):
        ledger.move(unit, {UnitState.published}, UnitState.open)
    assert ledger.unit(unit).state is UnitState.published
    assert ledger.claims("flights", march(1)) == {}


def test_holds_are_listed_and_lifted_by_day(ledger: Ledger) -> None:
    ledger.hold([a_hold(day) for day in march(1, 4)])
    ledger.hold([a_hold(march(2)[0], "again")])
    ledger.hold([])
    assert [h.reason for h in ledger.holds("flights", march(1, 2))] == ["rolled back", "again"]
    assert ledger.lift("flights", [*march(2), *march(4, 9)]) == 2
    assert ledger.lift("flights", []) == 0
    assert ledger.holds("flights") == tuple(a_hold(day) for day in (*march(1), *march(3)))
    assert ledger.holds("flights", [*march(1), *march(4)]) == (a_hold(march(1)[0]),)
    assert ledger.holds("orders") == ()


def _released(ledger: Ledger, days: tuple[dt.date, ...], by: str, at: dt.datetime) -> str:
    unit = opened(ledger, days, by)
    ledger.intend(a_manifest(f"r_{by}", days, unit, created_at=at))
    ledger.finalize(f"r_{by}", 1, at, UnitState.published)
    return unit


def test_the_later_of_two_launches_of_the_same_days_finds_them_released(ledger: Ledger) -> None:
    unit = _released(ledger, march(1, 4), "b_1", NOON)
    twice = replace(a_launch(march(1, 4), "b_2"), since=NOON - LEASE)
    found = ledger.assign(twice, a_unit(march(1, 4), "b_2"))
    assert (found.id, found.state) == (unit, UnitState.published)
    assert ledger.claims("flights", march(1, 9)) == {}
    part = replace(a_launch(march(2), "b_3"), since=NOON - LEASE)
    assert ledger.assign(part, a_unit(march(2), "b_3")).id == unit


@pytest.mark.parametrize(
    ("days", "more"),
    [
        (march(1, 4), {"since": NOON + LEASE}),
        (march(1, 4), {"since": None}),
        (march(3, 5), {"since": NOON - LEASE}),
        (march(1, 4), {"since": NOON - LEASE, "live": True}),
    ],
    ids=["made after the release", "nobody knows when it was made", "another day as well", "a live launch"],
)
def test_any_other_launch_of_released_days_opens_a_unit(
    ledger: Ledger, days: tuple[dt.date, ...], more: dict[str, Any]
) -> None:
    _released(ledger, march(1, 4), "b_1", NOON)
    launch = replace(a_launch(days, "b_2"), **more)
    assert ledger.assign(launch, a_unit(days, "b_2", live=launch.live)).id == "u_b_2"


def test_what_was_rolled_back_since_is_not_taken_for_released(ledger: Ledger) -> None:
    unit = _released(ledger, march(1, 4), "b_1", NOON)
    ledger.move(unit, {UnitState.published}, UnitState.rolled_back)
    launch = replace(a_launch(march(1, 4), "b_2"), since=NOON - LEASE)
    assert ledger.assign(launch, a_unit(march(1, 4), "b_2")).id == "u_b_2"
