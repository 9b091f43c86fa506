"""A state machine over units and claims: after any launches, moves and releases, the claims are those of open units."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backfill_assets.core.errors import ClaimedDaysError, HeldDaysError, UnitError
from backfill_assets.core.unit import LateData, UnitState
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.ledgers import opened_ledger
from backfill_assets_tests.unit.ledger.samples import NOON, a_hold, a_launch, a_manifest, a_unit, march

ALL_DAYS = march(1, 6)
some_days = st.sets(st.sampled_from(ALL_DAYS), min_size=1).map(lambda days: tuple(sorted(days)))
states = st.sampled_from(UnitState)


class UnitsAndClaims(RuleBasedStateMachine):
    """Launches, moves, holds and releases in any order."""

    ledger: Ledger
    folder: Path

    @initialize()
    def open_a_fresh_ledger(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.ledger = opened_ledger(f"sqlite:///{self.folder}/ledger.db", FixedClock(NOON))
        self.launches = 0
        self.releases = 0
        self.wants: dict[str, set[dt.date]] = {}

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    @rule(days=some_days, live=st.booleans(), late_data=st.sampled_from(LateData))
    def launch(self, days: tuple[dt.date, ...], *, live: bool, late_data: LateData) -> None:
        before = dict(self.ledger.claims("flights", ALL_DAYS))
        held = {hold.target[1] for hold in self.ledger.holds("flights")}
        self.launches += 1
        by = f"b_{self.launches}"
        try:
            unit = self.ledger.assign(a_launch(days, by, live=live, late_data=late_data), a_unit(days, by, live=live))
        except HeldDaysError:
            assert live
            assert held & set(days)
        except ClaimedDaysError:
            assert set(before) & set(days)
            assert self.ledger.claims("flights", ALL_DAYS) == before
        else:
            if unit.opened_by == by:
                self.wants[unit.id] = set(days) - set(before)
            again = self.ledger.assign(a_launch(days, unit.opened_by), a_unit(days, unit.opened_by, id="u_x"))
            assert again == unit

    @precondition(lambda self: bool(getattr(self, "wants", None)))
    @rule(data=st.data(), allowed=st.sets(states), to=states)
    def move(self, data: st.DataObject, allowed: set[UnitState], to: UnitState) -> None:
        unit = self.ledger.unit(data.draw(st.sampled_from(sorted(self.wants))))
        others = {d for d, u in self.ledger.claims("flights", ALL_DAYS).items() if u != unit.id}
        try:
            self.ledger.move(unit.id, allowed, to)
        except ClaimedDaysError:
            assert to is UnitState.open
            assert others & self.wants[unit.id]
            assert self.ledger.unit(unit.id) == unit
        except UnitError:
            assert unit.state not in allowed
            assert self.ledger.unit(unit.id) == unit
        else:
            assert unit.state in allowed
            assert self.ledger.unit(unit.id) == unit.moved(to)

    @precondition(lambda self: bool(getattr(self, "wants", None)))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.wants)))
        self.releases += 1
        name = f"r_{self.releases}"
        self.ledger.intend(a_manifest(name, ALL_DAYS, unit))
        self.ledger.finalize(name, self.releases, FixedClock(NOON).now(), UnitState.published)
        assert self.ledger.unit(unit).state is UnitState.published

    @precondition(lambda self: bool(getattr(self, "releases", 0)))
    @rule(data=st.data(), state=states)
    def finalize_again(self, data: st.DataObject, state: UnitState) -> None:
        number = data.draw(st.integers(1, self.releases))
        before = self.ledger.units()
        self.ledger.finalize(f"r_{number}", 99, FixedClock(NOON).now(), state)
        assert self.ledger.units() == before

    @rule(days=some_days)
    def hold(self, days: tuple[dt.date, ...]) -> None:
        self.ledger.hold([a_hold(day) for day in days])

    @rule(days=some_days)
    def lift(self, days: tuple[dt.date, ...]) -> None:
        held = {hold.target[1] for hold in self.ledger.holds("flights")}
        assert self.ledger.lift("flights", days) == len(held & set(days))

    @invariant()
    def claims_are_exactly_those_of_open_units(self) -> None:
        if not hasattr(self, "ledger"):
            return
        expected: dict[dt.date, str] = {}
        for unit in self.ledger.units(states={UnitState.open}):
            for day in self.wants[unit.id]:
                assert day not in expected, "two open units claim one day"
                expected[day] = unit.id
        assert self.ledger.claims("flights", ALL_DAYS) == expected


UnitsAndClaims.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestUnitsAndClaims = UnitsAndClaims.TestCase
