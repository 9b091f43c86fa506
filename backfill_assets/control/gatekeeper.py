"""The admission gate with what it looks at: the ledger, the clock, live runs, the code that is loaded, bytes to read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from backfill_assets.campaign.gate import Admitted, Decision, Traffic, admit
from backfill_assets.campaign.load import drift_of
from backfill_assets.campaign.state import Action, Campaign
from backfill_assets.control.figures import Workload
from backfill_assets.core.ports import Clock
from backfill_assets.core.unit import LOCK_WAIT, Attempt, AttemptState, Work
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.ledger.ledger import Ledger


class LiveRuns(Protocol):
    """The live pipeline, seen from a backfill that yields to it."""

    def active(self) -> tuple[str, ...]:
        """Ids of the live runs that are at work or in the queue."""
        ...


REFUSED: Final = "refused"
"""Key of the detail of an entry `waits`: the batch that a run was told to halt the campaign over."""
_BEGINNINGS = frozenset({Action.launched, Action.resumed})


@dataclass(frozen=True)
class Batch:
    """Days of one layer of a dataset that are worked on in one go."""

    dataset: str
    days: tuple[dt.date, ...]
    layer: str = "shadow"

    def to_plain(self) -> dict[str, object]:
        """The same as plain JSON values, for a journal."""
        return {"dataset": self.dataset, "layer": self.layer, "days": [day.isoformat() for day in self.days]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Batch:
        """The batch that `to_plain` was made of."""
        days = tuple(dt.date.fromisoformat(day) for day in plain["days"])
        return cls(plain["dataset"], days, plain["layer"])


@dataclass(frozen=True)
class Gatekeeper:
    """Asks the gate with what is true now; knobs, phase and budget are read anew each time."""

    ledger: Ledger
    catalog: Catalog
    clock: Clock
    live: LiveRuns
    workload: Workload

    def ask(self, campaign_id: str, batch: Batch | None = None) -> Decision:
        """Whether the campaign may start a batch (or any, if none is named) now.

        Raises:
            CampaignError: there is no such campaign.
        """
        campaign = self.ledger.campaign(campaign_id)
        return admit(campaign, self.traffic(campaign, batch))

    def begin(self, campaign_id: str, batch: Batch, run: str, lease: dt.timedelta) -> Attempt | Decision:
        """Start a batch if the gate is open; of two that ask at once the second sees the first at work.

        What it will read is charged at once, so that it counts even if its worker dies.

        Raises:
            CampaignError: there is no such campaign.
            UnitError: the days are not the campaign's.
        """
        with self.ledger.lock(f"gate:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            decision = admit(campaign, self.traffic(campaign, batch))
            if not isinstance(decision, Admitted):
                return decision
            attempt = self.ledger.start_attempt(campaign.unit, batch.dataset, batch.days, run, lease)
            work = Work(bytes_read=self._bytes(batch), layer=batch.layer)
            self.ledger.charge(attempt.number, work)
            return replace(attempt, **vars(work))

    def traffic(self, campaign: Campaign, batch: Batch | None = None) -> Traffic:
        """What goes on around the campaign now."""
        now = self.clock.now()
        attempts = self.ledger.attempts(campaign.unit) if campaign.unit else ()
        begun = [entry.at for entry in self.ledger.journal(campaign.id) if entry.action in _BEGINNINGS]
        zone = campaign.specification.zone
        midnight = dt.datetime.combine(now.astimezone(zone).date(), dt.time(), zone)
        return Traffic(
            now=now,
            last_batch=max([campaign.created_at, *begun, *(a.started_at for a in attempts)]),
            live_runs=self.live.active(),
            in_flight=sum(a.state is AttemptState.running and a.lease_until > now for a in attempts),
            bytes_today=sum(a.bytes_read for a in attempts if a.started_at >= midnight),
            next_bytes=self._bytes(batch) if batch else 0,
            spent=sum((a.spent(now) for a in attempts), dt.timedelta(0)),
            drift=drift_of(campaign, self.catalog.code),
        )

    def _bytes(self, batch: Batch) -> int:
        return self.workload.bytes_read(batch.dataset, batch.days, batch.layer)
