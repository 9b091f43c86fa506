"""A group that catches up: `sales` from files, `totals` from it; backfills run when a test says so."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from backfill_assets.control.catch_up import CatchingUp, CaughtUp, Ended
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.days import day_range
from backfill_assets.core.unit import UNIT_TAG, ReleaseMode, Unit
from backfill_assets.dataset.releasing import CatchUp, Live
from backfill_assets.dataset.sources import OnMissing
from backfill_assets_tests.harness.tables import day, loaded
from backfill_assets_tests.unit.evidence.test_late_deliveries import Inbox

GROUP = ("sales", "totals")
FIRST, LAST = day(50), day(58)
"""The nine days that are due at the world's time, from the start of the history on."""
DUE = day_range(FIRST, LAST)


class Backfills:
    """The backfills of units."""

    def __init__(self) -> None:
        self.requests: list[BackfillRequest] = []
        self.at_work: dict[str, str] = {}
        self.over: dict[str, list[Ended]] = {}

    def launch(self, request: BackfillRequest) -> str:
        self.requests.append(request)
        name = f"b{len(self.requests)}"
        assert self.at_work.setdefault(request.tags[UNIT_TAG], name) == name, "two backfills work on one unit"
        return name

    def active(self, unit: str, /) -> tuple[str, ...]:
        return (self.at_work[unit],) if unit in self.at_work else ()

    def ended(self, unit: str, since: dt.datetime, /) -> tuple[Ended, ...]:
        return tuple(reversed([one for one in self.over.get(unit, ()) if one.at >= since]))


class Shop(Inbox):
    """Its days are due and delivered, and nothing is published yet."""

    def __init__(self, folder: Path, asked: CatchUp | None = None, watch_days: int = 1, **contract: object) -> None:
        super().__init__(folder)
        live = Live(catch_up=asked or CatchUp(days_per_run=4), watch_days=watch_days)
        for name in GROUP:
            self.says(name, **({"start": FIRST, "live": live} | contract))
        self.backfills = Backfills()
        self.live: set[dt.date] = set()
        self.built: Counter[dt.date] = Counter()
        self.delivered: dict[dt.date, int] = {}
        for date in DUE:
            self.brings(date, date.day)

    @property
    def catching_up(self) -> CatchingUp:
        return CatchingUp(self.warehouse, self.world.publisher(), lambda: self.live, self.backfills)

    @property
    def live_group(self) -> tuple[str, ...]:
        """What live runs and the catch-up build: without a draft."""
        (group,) = self.catching_up.groups
        return group

    def live_targets(self, date: dt.date) -> dict[str, list[dt.date]]:
        """What a live run of a day builds."""
        return {name: [date] for name in self.live_group if self.loaded[name].dataset.from_start([date])}

    def step(self) -> str:
        return self.catching_up.step(self.live_group)

    def state(self) -> CaughtUp:
        return self.catching_up.state(self.live_group)

    def brings(self, date: dt.date, amount: int) -> None:
        """Deliver a file that makes the day have one row of this amount."""
        self.deliver(date, f"id\n{amount}\n")
        self.delivered[date] = amount

    def corrects_its_code(self) -> None:
        """The models are other ones from now on."""
        for name in GROUP:
            self.loaded[name] = loaded(self.world.datasets[name], self.folder, "beef")

    def build(self, unit: Unit, days: Iterable[dt.date], failing: Collection[dt.date] = ()) -> None:
        """What runs do: land what is there, then build what is not current, upstream first; totals of failed days are not built."""
        self.land(*days)
        for name in self.catching_up.catalog.upstream_first(unit.targets):
            due = {one.day for one in self.world.publisher().readiness.blockers(unit, name, unit.targets[name])}
            for d in self.loaded[name].dataset.from_start(days):
                if d in due and (name == "sales" or (d not in failing and self._has_what_it_looks_back_at(unit, d))):
                    self.built[d] += name == "sales"
                    self.world.build(unit, name, {d: [self.delivered[d]]}, passed=d not in failing)

    def _has_what_it_looks_back_at(self, unit: Unit, date: dt.date) -> bool:
        """Whether the sales before a day have passed in the unit, or are published if it does not have them."""
        totals = self.loaded["totals"].dataset
        back = totals.upstream["sales"].on_missing is OnMissing.fail
        days = totals.upstream_days("sales", (date,)) if back else (date,)
        evidence, shown = self.world.ledger.evidence(unit.id), self.world.content("sales")
        own = unit.targets.get("sales", ())
        return all(
            evidence["sales", d].passed if ("sales", d) in evidence else d not in own and d in shown for d in days
        )

    def pass_time(self, **by: float) -> None:
        self.world.clock.advance(dt.timedelta(**by))

    @property
    def newest(self) -> Unit:
        """The unit of the newest backfill."""
        return self.world.ledger.unit(self.backfills.requests[-1].tags[UNIT_TAG])

    def run(self, *, failing: Collection[dt.date] = (), but: Collection[dt.date] = ()) -> None:
        """Run the newest backfill to its end; some days fail their checks, others end without a verdict."""
        unit = self.newest
        self.build(unit, [d for d in self.backfills.requests[-1].days if d not in but], failing)
        self.pass_time(minutes=10)
        publisher = self.world.publisher()
        if unit.mode is ReleaseMode.auto and not publisher.blockers(unit.id):
            publisher.release(unit.id)
        self.end(unit)

    def end(self, unit: Unit, *, cancelled: bool = False) -> None:
        """End the unit's backfill."""
        del self.backfills.at_work[unit.id]
        self.backfills.over.setdefault(unit.id, []).append(Ended(self.world.clock.now(), cancelled))

    def catch_up(self) -> list[tuple[dt.date, ...]]:
        """Take steps, and run what they launch, until nothing is launched any more; returns the days of each backfill."""
        before = len(self.backfills.requests)
        for _ in range(100):
            if not self.step():
                return [request.days for request in self.backfills.requests[before:]]
            if self.backfills.at_work:
                self.run()
        raise AssertionError("it launches backfills without end")

    def catch_up_but(self, unit: str) -> None:
        """The same, while somebody else's backfill works on this unit."""
        while self.step():
            if self.backfills.at_work.keys() - {unit}:
                self.run()

    def build_next(self) -> None:
        """Launch the next backfill, and run it."""
        assert self.step().startswith("launched")
        self.run()

    def published(self, name: str = "totals") -> list[dt.date]:
        return sorted(self.world.content(name))
