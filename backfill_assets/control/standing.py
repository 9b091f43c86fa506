"""The standing of a campaign: its state, what is missing, what it has used up, and what it waits for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backfill_assets.campaign.approval import Roles
from backfill_assets.campaign.gate import Decision, Traffic, admit
from backfill_assets.campaign.load import uncompared
from backfill_assets.campaign.state import Action, Campaign, CampaignState, JournalEntry, state_of
from backfill_assets.control.approve import approved, certificates_of, uncertified
from backfill_assets.control.conductor import STEPS, Gatekeeper, since_launch
from backfill_assets.core.certificate import Certificate
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.unit import Attempt, Unit, UnitState
from backfill_assets.evidence.readiness import NO_OBSTACLES, DayBlocker, Obstacles, Survey
from backfill_assets.release.publish import Publisher
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class CampaignStanding:
    """A campaign at one moment.

    `evidence` is the hash that waits for an approval, empty if there is none. `drift` says what code or specification has
    changed since the plan, `uncompared` that the specification's file is not there to compare; both only while the campaign
    can still be planned again. `obstacles` keep it from being released although all evidence is good. `certificates` are those
    of the current evidence by dataset, `uncertified` says which required ones are missing; both until it is published.
    """

    campaign: Campaign
    state: CampaignState
    unit: Unit | None
    blockers: tuple[DayBlocker, ...]
    evidence: str
    unapproved: tuple[DatasetDay, ...]
    batches: tuple[Attempt, ...]
    traffic: Traffic
    decision: Decision
    journal: tuple[JournalEntry, ...]
    drift: str
    obstacles: Obstacles
    uncompared: str
    certificates: Mapping[str, Certificate]
    uncertified: str

    @property
    def good(self) -> int:
        """How many (dataset, day) have complete, passing, current evidence, or are finished."""
        total = sum(len(days) for days in self.campaign.plan.targets.values())
        if self.unit is None:
            return 0
        return total - len({(blocker.dataset, blocker.day) for blocker in self.blockers})

    @property
    def days(self) -> Mapping[DatasetDay, str]:
        """Each (dataset, day) that is not good, and whether it is missing, failed or stale."""
        found: dict[DatasetDay, str] = {}
        for blocker in self.blockers:
            key = (blocker.dataset, blocker.day)
            word = blocker.reason.state
            if _RANK[word] >= _RANK.get(found.get(key, ""), 0):
                found[key] = word
        return found

    @property
    def waits(self) -> tuple[JournalEntry, ...]:
        """When a run ended because the gate was closed, and why."""
        return tuple(entry for entry in self.journal if entry.action is Action.waits)

    @property
    def spent(self) -> dt.timedelta:
        """The total time of its batches."""
        return sum((batch.spent(self.traffic.now) for batch in self.batches), dt.timedelta(0))


_RANK = {"stale": 1, "failed": 2, "missing": 3}


@dataclass(frozen=True)
class Standings(OnWarehouse):
    """Reads the standing of campaigns.

    `roles` say whose approvals count, if this process knows any; `obstacles` returns what keeps a campaign with passing,
    current evidence from being released.
    """

    publisher: Publisher
    gatekeeper: Gatekeeper
    obstacles: Callable[[Campaign, Survey], Obstacles]
    roles: Roles | None = None

    def of(self, campaign_id: str, *, obstacles: bool = True) -> CampaignStanding:
        """The standing of a campaign; without `obstacles` it does not rehearse the release, which looks at every file.

        Raises:
            CampaignError: there is no such campaign.
        """
        campaign = self.ledger.campaign(campaign_id)
        unit = self.ledger.unit(campaign.unit) if campaign.unit else None
        # A rolled-back unit can be published again, after a new approval.
        waits = unit is not None and unit.state in {UnitState.open, UnitState.rolled_back}
        survey = self.publisher.survey(campaign.unit) if waits else None
        blockers = survey.blockers if survey is not None else ()
        evidence = self.ledger.evidence(campaign.unit) if waits else {}
        complete = waits and not blockers
        waiting = approved(self.ledger, unit, evidence, self.roles) if unit is not None and complete else None
        unapproved = waiting.unapproved if waiting is not None else ()
        journal = self.ledger.journal(campaign_id)
        traffic = self.gatekeeper.traffic(campaign, since_launch(journal).refused)
        certificates = certificates_of(self.ledger, campaign.unit, evidence)
        steps = [entry.action for entry in journal if entry.action in STEPS]
        at_hand = unit is None or unit.state is UnitState.open
        stale = bool(blockers) and steps[-1:] in ([Action.validated], [Action.stale])
        return CampaignStanding(
            campaign=campaign,
            state=state_of(campaign, unit, complete=complete, approved=not unapproved, stale=stale),
            unit=unit,
            blockers=blockers,
            evidence=waiting.pending if waiting is not None else "",
            unapproved=unapproved,
            batches=self.ledger.attempts(campaign.unit) if campaign.unit else (),
            traffic=traffic,
            decision=admit(campaign, traffic),
            journal=journal,
            drift=traffic.drift if at_hand else "",
            obstacles=self.obstacles(campaign, survey)
            if obstacles and survey is not None and complete
            else NO_OBSTACLES,
            uncompared=uncompared(campaign) if at_hand else "",
            certificates=certificates,
            uncertified=uncertified(campaign, unit, certificates) if unit is not None and complete else "",
        )
