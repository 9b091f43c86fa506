"""Approving a campaign: one person says yes to exactly the evidence that they have seen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backfill_assets.campaigns.conducting.certified import certificates_of, uncertified
from backfill_assets.campaigns.conducting.journal import last_step
from backfill_assets.campaigns.releasing.approvals import approved, current_evidence
from backfill_assets.campaigns.releasing.publish import Publisher
from backfill_assets.campaigns.releasing.survey import refusal
from backfill_assets.domain.approval import Roles, approver_of, require_another
from backfill_assets.domain.campaign import Action, Approval, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.domain.errors import ApprovalError, CampaignError, EvidenceError
from backfill_assets.domain.evidence import DatasetDay, DayEvidence, unit_hash
from backfill_assets.domain.ports import Clock, Identity, Ledger
from backfill_assets.domain.units import Unit, UnitState, shown_days

_APPROVABLE = frozenset({Phase.canary, Phase.running, Phase.paused})
_WAIT = dt.timedelta(seconds=30)


@dataclass(frozen=True)
class PendingApproval:
    """What waits for approval: the days, and the hash of their evidence; both empty where all is approved."""

    hash: str
    days: tuple[DatasetDay, ...]


@dataclass(frozen=True)
class Approving:
    """Shows what is to be approved and records who has approved it.

    `roles` says who is in which role, `drift` what of a campaign's code or specification has moved since its plan.
    """

    ledger: Ledger
    publisher: Publisher
    clock: Clock
    identity: Identity
    roles: Roles
    drift: Callable[[Campaign], str]

    def unapproved(self, unit_id: str) -> tuple[DatasetDay, ...]:
        """The days of a unit that have evidence which nobody has approved as it is now.

        Raises:
            UnitError: there is no such unit.
        """
        unit = self.ledger.unit(unit_id)
        return approved(self.ledger, unit, current_evidence(self.ledger, unit)).unapproved

    def pending_approval(self, unit_id: str) -> PendingApproval:
        """The hash that an approver names, and the days that it stands for.

        Days that were approved and have kept their evidence are no part of it: after a recomputation only the new ones.

        Raises:
            UnitError: there is no such unit.
        """
        unit = self.ledger.unit(unit_id)
        return self._pending(unit, current_evidence(self.ledger, unit))

    def approve(self, campaign_id: str, evidence: str, *, by: str = "", reason: str = "") -> Approval:
        """Approve what waits for approval; `evidence` is its hash, `by` the name or role in which the user approves.

        Raises:
            CampaignError: there is no such campaign, or it is not at the point of an approval.
            EvidenceError: evidence is missing, failed or stale; names days and remedy.
            ApprovalError: the user may not approve it, its code or specification has moved since the plan, it lacks the
                certificate that the specification requires, the hash is another one, or nothing waits for approval (any
                more: of two who approve at once the second is told of the first).
            LedgerError: another approval of it takes too long.
        """
        campaign = self.ledger.campaign(campaign_id)
        unit = self._unit(campaign)
        name = self._approver(campaign, unit, by)
        if faults := self.publisher.missing(unit.id):
            raise EvidenceError(refusal(unit, faults, self.publisher.datasets))
        # What was rolled back cannot be planned anew: it comes again as what it was.
        if unit.state is UnitState.open and (moved := self.drift(campaign)):
            raise ApprovalError(f"campaign {campaign.id}: {moved}")
        # From looking to writing nobody else approves: the second of two would approve what is approved already.
        with self.ledger.lock(f"approve:{unit.id}", _WAIT):
            found = current_evidence(self.ledger, unit)
            if lacking := uncertified(campaign, unit, certificates_of(self.ledger, unit.id, found)):
                raise ApprovalError(f"campaign {campaign.id}: {lacking}")
            pending = self._pending(unit, found)
            self._require_hash(campaign, pending, evidence)
            days = {day: found[day].hash for day in pending.days}
            given = Approval(unit.id, pending.hash, name, self.identity.name(), self.clock.now(), days)
            detail = {"evidence": pending.hash, "by": name, "days": len(days)}
            entry = JournalEntry(campaign.id, given.at, given.identity, Action.approved, reason, detail)
            self.ledger.approve(given, entry)
        return given

    def _unit(self, campaign: Campaign) -> Unit:
        last = last_step(self.ledger, campaign.id)
        require_phase(campaign, _APPROVABLE, "approve", last)
        unit = self.ledger.unit(campaign.unit)
        if unit.state not in {UnitState.open, UnitState.rolled_back}:
            raise CampaignError(
                f"campaign {campaign.id} is {unit.state.value}{f' ({last})' if last else ''}: there is nothing to approve "
                f"any more. See: backfill status {campaign.id}"
            )
        return unit

    def _approver(self, campaign: Campaign, unit: Unit, by: str) -> str:
        specification, user = campaign.specification, self.identity.name()
        own = {specification.owner: "owns this campaign", unit.by: "launched this campaign"}
        name = approver_of(specification.approval, by, user, self.roles)
        require_another(specification.approval, user, own, self.roles)
        return name

    def _pending(self, unit: Unit, evidence: Mapping[DatasetDay, DayEvidence]) -> PendingApproval:
        days = approved(self.ledger, unit, evidence).unapproved
        return PendingApproval(unit_hash(evidence[day] for day in days) if days else "", days)

    def _require_hash(self, campaign: Campaign, pending: PendingApproval, named: str) -> None:
        if not pending.days:
            last = [e for e in self.ledger.journal(campaign.id) if e.action is Action.approved]
            done = f" ({last[-1]})" if last else ""
            raise ApprovalError(f"campaign {campaign.id}: all of its evidence is approved already{done}")
        if named != pending.hash:
            raise ApprovalError(
                f"campaign {campaign.id}: {named[:16]!r} is not the hash of the evidence that waits for approval "
                f"({shown_days(pending.days)}); look at it again and name the hash that is shown: backfill status {campaign.id}"
            )
