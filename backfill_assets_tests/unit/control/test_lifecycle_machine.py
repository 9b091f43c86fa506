"""For any order of events of a campaign: readers see the model, no state is skipped, no current day is built again."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from backfill_assets.campaign.gate import Halts, Waits
from backfill_assets.campaign.state import WORKING, Action, CampaignState, JournalEntry, Knobs, Phase, state_of
from backfill_assets.control.conductor import STEPS, BackfillRequest, Batch
from backfill_assets.core.errors import BackfillError, HeldDaysError, RollbackError
from backfill_assets.core.unit import Attempt, LateData, Unit, UnitState
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.release.publish import AlreadyReleased
from backfill_assets_tests.harness.actors import Scheduler
from backfill_assets_tests.harness.between import between
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.harness.specifications import CANARIES, NAME, SIX_DAYS, with_canaries
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.control.lifecycle_model import EDGES, READY, Built, Model, world_may_move

pytestmark = pytest.mark.slow

EVERY = (day(0), *SIX_DAYS)
LEASE, TICK = dt.timedelta(seconds=90), dt.timedelta(minutes=1)
OPEN_PHASES = WORKING | {Phase.paused, Phase.stopped}
some_day = st.sampled_from(SIX_DAYS)


class Asked(Scheduler):
    """A scheduler that has every request checked before it accepts it."""

    def __init__(self, look: Callable[[BackfillRequest], None]) -> None:
        super().__init__()
        self._look = look

    def launch(self, request: BackfillRequest) -> str:
        self._look(request)
        return super().launch(request)


class Lifecycle(RuleBasedStateMachine):
    """One campaign, its operators, its runs, and a live pipeline on the same table."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lifecycle_"))
        self.world = World(
            self.folder, scheduler=Asked(self.asked), asked=with_canaries({"required": True, "by": ["anna"]})
        )
        world = self.world
        world.ledger = between(
            world.ledger,
            ("change_campaign", "note", "move", "finalize", "finalize_publication"),
            after=lambda _: self.arrive(),
        )
        self.model = Model(EVERY)
        self.released: dict[str, tuple[dt.date, ...]] = {}
        self.own: list[str] = []
        self.undone: set[dt.date] = set()
        self.state = CampaignState.planned
        self.world.basis.changed.update({("sales", d): str(n) for d, n in self.model.delivered.items()})
        self.world.plan()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def unit(self) -> Unit | None:
        unit = self.world.campaign().unit
        return self.world.ledger.unit(unit) if unit else None

    def is_open(self) -> bool:
        return self.unit is not None and self.unit.state is UnitState.open

    def moved_code(self) -> bool:
        return self.world.campaign().plan.datasets[0].code_version != self.model.code

    def arrive(self, *, by_the_world: bool = False) -> None:
        """Compare the state of the campaign with the model, and check that the transition is allowed."""
        model = self.model
        steps = [action for action in self.world.actions() if action in STEPS]
        stale = not model.complete and steps[-1:] in ([Action.validated], [Action.stale])
        now = state_of(self.world.campaign(), self.unit, complete=model.complete, approved=model.approved, stale=stale)
        if now is not self.state:
            allowed = world_may_move(self.state, now) if by_the_world else now in EDGES[self.state]
            assert allowed, f"from {self.state} to {now}"
        self.state = now

    def asked(self, request: BackfillRequest) -> None:
        """A backfill is launched: for all missing days and nothing else, and never beside another one."""
        campaign = self.world.campaign()
        assert campaign.phase in WORKING
        assert request.days == self.model.missing(campaign.phase.value) != ()
        assert (self.world.scheduler.at_work, self.world.scheduler.live, self.moved_code()) == ([], (), False)

    def attempt(self, allowed: bool, act: Callable[[], Any]) -> Any:  # noqa: FBT001  # reads as: attempt it if allowed
        """Do it; if it is not allowed, check that it is refused and changes nothing."""
        if allowed:
            return act()
        before = (self.world.campaign(), self.world.actions(), self.world.tables["sales"].version())
        with pytest.raises(BackfillError):
            act()
        assert (self.world.campaign(), self.world.actions(), self.world.tables["sales"].version()) == before
        return None

    @rule()
    def plan(self) -> None:
        self.attempt(self.world.phase() is Phase.planned, self.world.plan)

    @rule(canary_only=st.booleans())
    def launch(self, canary_only: bool) -> None:  # noqa: FBT001
        allowed = self.world.phase() is Phase.planned and not self.moved_code()
        self.attempt(allowed, lambda: self.world.control.launch(NAME, canary_only=canary_only))

    @rule()
    def conduct(self) -> None:
        before = self.world.phase()
        self.world.conduct()
        if before is Phase.canary and self.world.phase() in {Phase.running, Phase.paused}:
            assert all(self.model.passed(d) for d in CANARIES)

    @rule()
    def pause(self) -> None:
        allowed = self.world.phase() in WORKING and self.is_open()
        self.attempt(allowed, lambda: self.world.control.pause(NAME, "month end"))

    @rule()
    def stop(self) -> None:
        allowed = self.world.phase() in WORKING | {Phase.paused} and self.is_open()
        self.attempt(allowed, lambda: self.world.control.stop(NAME, "wrong"))

    @rule()
    def resume(self) -> None:
        at_work = self.world.phase() in WORKING and self.world.scheduler.at_work
        allowed = self.world.phase() in OPEN_PHASES and self.is_open() and not at_work
        self.attempt(allowed, lambda: self.world.control.resume(NAME))
        assert not allowed or not self.moved_code()

    @rule(knobs=st.builds(Knobs, st.integers(1, 2), st.integers(1, 4)))
    def set_knobs(self, knobs: Knobs) -> None:
        allowed = self.world.phase() is Phase.planned or self.is_open()
        self.attempt(allowed, lambda: self.world.control.set(NAME, "", **vars(knobs)))

    @rule(date=some_day, delivered=st.integers(1, 2))
    def deliver_again(self, date: dt.date, delivered: int) -> None:
        self.world.basis.changed["sales", date] = str(delivered)
        self.model.delivered[date] = delivered
        self.arrive(by_the_world=True)

    @rule(code=st.sampled_from(["c0de", "n3w"]))
    def change_the_code(self, code: str) -> None:
        self.world.basis.codes["sales"] = self.model.code = code
        self.arrive(by_the_world=True)

    @rule(busy=st.booleans())
    def live_pipeline(self, busy: bool) -> None:  # noqa: FBT001
        self.world.scheduler.live = ("live",) if busy else ()

    @rule(date=st.sampled_from(EVERY), rows=st.lists(st.integers(1, 2), max_size=2).map(sorted))
    def live_write(self, date: dt.date, rows: list[int]) -> None:
        world = self.world
        if date in self.model.held:
            with pytest.raises(HeldDaysError):
                world.open_unit({"sales": [date]}, live=True, late_data=LateData.publish)
            return
        unit = world.open_unit({"sales": [date]}, live=True, late_data=LateData.publish)
        world.build(unit, "sales", {date: rows})
        release = world.campaign_publisher().release(unit.id).release
        self.released[release] = (date,)
        self.model.release(release, {date: rows})
        self.arrive(by_the_world=True)

    @precondition(lambda self: self.world.scheduler.at_work)
    @rule(failing=st.none() | some_day, killed_after=st.none() | st.integers(0, 2))
    def run(self, failing: dt.date | None = None, killed_after: int | None = None) -> None:
        if self.work({failing}, killed_after):
            self.world.scheduler.at_work = []

    @precondition(lambda self: self.world.scheduler.at_work)
    @rule()
    def run_well(self) -> None:
        self.run()

    @precondition(lambda self: self.world.scheduler.at_work)
    @rule()
    def run_fails_without_a_batch(self) -> None:
        self.world.scheduler.at_work = []

    def work(self, failing: Collection[dt.date | None], killed_after: int | None) -> bool:
        """The runs of the newest backfill; returns whether they have ended (Dagster starts a killed one again)."""
        world, unit = self.world, self.unit
        assert unit is not None
        days = list(world.scheduler.requests[-1].days) if unit.state is UnitState.open else []
        basis: Any = world.basis
        pipeline = Pipeline(world.warehouse(), basis)
        done = 0
        while days:
            size = world.campaign().knobs.partitions_per_batch
            batch, days = tuple(days[:size]), days[size:]
            todo = pipeline.days_to_build(unit, "sales", batch)
            assert todo == tuple(d for d in batch if not self.model.good(d))
            if not todo:
                continue
            answer = world.gatekeeper.begin(NAME, Batch("sales", todo), f"run_{world.scheduler.at_work[-1]}", LEASE)
            if not isinstance(answer, Attempt):
                if isinstance(answer, Halts):
                    world.conductor.halt(NAME, answer.reason, len(world.ledger.journal(NAME)))
                elif isinstance(answer, Waits):
                    world.ledger.note(JournalEntry(NAME, world.clock.now(), "the gate", Action.waits, answer.reason))
                return True
            if done == killed_after:
                return False
            entries = len(world.ledger.journal(NAME))
            self.build(unit, answer, failing)
            done += 1
            if set(todo) & set(failing):
                world.conductor.halt(NAME, "days failed their checks", entries)
                return True
        return True

    def build(self, unit: Unit, attempt: Attempt, failing: Collection[dt.date | None]) -> None:
        model, ledger = self.model, self.world.ledger
        # The checks of a batch pass or fail day by day; here one bad day spoils its batch.
        passed = not set(attempt.days) & set(failing)
        data = {d: model.rows(d) for d in attempt.days}
        self.world.build(unit, "sales", data, passed=passed, attempt=attempt)
        for (_, d), found in ledger.evidence(unit.id, "sales", attempt.days).items():
            assert found.attempt == attempt.number
            model.built[d] = Built(model.code, model.delivered[d], model.shown(d), data[d], passed, found.hash)
        self.arrive()

    @rule(right=st.booleans(), user=st.sampled_from(["anna", "anna", "anna", "carl"]))
    def approve(self, right: bool, user: str) -> None:  # noqa: FBT001
        model, standing = self.model, self.world.standings.of(NAME)
        waits = self.unit is not None and self.unit.state in {UnitState.open, UnitState.rolled_back}
        ready = waits and self.world.phase() in WORKING | {Phase.paused} and model.complete and not model.approved
        named = standing.evidence if right else "0" * 64
        given = self.attempt(
            ready and right and user == "anna", lambda: self.world.approving(user).approve(NAME, named)
        )
        if given is not None:
            assert {d for _, d in given.days} == set(model.unapproved())
            model.approvals |= {(d, model.built[d].hash) for d in model.unapproved()}
            self.arrive()

    @rule()
    def publish(self) -> None:
        model, unit, world = self.model, self.unit, self.world
        publish = world.release("ada").publish
        if unit is not None and unit.state is UnitState.published and not self.undone:
            version = world.tables["sales"].version()
            assert isinstance(publish(NAME).outcome, AlreadyReleased)
            assert world.tables["sales"].version() == version
            return
        waits = unit is not None and unit.state in {UnitState.open, UnitState.rolled_back}
        allowed = waits and self.world.phase() in WORKING | {Phase.paused} and model.approved
        publication = self.attempt(allowed, lambda: publish(NAME))
        if publication is None:
            return
        release = publication.outcome.release
        swaps = world.ledger.release(release).manifest.days
        assert {(s.day, s.evidence) for s in swaps} == {(d, model.built[d].hash) for d in SIX_DAYS} <= model.approvals
        model.release(release, {d: model.built[d].rows for d in SIX_DAYS})
        self.released[release] = SIX_DAYS
        self.own.append(release)
        self.undone = set()

    @precondition(lambda self: self.state in {*READY, CampaignState.rolled_back})
    @rule()
    def approve_and_publish(self) -> None:
        self.approve(right=True, user="anna")
        self.publish()

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        release = data.draw(st.sampled_from(list(reversed(self.released))))
        undo = self.world.campaign_rollback().execute
        if not self.model.top_of(release, self.released[release]):
            with pytest.raises(RollbackError):
                undo(release, "odd")
            return
        done = undo(release, "odd")
        back = self.model.take_back(release, self.released[release])
        assert list(done.days) == back
        if release in self.own:
            self.model.approvals = {(d, seen) for d, seen in self.model.approvals if d not in back}
        if release in self.own[-1:]:
            self.undone |= set(back)
        self.arrive(by_the_world=release not in self.own)

    @precondition(lambda self: self.own)
    @rule()
    def roll_back_the_campaign(self) -> None:
        if self.model.top_of(self.own[-1], SIX_DAYS) == list(SIX_DAYS):
            self.roll_back_all()

    def roll_back_all(self) -> None:
        done = self.world.campaign_rollback().execute(self.own[-1], "odd")
        assert done.days == SIX_DAYS == tuple(self.model.take_back(self.own[-1], SIX_DAYS))
        self.model.approvals, self.undone = set(), set(SIX_DAYS)
        self.arrive()

    @rule()
    def lift_holds(self) -> None:
        assert self.world.ledger.lift("sales", EVERY) == len(self.model.held)
        self.model.held = set()

    @rule()
    def sign_off(self) -> None:
        over = {Phase.planned, Phase.closed}
        allowed = self.unit is not None and self.unit.state is UnitState.published and self.world.phase() not in over
        self.attempt(allowed, lambda: self.world.sign_off().sign_off(NAME))

    @precondition(lambda self: self.world.phase() is Phase.planned or self.is_open())
    @rule()
    def go_on_to_the_end(self) -> None:
        """After any events, the commands that the messages name finish the campaign."""
        self.world.scheduler.live = ()
        self.world.clock.advance(LEASE)
        if self.world.phase() is Phase.planned:
            self.world.plan()
            self.world.control.launch(NAME)
        for _ in range(8):
            self.world.conduct()
            if self.world.scheduler.at_work:
                self.run()
            elif self.state not in READY:
                self.world.control.resume(NAME)
        assert self.state in READY

    @invariant()
    def readers_see_the_model(self) -> None:
        if hasattr(self, "world"):
            assert self.world.content() == self.model.content()

    @invariant()
    def the_campaign_stands_where_the_model_says(self) -> None:
        if not hasattr(self, "world"):
            return
        standing = self.world.standings.of(NAME)
        assert standing.state is self.state
        if self.unit is not None and self.unit.state in {UnitState.open, UnitState.rolled_back}:
            assert {d for _, d in standing.days} == set(self.model.missing(""))
        claims = dict.fromkeys(SIX_DAYS, self.unit.id) if self.unit is not None and self.is_open() else {}
        assert self.world.ledger.claims("sales", EVERY) == claims
        self.world.clock.advance(TICK)


def test_a_campaign_in_any_order() -> None:
    assert set(CANARIES) < set(SIX_DAYS)
    run_state_machine_as_test(
        Lifecycle,
        settings=settings(
            max_examples=examples(12), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
