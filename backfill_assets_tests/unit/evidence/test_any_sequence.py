"""For any sequence of events: readers see what a plain model says, and the sweep deletes nothing that is needed."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from backfill_assets.core.errors import ClaimedDaysError, EvidenceError, HeldDaysError, RollbackError, UnitError
from backfill_assets.core.unit import LateData, UnitState
from backfill_assets.evidence.readiness import Blocker
from backfill_assets.release.publish import AlreadyReleased
from backfill_assets_tests.harness.tables import content, day, rows_of
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

KEEP = dt.timedelta(days=30)
WINDOW = dt.timedelta(days=37)
DAYS = [day(i) for i in range(3)]

some_days = st.sets(st.sampled_from(DAYS), min_size=1).map(sorted)
amounts = st.lists(st.integers(1, 3), max_size=2).map(sorted)

Content = dict[dt.date, list[int]]


@dataclass
class ModelUnit:
    days: list[dt.date]
    claimed: set[dt.date]
    state: UnitState = UnitState.open
    evidence: dict[dt.date, tuple[list[int], list[int]]] = field(default_factory=dict)
    """For each day the built content, and the content published at that time."""
    undone: set[dt.date] = field(default_factory=set)


@dataclass
class Layer:
    """One release of one day: the content before it, and whether a foreign row was added on top."""

    release: str
    before: list[int]
    touched: bool = False


class AnySequence(RuleBasedStateMachine):
    """A live pipeline, backfills, rollbacks, foreign rows and sweeps on one table."""

    units = Bundle("units")
    releases = Bundle("releases")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="any_sequence_"))
        self.world = World(self.folder)
        # Files have the machine's time: the world starts there and only moves forward.
        machine = dt.datetime.fromtimestamp(time.time() + 1, dt.UTC)
        self.world.clock.advance(machine - self.world.clock.now())
        self.home = self.world.homes["sales"]
        self.now: Content = {d: [] for d in DAYS}
        self.model: dict[str, ModelUnit] = {}
        self.layers: dict[dt.date, list[Layer]] = {d: [] for d in DAYS}
        self.released: dict[str, tuple[str, dt.datetime]] = {}
        self.held: set[dt.date] = set()
        self.versions: dict[int, tuple[Content, dt.datetime]] = {}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def owner(self, date: dt.date) -> str | None:
        owners = [u for u, m in self.model.items() if m.state is UnitState.open and date in m.claimed]
        assert len(owners) <= 1
        return owners[0] if owners else None

    def remember(self) -> None:
        """Note what the newest version shows, and that versions before it end now."""
        version = self.world.tables["sales"].version()
        at = self.world.clock.now()
        for older, (shown, ended) in self.versions.items():
            if older < version:
                self.versions[older] = (shown, min(ended, at))
        if version >= 0:
            shown = {d: list(found) for d, found in self.now.items() if found}
            self.versions.setdefault(version, (shown, dt.datetime.max.replace(tzinfo=dt.UTC)))

    def put(self, release: str, unit: str) -> None:
        m = self.model[unit]
        for date in m.days:
            self.layers[date].append(Layer(release, self.now[date]))
            self.now[date] = m.evidence[date][0]
        m.state, m.undone = UnitState.published, set()
        # All holds of this world come from rollbacks.
        self.held -= set(m.days)
        self.released[release] = (unit, self.world.clock.now())
        self.remember()

    @rule(target=units, days=some_days)
    def open_unit(self, days: list[dt.date]) -> object:
        owners = {d: o for d in days if (o := self.owner(d)) is not None}
        if owners and (len(set(owners.values())) > 1 or len(owners) < len(days)):
            with pytest.raises(ClaimedDaysError):
                self.world.open_unit({"sales": days})
            return multiple()
        unit = self.world.open_unit({"sales": days})
        if owners:
            assert unit.id == next(iter(owners.values()))
        else:
            self.model[unit.id] = ModelUnit(days, set(days))
        return unit.id

    @rule(unit=units, data=st.fixed_dictionaries(dict.fromkeys(DAYS, amounts)), some=some_days)
    def build(self, unit: str, data: Content, some: list[dt.date]) -> None:
        m = self.model[unit]
        days = [d for d in m.days if d in some]
        if m.state is not UnitState.open or not days:
            return
        self.world.build(self.world.ledger.unit(unit), "sales", {d: data[d] for d in days})
        m.evidence.update({d: (data[d], self.now[d]) for d in days})

    @rule(unit=units, data=st.fixed_dictionaries(dict.fromkeys(DAYS, amounts)))
    def build_all(self, unit: str, data: Content) -> None:
        self.build(unit, data, DAYS)

    @rule(target=releases, unit=units)
    def publish(self, unit: str) -> object:
        m = self.model[unit]
        stale = any(d not in m.evidence or m.evidence[d][1] != self.now[d] for d in m.days)
        taken = any(self.owner(d) not in {None, unit} for d in m.claimed)
        if m.state is UnitState.published and m.undone:
            with pytest.raises(UnitError, match="was rolled back since"):
                self.world.publisher().release(unit)
            return multiple()
        if m.state is UnitState.published:
            assert isinstance(self.world.publisher().release(unit), AlreadyReleased)
            return multiple()
        if m.state is UnitState.discarded:
            with pytest.raises(UnitError):
                self.world.publisher().release(unit)
            return multiple()
        if stale or (taken and m.state is UnitState.rolled_back):
            with pytest.raises(EvidenceError if stale else ClaimedDaysError):
                self.world.publisher().release(unit)
            return multiple()
        release = self.world.publisher().release(unit).release
        self.put(release, unit)
        return release

    @rule(target=releases, date=st.sampled_from(DAYS), found=amounts)
    def live_run(self, date: dt.date, found: list[int]) -> object:
        if date in self.held:
            with pytest.raises(HeldDaysError):
                self.world.open_unit({"sales": [date]}, live=True, late_data=LateData.publish)
            return multiple()
        claimed = set() if self.owner(date) else {date}
        unit = self.world.open_unit({"sales": [date]}, live=True, late_data=LateData.publish)
        self.model[unit.id] = ModelUnit([date], claimed, evidence={date: (found, self.now[date])})
        self.world.build(unit, "sales", {date: found})
        release = self.world.publisher().release(unit.id).release
        self.put(release, unit.id)
        return release

    @rule(release=releases, some=some_days)
    def roll_back_some(self, release: str, some: list[dt.date]) -> None:
        unit, at = self.released[release]
        m = self.model[unit]
        days = [d for d in m.days if d in some]
        if not days:
            return
        back = [d for d in days if self.layers[d] and self.layers[d][-1].release == release]
        back = [d for d in back if not self.layers[d][-1].touched]
        if not back or self.world.clock.now() >= at + KEEP:
            with pytest.raises(RollbackError):
                self.world.rollback().execute(release, "no", days=frozenset(days))
            return
        done = self.world.rollback().execute(release, "no", days=frozenset(days))
        assert list(done.days) == back
        for d in back:
            self.now[d] = self.layers[d].pop().before
        self.held |= set(back)
        m.undone |= set(back)
        newest = [r for r, (u, _) in self.released.items() if u == unit][-1]
        if release == newest and m.undone >= set(m.days):
            m.state = UnitState.rolled_back
        self.remember()

    @rule(release=releases)
    def roll_back(self, release: str) -> None:
        self.roll_back_some(release, DAYS)

    @rule(unit=consumes(units))
    def discard(self, unit: str) -> None:
        m = self.model[unit]
        if m.state is UnitState.open:
            self.world.ledger.move(unit, {UnitState.open}, UnitState.discarded)
            m.state = UnitState.discarded

    @rule(days=some_days)
    def lift(self, days: list[dt.date]) -> None:
        assert self.world.ledger.lift("sales", days) == len(self.held & set(days))
        self.held -= set(days)

    @rule(date=st.sampled_from(DAYS))
    def foreign_row(self, date: dt.date) -> None:
        if self.world.tables["sales"].exists():
            write_deltalake(self.home, rows_of({date: [99]}), mode="append")
            self.now[date] = sorted([*self.now[date], 99])
            if self.layers[date]:
                self.layers[date][-1].touched = True
            self.remember()

    @rule(days=st.sampled_from([0, 1, 20, 29, 31, 38]))
    def time_passes(self, days: int) -> None:
        # One second more than a round number, so that no moment is exactly on an edge.
        self.world.clock.advance(dt.timedelta(days=days, seconds=1))

    @rule()
    def sweep(self) -> None:
        planned = self.world.sweep().plan()
        assert self.world.sweep().execute() == planned
        now = self.world.clock.now()
        for version, (shown, ended) in self.versions.items():
            if now - ended < WINDOW:
                assert content(self.home, version) == shown
        for release, (_, at) in self.released.items():
            if now < at + KEEP:
                assert self.world.rollback().plan(release).missing == ()
        for unit, m in self.model.items():
            if m.state is UnitState.open:
                blockers = {f.reason for f in self.world.publisher().blockers(unit)}
                assert Blocker.shadow_moved not in blockers

    @invariant()
    def readers_see_the_model(self) -> None:
        if hasattr(self, "world"):
            assert self.world.content() == {d: found for d, found in self.now.items() if found}

    @invariant()
    def units_are_where_the_model_says(self) -> None:
        if hasattr(self, "world"):
            found = {u.id: u.state for u in self.world.ledger.units()}
            assert found == {u: m.state for u, m in self.model.items()}


def test_any_sequence_of_events() -> None:
    run_state_machine_as_test(
        AnySequence,
        settings=settings(
            max_examples=8,
            stateful_step_count=16,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
