"""A campaign in plain Python: what readers must see, which evidence is passing and current, and how its state may move."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from backfill_assets.campaign.state import CampaignState
from backfill_assets_tests.harness.specifications import CANARIES, SIX_DAYS

Rows = Sequence[int]
S = CampaignState

EDGES: dict[CampaignState, set[CampaignState]] = {
    S.planned: {S.canary},
    S.canary: {S.running, S.paused, S.stopped, S.validated},
    S.running: {S.canary, S.paused, S.stopped, S.validated, S.stale},
    S.paused: {S.canary, S.running, S.stopped},
    # It may have no missing days left when it is resumed.
    S.stopped: {S.canary, S.running, S.validated, S.approved},
    S.stale: {S.canary, S.running, S.paused, S.stopped},
    S.validated: {S.approved, S.stopped},
    S.approved: {S.published, S.stopped},
    S.published: {S.rolled_back, S.closed},
    S.closed: {S.rolled_back},
    S.rolled_back: {S.approved},
}
"""The phases into which a command, the conductor or a batch may move a campaign."""

AT_REST = {S.canary, S.running, S.paused, S.stale}
READY = {S.validated, S.approved}


def world_may_move(before: CampaignState, after: CampaignState) -> bool:
    """Whether days that became stale, or current again, can explain it without any act on the campaign."""
    return (before in READY and after in AT_REST) or (before in AT_REST and after in READY)


@dataclass(frozen=True)
class Shown:
    """What readers see of a day, and which release brought it."""

    rows: tuple[int, ...] = ()
    release: str = ""


@dataclass(frozen=True)
class Built:
    """The newest evidence of a day: what it was built from and over, and whether it passed."""

    code: str
    delivered: int
    over: Shown
    rows: tuple[int, ...]
    passed: bool
    hash: str


@dataclass
class Model:
    """One table to which campaign and live pipeline write, day by day."""

    every: tuple[dt.date, ...]
    code: str = "c0de"
    delivered: dict[dt.date, int] = field(default_factory=lambda: dict.fromkeys(SIX_DAYS, 1))
    built: dict[dt.date, Built] = field(default_factory=dict)
    approvals: set[tuple[dt.date, str]] = field(default_factory=set)
    held: set[dt.date] = field(default_factory=set)
    stacks: dict[dt.date, list[Shown]] = field(default_factory=dict)
    """The releases of each day, the newest last; without those that were rolled back."""

    def rows(self, day: dt.date) -> tuple[int, ...]:
        """What a build of a day gives now: the fix counts every sale twice."""
        return (self.delivered[day],) * (1 if self.code == "c0de" else 2)

    def shown(self, day: dt.date) -> Shown:
        stack = self.stacks.get(day, [])
        return stack[-1] if stack else Shown()

    def content(self) -> dict[dt.date, list[int]]:
        return {day: list(rows) for day in self.every if (rows := self.shown(day).rows)}

    def good(self, day: dt.date) -> bool:
        """Whether a day's evidence allows a release; files that were written again with the same rows change nothing."""
        built = self.built.get(day)
        if built is None or not built.passed or (built.code, built.delivered) != (self.code, self.delivered[day]):
            return False
        return built.over.rows == self.shown(day).rows

    def passed(self, day: dt.date) -> bool:
        """Whether a day has passed with the present code; its inputs may have moved since."""
        built = self.built.get(day)
        return built is not None and built.passed and built.code == self.code

    def missing(self, phase: str) -> tuple[dt.date, ...]:
        days = sorted(CANARIES) if phase == "canary" else SIX_DAYS
        return tuple(day for day in days if not self.good(day))

    def unapproved(self) -> tuple[dt.date, ...]:
        return tuple(day for day in SIX_DAYS if (day, self.built[day].hash) not in self.approvals)

    @property
    def complete(self) -> bool:
        return not self.missing("")

    @property
    def approved(self) -> bool:
        return self.complete and not self.unapproved()

    def release(self, name: str, data: dict[dt.date, Rows]) -> None:
        self.held -= set(data)
        for day, rows in data.items():
            self.stacks.setdefault(day, []).append(Shown(tuple(rows), name))

    def top_of(self, release: str, days: Collection[dt.date]) -> list[dt.date]:
        return [day for day in days if self.shown(day).release == release]

    def take_back(self, release: str, days: Collection[dt.date]) -> list[dt.date]:
        back = self.top_of(release, days)
        for day in back:
            self.stacks[day].pop()
        self.held |= set(back)
        return back
