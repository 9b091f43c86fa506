"""For any order of catch-up, live runs, drafts, failures, late files and rollbacks: readers see one pass over everything."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

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

from backfill_assets.core.errors import ClaimedDaysError, HeldDaysError, RollbackError
from backfill_assets.core.release import ReleaseKind
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.releasing import CatchUp, CatchUpOrder, DatasetState
from backfill_assets.dataset.sources import Upstream
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.unit.control.catching import DUE, GROUP, Shop

pytestmark = pytest.mark.slow

DAYS = DUE[:5]
MOST = 3
some_day = st.sampled_from(DAYS)
some_days = st.sets(some_day, max_size=2)


class AnyOrder(RuleBasedStateMachine):
    """A group with a history of five days that catches up, beside everything else that happens to it.

    `totals` may begin later, and may be a draft at first.
    """

    @initialize(
        order=st.sampled_from(CatchUpOrder),
        watched=st.sampled_from([1, 30]),
        back=st.integers(0, 2),
        later=st.sampled_from([0, 0, 1, 3]),
        draft=st.booleans(),
        heals_by_files=st.booleans(),
    )
    def begin(
        self, order: CatchUpOrder, watched: int, back: int, later: int, *, draft: bool, heals_by_files: bool
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="any_order_"))
        self.shop = Shop(self.folder, CatchUp(days_per_run=MOST, order=order), watched, end=DAYS[-1])
        if back and order is CatchUpOrder.oldest:
            self.shop.says("totals", upstream={"sales": Upstream(lookback_days=back)})
        self.begins_later(DAYS[later])
        if draft:
            self.shop.says("totals", state=DatasetState.draft)
        self.ledger, self.asked = self.shop.world.ledger, set[str]()
        self.heals_by_files = heals_by_files

    def teardown(self) -> None:
        if hasattr(self, "shop"):
            try:
                self.settle()
            finally:
                self.shop.world.close()
                shutil.rmtree(self.folder, ignore_errors=True)

    def begins_later(self, start: dt.date) -> None:
        datasets = self.shop.world.datasets
        datasets["totals"] = datasets["totals"].linked({"sales": DAYS[0]})
        self.shop.says("totals", start=start)
        self.totals_days = DAYS[DAYS.index(start) :]

    @property
    def is_draft(self) -> bool:
        return self.shop.loaded["totals"].dataset.is_draft

    @precondition(lambda self: self.is_draft)
    @rule(dates=some_days)
    def draft_is_built_and_released(self, dates: Collection[dt.date]) -> None:
        """A person builds the draft from what is published, and publishes it."""
        days = sorted(dates & self.shop.world.content("sales").keys() & set(self.totals_days))
        with suppress(ClaimedDaysError):
            if days:
                unit = self.shop.world.open_unit({"totals": days})
                self.shop.build(unit, days)
                self.released(unit)

    @precondition(lambda self: self.is_draft)
    @rule()
    def draft_becomes_live(self) -> None:
        self.shop.says("totals", state=DatasetState.live)
        # What docs/new-tables.md asks for: a live run of both does not continue one that failed to correct a day of `sales` alone.
        for unit in self.ledger.units(states={UnitState.open}):
            if unit.live and {day for _, day in unit.days} <= self.shop.world.content("sales").keys():
                self.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)

    @property
    def at_work(self) -> bool:
        return bool(self.shop.backfills.at_work)

    @rule(minutes=st.sampled_from([1, 6, 60, 24 * 60]))
    def look(self, minutes: int) -> None:
        """The sensor looks, some time after the last event."""
        self.shop.pass_time(minutes=minutes)
        asked = len(self.shop.backfills.requests)
        before = set(self.published())
        self.shop.step()
        for request in self.shop.backfills.requests[asked:]:
            assert len(request.days) <= MOST
            assert not before & set(request.days), "a day was launched that readers see already"

    @precondition(lambda self: self.at_work)
    @rule(failing=some_days, but=some_days)
    def run(self, failing: Collection[dt.date], but: Collection[dt.date]) -> None:
        self.shop.run(failing=failing, but=but)

    @precondition(lambda self: self.at_work)
    @rule()
    def cancel(self) -> None:
        unit = self.shop.newest
        self.shop.end(unit, cancelled=True)
        # What `backfill status` tells the user to do.
        self.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)

    @rule(date=some_day, passes=st.booleans())
    def live_run(self, date: dt.date, *, passes: bool) -> None:
        try:
            unit = self.shop.world.open_unit(self.shop.live_targets(date), live=True)
        except (ClaimedDaysError, HeldDaysError):
            return
        self.shop.build(unit, [date], () if passes else {date})
        self.released(unit)

    @rule(crashes=st.booleans())
    def late_deliveries_look(self, *, crashes: bool) -> None:
        """What the other sensor does: a live run for each state of the deliveries."""
        for late in self.shop.late.of("sales"):
            if not late.waits_for and late.deliveries not in self.asked:
                self.asked.add(late.deliveries)
                if crashes:
                    self.shop.world.open_unit(self.shop.live_targets(late.day), live=True)
                else:
                    self.live_run(late.day, passes=True)

    @rule(date=some_day, amount=st.integers(100, 999))
    def another_file_comes(self, date: dt.date, amount: int) -> None:
        self.shop.brings(date, amount)

    @rule(number=st.integers(0, 2))
    def roll_back(self, number: int) -> None:
        """Take back one of the newest publications of the group, upstream last."""
        records = [r for r in self.ledger.releases("totals") if r.manifest.kind is ReleaseKind.publish][number:]
        for name in ("totals", "sales"):
            for one in self.ledger.releases(name, records[0].manifest.unit) if records else ():
                with suppress(RollbackError):
                    self.shop.world.rollback().execute(one.manifest.release, "wrong after all")

    @rule()
    def lift_all_holds(self) -> None:
        for name in GROUP:
            self.ledger.lift(name, DAYS)

    def released(self, unit: Unit) -> None:
        if not self.shop.world.publisher().blockers(unit.id):
            self.shop.world.publisher().release(unit.id)

    def published(self) -> dict[dt.date, list[int]]:
        return self.shop.world.content("totals")

    def heal(self) -> None:
        if not self.heals_by_files:
            self.shop.corrects_its_code()
            return
        for date in DAYS:
            if date not in (self.published() if date in self.totals_days else self.shop.world.content("sales")):
                self.shop.brings(date, self.shop.delivered[date] + 1_000)

    def settle(self) -> None:
        """The model or the files are corrected, holds are lifted, late files are run: what the catch-up waits for has moved."""
        if self.at_work:
            self.shop.run()
        if self.is_draft:
            self.draft_becomes_live()
        self.heal()
        want = {date: [self.shop.delivered[date]] for date in DAYS}
        want_totals = {date: want[date] for date in self.totals_days}
        for _ in range(40):
            self.lift_all_holds()
            for date, amounts in self.shop.world.content("sales").items():
                if amounts != want[date] or (date in want_totals and self.published().get(date) != amounts):
                    self.live_run(date, passes=True)
            self.shop.pass_time(hours=25)
            launched = self.shop.step()
            if self.at_work:
                self.shop.run()
            if not launched and (self.shop.world.content("sales"), self.published()) == (want, want_totals):
                break
        assert (self.shop.world.content("sales"), self.published()) == (want, want_totals)
        state = self.shop.state()
        assert (state.to, state.ready, state.waiting) == (DAYS[-1], (), {})

    @invariant()
    def one_unit_fills_gaps_at_a_time(self) -> None:
        if hasattr(self, "shop"):
            opened = self.ledger.units(states={UnitState.open})
            assert sum(unit.catches_up for unit in opened) <= 1


def test_whatever_happens_readers_end_up_with_one_pass_over_everything() -> None:
    run_state_machine_as_test(
        AnyOrder,
        settings=settings(
            max_examples=examples(12), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
