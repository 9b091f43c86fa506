"""Publishing a campaign: what the commits would do, what refuses them, and the release itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from backfill_assets.campaign.state import Campaign, JournalEntry, Phase, require_phase
from backfill_assets.campaigns.conducting.guard import CampaignGuard
from backfill_assets.core.errors import UnitError
from backfill_assets.core.release import DataFile
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.lineage import upstream_first, upstreams_of
from backfill_assets.evidence.readiness import Survey, refusal
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.ledger.open import last_step
from backfill_assets.release.publish import AlreadyReleased, Publisher, Released

_LAUNCHED = frozenset(Phase) - {Phase.planned}


@dataclass(frozen=True)
class DatasetChange:
    """What a release would do to one dataset: files that leave and come, and rows of its days before and after.

    Rows are none where the statistics of a file do not give them.
    """

    dataset: str
    days: tuple[dt.date, ...]
    version: int
    removed: int
    added: int
    rows_before: int | None
    rows_after: int | None


@dataclass(frozen=True)
class ReleasePlan:
    """A release as it would be now, upstream first, and everything that refuses it; nothing means that it would pass."""

    campaign: str
    unit: str
    evidence: str
    changes: tuple[DatasetChange, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True)
class Publication:
    """A campaign that readers see: its release, and who made it, when; `already` if that was somebody else before."""

    outcome: Released | AlreadyReleased
    by: str
    at: dt.datetime

    @property
    def already(self) -> bool:
        """Whether this call has changed nothing."""
        return isinstance(self.outcome, AlreadyReleased)

    def __str__(self) -> str:
        """One line for people."""
        verb = "was published already" if self.already else "is published"
        return f"{self.outcome.unit} {verb} by {self.by} at {self.at:%Y-%m-%d %H:%M:%S} UTC as {self.outcome.release}"


@dataclass(frozen=True)
class CampaignRelease:
    """Publishes campaigns. The publisher's guard is asked by every road; here it may be given a reason besides."""

    ledger: Ledger
    publisher: Publisher
    guard: CampaignGuard

    def plan(self, campaign_id: str, *, outside_window: str = "", evidence_hash: str = "") -> ReleasePlan:
        """What publishing the campaign would do now, and what would refuse it; changes nothing (`--dry-run`).

        Raises:
            CampaignError: there is no such campaign, or it was never launched.
        """
        campaign, unit = self._launched(campaign_id)
        survey = self.publisher.survey(unit.id)
        refusals = [str(r) for r in self.guard.consenting(outside_window).refusals(campaign, survey)]
        if evidence_hash and evidence_hash != survey.hash:
            refusals.insert(0, f"the evidence of campaign {campaign_id} is now {survey.hash}, not {evidence_hash[:16]}")
        if survey.faults:
            refusals.insert(0, refusal(unit, survey.faults, self.publisher.datasets))
        if unit.state in {UnitState.published, UnitState.discarded}:
            refusals.insert(
                0, f"campaign {campaign_id} is {unit.state.value}{_told(last_step(self.ledger, campaign_id))}"
            )
        changes = tuple(
            _change(survey, name) for name in upstream_first(unit.targets, upstreams_of(self.publisher.datasets))
        )
        return ReleasePlan(campaign.id, unit.id, survey.hash, changes, tuple(refusals))

    def publish(
        self, campaign_id: str, *, reason: str = "", outside_window: str = "", evidence_hash: str = ""
    ) -> Publication:
        """Publish the whole campaign, one commit per dataset; of two at once one wins, and the other is told of it.

        `outside_window` is the reason for a release outside the publish window; it goes into the release's own.
        `evidence_hash` is the hash of all of the evidence, as `plan` shows it, where no other is to be released.

        Raises:
            CampaignError: there is no such campaign, it was never launched, or it was given up.
            ApprovalError: it is not approved, stopped, over, or the publish window is shut.
            RollbackError: it could not be rolled back for as long as its specification asks.
            EvidenceError: evidence is missing, failed or stale.
            PreconditionError: a table or shadow is not what the release needs.
            TableMovedError: somebody kept committing to a table all the while.
            LedgerError: another release of one of the tables takes too long.
        """
        campaign, unit = self._launched(campaign_id)
        publisher = replace(self.publisher, guard=self.guard.consenting(outside_window))
        shut = outside_window and not self.guard.window_open(campaign)
        outside = f"outside the publish window: {outside_window}" if shut else ""
        # The fix is what readers of the history look for; what else was said stands behind it.
        reasons = (campaign.specification.reason.issue, campaign.specification.reason.change, reason, outside)
        told = "; ".join(filter(None, reasons))
        outcome = publisher.release(unit.id, evidence_hash=evidence_hash or None, reason=told)
        made = self.ledger.release(_any(outcome.releases.values())).manifest
        return Publication(outcome, made.by, made.created_at)

    def _launched(self, campaign_id: str) -> tuple[Campaign, Unit]:
        campaign = self.ledger.campaign(campaign_id)
        require_phase(campaign, _LAUNCHED, "publish", last_step(self.ledger, campaign_id))
        return campaign, self.ledger.unit(campaign.unit)


def _change(survey: Survey, name: str) -> DatasetChange:
    days = tuple(sorted(survey.unit.targets[name]))
    leaving = [f for day in days for f in survey.active[name].get(day, ())]
    coming = [f for day in days if (e := survey.evidence.get((name, day))) for f in e.shadow_files]
    version = survey.versions[name]
    return DatasetChange(name, days, version, len(leaving), len(coming), _rows(leaving), _rows(coming))


def _rows(files: Sequence[DataFile]) -> int | None:
    rows = [f.rows for f in files]
    return None if None in rows else sum(r for r in rows if r is not None)


def _told(entry: JournalEntry | None) -> str:
    return f" ({entry})" if entry else ""


def _any(releases: Iterable[str]) -> str:
    for release in releases:
        return release
    raise UnitError("a published unit has no release in the ledger; run: backfill reconcile")
