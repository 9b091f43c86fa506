"""Approving a campaign: one person says yes to exactly the evidence that they have seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backfill_assets.campaign.approval import Roles, approver_of, require_another
from backfill_assets.campaign.state import Action, Approval, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.campaigns.conducting.certified import certificates_of, uncertified
from backfill_assets.campaigns.releasing.approvals import Approved, approved, current_evidence, own_people
from backfill_assets.core.errors import ApprovalError, CampaignError, EvidenceError
from backfill_assets.core.ports import Clock, Identity
from backfill_assets.core.unit import LOCK_WAIT, Unit, UnitState, shown_days
from backfill_assets.evidence.readiness import refusal
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.ledger.open import last_step
from backfill_assets.release.publish import Publisher

_APPROVABLE = frozenset({Phase.canary, Phase.running, Phase.paused})


@dataclass(frozen=True)
class Approving:
    """Records who has approved what.

    `roles` says who is in which role, `drift` what of a campaign's code or specification has moved since its plan.
    """

    ledger: Ledger
    publisher: Publisher
    clock: Clock
    identity: Identity
    roles: Roles
    drift: Callable[[Campaign], str]

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
        with self.ledger.lock(f"approve:{unit.id}", LOCK_WAIT):
            found = current_evidence(self.ledger, unit)
            if lacking := uncertified(campaign, unit, certificates_of(self.ledger, unit.id, found)):
                raise ApprovalError(f"campaign {campaign.id}: {lacking}")
            waiting = approved(self.ledger, unit, found, self.roles)
            self._require_hash(campaign, waiting, evidence)
            days = {day: found[day].hash for day in waiting.unapproved}
            given = Approval(unit.id, waiting.pending, name, self.identity.name(), self.clock.now(), days)
            detail = {"evidence": waiting.pending, "by": name, "days": len(days)}
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
        name = approver_of(specification.approval, by, user, self.roles)
        require_another(specification.approval, user, own_people(campaign, unit), self.roles)
        return name

    def _require_hash(self, campaign: Campaign, waiting: Approved, named: str) -> None:
        if not waiting.unapproved:
            last = [e for e in self.ledger.journal(campaign.id) if e.action is Action.approved]
            done = f" ({last[-1]})" if last else ""
            raise ApprovalError(f"campaign {campaign.id}: all of its evidence is approved already{done}")
        if named != waiting.pending:
            raise ApprovalError(
                f"campaign {campaign.id}: {named[:16]!r} is not the hash of the evidence that waits for approval "
                f"({shown_days(waiting.unapproved)}); look at it again and name the hash that is shown: "
                f"backfill status {campaign.id}"
            )
