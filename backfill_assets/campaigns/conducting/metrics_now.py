"""The metrics of datasets and campaigns as they are now, from the ledger and the tables' logs alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from backfill_assets.campaign.state import Action, Campaign, state_of
from backfill_assets.control.approve import approved
from backfill_assets.control.conductor import STEPS
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.ports import Clock
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import Attempt, DayFindings, Unit, UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.domain.metrics import (
    CampaignMetrics,
    DatasetMetrics,
    Metrics,
    Published,
    campaign_metrics,
    dataset_metrics,
    days_done,
)
from backfill_assets.evidence.contents import effective
from backfill_assets.ledger.ledger import Ledger


@dataclass(frozen=True)
class MetricsNow:
    """Takes the metrics; reads only, and no file of anybody's data.

    Whether something behind a campaign's days has moved since they passed is not looked at: `backfill status` does.
    """

    ledger: Ledger
    datasets: Mapping[str, Dataset]
    tables: Mapping[str, PublishedTable]
    clock: Clock

    def all(self) -> Metrics:
        """The metrics of every dataset and every campaign."""
        attempts = self.ledger.attempts()
        return Metrics(
            self.clock.now(),
            tuple(self._dataset(name, attempts) for name in sorted(self.datasets)),
            tuple(self._campaign(campaign, attempts) for campaign in self.ledger.campaigns()),
        )

    def of(self, dataset: str, days: Collection[dt.date] | None = None) -> DatasetMetrics:
        """The metrics of one dataset; what was checked, its rows, duplicate keys and mismatches, of these days alone if named."""
        return self._dataset(dataset, self.ledger.attempts(), days)

    def _dataset(
        self, name: str, attempts: Sequence[Attempt], looked_at: Collection[dt.date] | None = None
    ) -> DatasetMetrics:
        records, table = self.ledger.releases(name, states={ReleaseState.finalized}), self.tables[name]
        standing = effective(records)
        active = table.active() if table.exists() else {}
        checked = standing.keys() if looked_at is None else standing.keys() & set(looked_at)
        published = Published(
            dataset=self.datasets[name],
            days={day for day, files in active.items() if files} | standing.keys(),
            standing=standing,
            findings=self.ledger.findings(name, {day: standing[day].unit for day in checked}),
            records=records,
            units=self.ledger.units(name),
            attempts=attempts,
        )
        return dataset_metrics(published, self.clock.now())

    def _campaign(self, campaign: Campaign, attempts: Sequence[Attempt]) -> CampaignMetrics:
        unit = self.ledger.unit(campaign.unit) if campaign.unit else None
        journal, own = self.ledger.journal(campaign.id), [a for a in attempts if unit and a.unit == unit.id]
        days = [(name, day) for name, found in campaign.plan.targets.items() for day in found]
        published = unit is not None and unit.state is UnitState.published
        done = len(days) if published else days_done(days, self._findings(campaign, unit))
        steps = [entry.action for entry in journal if entry.action in STEPS]
        stale = steps[-1:] == [Action.stale]
        complete = done == len(days) and not stale
        # Only here is evidence read whole: an approval is bound to its hash.
        seen = complete and unit is not None and unit.state is UnitState.open
        waiting = approved(self.ledger, unit, self.ledger.evidence(unit.id)).unapproved if seen and unit else ()
        state = state_of(campaign, unit, complete=complete, approved=not waiting, stale=stale)
        return campaign_metrics(campaign, state, done, own, journal)

    def _findings(self, campaign: Campaign, unit: Unit | None) -> Mapping[DatasetDay, DayFindings]:
        if unit is None:
            return {}
        return {
            (name, day): found
            for name, days in campaign.plan.targets.items()
            for day, found in self.ledger.findings(name, dict.fromkeys(days, unit.id)).items()
        }
