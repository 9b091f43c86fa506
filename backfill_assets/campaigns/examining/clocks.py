"""Times from the future: what a clock that was ahead has left in the ledger, and who gave it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.release import ReleaseState, is_ahead
from backfill_assets.core.unit import AttemptState, ReleaseRecord, UnitState
from backfill_assets.domain.health import Finding, Gravity
from backfill_assets.ledger.ledger import Ledger

_WRONG: Final = "that clock was ahead, or the one of this host is behind"
_RIGHT: Final = "set both right"


@dataclass(frozen=True)
class _Dated:
    """Something with a time, as people find it, and who gave the time."""

    name: str
    by: str
    at: dt.datetime


@dataclass(frozen=True)
class ClockExam:
    """The times of the ledger at one moment: no order is decided by them, but rollback windows and leases are."""

    ledger: Ledger
    datasets: Collection[str]
    now: dt.datetime

    def findings(self) -> Iterator[Finding]:
        """What lies in the future."""
        for name in self.datasets:
            yield from self._releases(name)
        running = self.ledger.attempts(state=AttemptState.running)
        yield from self._ahead(
            "attempts", (_Dated(f"{a.number} of {a.dataset}", a.worker, a.started_at) for a in running),
            "end their runs if they still show: their leases would last until then",
        )  # fmt: skip
        locks = (_Dated(lock.name, lock.holder, lock.until) for lock in self.ledger.locks())
        yield from self._ahead("locks", locks, "nothing else: whoever needs one takes it over")
        for kind, dated in (("units", self._units()), ("holds", self._holds()), ("journal entries", self._entries())):
            yield from self._ahead(kind, dated, "nothing else: nothing is decided by these times")

    def _releases(self, name: str) -> Iterator[Finding]:
        ahead = [r for r in self.ledger.releases(name) if is_ahead(r.manifest.created_at, self.now)]
        true = [r for r in ahead if r.state is ReleaseState.finalized]
        if lasting := [r for r in true if r.corrected is None]:
            what = f"{self._told(lasting)}: no release after it tells when it was made, so its rollback window does not end"
            yield Finding(
                Gravity.warning, what, f"{_RIGHT}; the next release, of any dataset, is dated right and ends this"
            )
        if ended := [r for r in true if r.corrected is not None]:
            what = f"{self._told(ended)}: counts as made by {ended[-1].since:%Y-%m-%d %H:%M} UTC, when the next release was"
            yield Finding(Gravity.info, what, "nothing: the releases after it are dated right")

    def _told(self, releases: Collection[ReleaseRecord]) -> str:
        oldest = [*releases][-1].manifest
        more = f" and {len(releases) - 1} more" if len(releases) > 1 else ""
        return (
            f"release {oldest.release} of {oldest.dataset}{more} by {oldest.by} is dated {oldest.created_at:%Y-%m-%d %H:%M} UTC, "
            f"in the future: {_WRONG}"
        )

    def _units(self) -> Iterator[_Dated]:
        return (_Dated(u.id, u.by, u.opened_at) for u in self.ledger.units(states={UnitState.open}))

    def _holds(self) -> Iterator[_Dated]:
        for name in self.datasets:
            yield from (_Dated(f"{name} {hold.target[1]}", hold.by, hold.since) for hold in self.ledger.holds(name))

    def _entries(self) -> Iterator[_Dated]:
        for campaign in self.ledger.campaigns():
            journal = self.ledger.journal(campaign.id)
            yield from (_Dated(f"{e.action.value} of {campaign.id}", e.by, e.at) for e in journal)

    def _ahead(self, kind: str, dated: Iterable[_Dated], remedy: str) -> Iterator[Finding]:
        if found := [one for one in dated if is_ahead(one.at, self.now)]:
            first = found[0]
            what = (
                f"{len(found)} {kind} lie in the future, first {first.name} by {first.by} at {first.at:%Y-%m-%d %H:%M} UTC: "
                f"{_WRONG}"
            )
            yield Finding(Gravity.warning, what, f"{_RIGHT}; {remedy}")
