"""Who may approve, what they approved, and which certificates count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill_assets.campaign.approval import (
    Roles,
    approver_of,
    approvers,
    may_approve,
    require_another,
    signature,
    unapproved,
)
from backfill_assets.campaign.load import drift_of
from backfill_assets.campaign.state import Action, Approval, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.campaign.validation import Certification
from backfill_assets.core.certificate import Certificate, standing_certificates
from backfill_assets.core.errors import ApprovalError, CampaignError, EvidenceError
from backfill_assets.core.evidence import DatasetDay, DayEvidence, unit_hash
from backfill_assets.core.unit import LOCK_WAIT, ReleaseRecord, Unit, UnitState, shown_days
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.readiness import refusal
from backfill_assets.ledger.open import Ledger, last_step
from backfill_assets.release.finish import is_rollback
from backfill_assets.release.publish import Publisher
from backfill_assets.warehouse import OnWarehouse


def needs_approval(campaign: Campaign | None, names: Iterable[str], datasets: Mapping[str, Dataset]) -> bool:
    """Whether a person must approve before these datasets are released: the specification or one of the datasets asks for it."""
    if campaign is not None and campaign.specification.approval.required:
        return True
    return any(not datasets[name].is_released_by_runs for name in names if name in datasets)


def certificates_of(ledger: Ledger, unit: str, evidence: Mapping[DatasetDay, DayEvidence]) -> Mapping[str, Certificate]:
    """The certificate that counts for this evidence of a unit, by dataset, passed or not."""
    return standing_certificates(ledger.certificates(unit=unit), evidence)


def uncertified(campaign: Campaign, unit: Unit, certificates: Mapping[str, Certificate]) -> str:
    """Which required certificate is missing or has not passed, and what to do; empty if none."""
    if campaign.specification.validation.certificate is Certification.none:
        return ""
    missing = [name for name in sorted(unit.targets) if name not in certificates]
    failed = [str(one) for one in certificates.values() if not one.passed]
    if missing:
        return (
            f"its specification requires a certificate (validation.certificate), and the current evidence of "
            f"{', '.join(missing)} has none; get it with: backfill prove {campaign.id} (of days that have rows: others "
            "prove nothing)"
        )
    if failed:
        return (
            f"its specification requires a certificate (validation.certificate), but {'; '.join(failed)}. Fix the model, "
            f"go on with: backfill resume {campaign.id}, then: backfill prove {campaign.id}"
        )
    return ""


def certify_command(campaign: Campaign, certificates: Mapping[str, Certificate]) -> str:
    """The next command for a campaign whose certificate is missing or has not passed; a failed one needs another model first."""
    failed = any(not one.passed for one in certificates.values())
    return f"backfill resume {campaign.id}" if failed else f"backfill prove {campaign.id}"


_RULES = frozenset({"approval", "validation"})
"""Keys of a specification whose change voids approvals."""
_RELEASABLE = frozenset({UnitState.open, UnitState.rolled_back})


@dataclass(frozen=True)
class Approved:
    """The days whose current evidence is not approved, who approved the rest, and whose approvals do not count.

    `pending` is the hash that an approver names for the unapproved days; after a recomputation these are only the new
    ones. Empty if everything is approved.
    """

    unapproved: tuple[DatasetDay, ...]
    pending: str
    approvers: tuple[str, ...]
    void: tuple[str, ...] = ()


def current_evidence(ledger: Ledger, unit: Unit) -> Mapping[DatasetDay, DayEvidence]:
    """The evidence that counts for the days of a unit."""
    known = ledger.evidence(unit.id)
    return {target: known[target] for target in unit.days if target in known}


def own_people(campaign: Campaign, unit: Unit) -> Mapping[str, str]:
    """The campaign's own people, and their relation to it."""
    return {campaign.specification.owner: "owns this campaign", unit.by: "launched this campaign"}


def approved(
    ledger: Ledger, unit: Unit, evidence: Mapping[DatasetDay, DayEvidence], roles: Roles | None = None
) -> Approved:
    """What of this evidence is approved; with `roles`, only by users who may approve by these and the specification.

    The approvals of released days stay valid, even if the approver has left the role since.

    A rollback withdraws the approvals of its days; a resume with another `approval` or `validation` in the
    specification withdraws those of all days. They have to be given again.
    """
    edges, campaign = withdrawn(ledger.releases(unit=unit.id)), ledger.campaign_of(unit.id)
    every = given = ledger.approvals(unit.id)
    if campaign is not None and roles is not None and unit.state in _RELEASABLE:
        rule, own = campaign.specification.approval, own_people(campaign, unit)
        given = tuple(one for one in every if may_approve(rule, one, own, roles))
    void = tuple(dict.fromkeys(signature(one) for one in every if one not in given))
    if campaign is not None:
        ruled = _last_rule_change(ledger.journal(campaign.id))
        given = tuple(one for one in given if one.after_entry >= ruled)
    left = unapproved(evidence, given, edges)
    standing = {day: e for day, e in evidence.items() if day not in left}
    pending = unit_hash(evidence[day] for day in left) if left else ""
    return Approved(left, pending, approvers(standing, _standing(given, edges)), void)


def withdrawn(records: Iterable[ReleaseRecord]) -> Mapping[DatasetDay, int]:
    """The number of the newest rollback of each day that was rolled back."""
    edges: dict[DatasetDay, int] = {}
    for record in filter(is_rollback, records):
        for swap in record.manifest.days:
            target = (record.manifest.dataset, swap.day)
            edges[target] = max(edges.get(target, 0), record.number)
    return edges


def _last_rule_change(journal: Iterable[JournalEntry]) -> int:
    """The number of the last resume entry that changed the rules for approvals; 0 if the first ones still apply."""
    return max((e.number for e in journal if e.action is Action.resumed and _RULES & set(e.changed)), default=0)


def _standing(given: Iterable[Approval], edges: Mapping[DatasetDay, int]) -> list[Approval]:
    return [a for a in given if any(a.after_release >= edges.get(day, 0) for day in a.days)]


RELEASABLE_PHASES = frozenset({Phase.canary, Phase.running, Phase.paused})
"""Phases in which a campaign can be approved and released."""


@dataclass(frozen=True)
class Approving(OnWarehouse):
    """Records who has approved what.

    `roles` says who is in which role.
    """

    publisher: Publisher
    roles: Roles

    def approve(self, campaign_id: str, evidence: str, *, by: str = "", reason: str = "") -> Approval:
        """Approve what waits for approval; `evidence` is its hash, `by` the name or role that the user approves as.

        Raises:
            CampaignError: there is no such campaign, or it is not in a phase in which it can be approved.
            EvidenceError: evidence is missing, failed or stale; names days and remedy.
            ApprovalError: the user may not approve it, its code or specification has changed since the plan, the certificate
                that the specification requires is missing, the hash differs, or nothing waits for approval (any more: if two
                approve at the same time, the error for the second names the first).
            LedgerError: another approval of it takes too long.
        """
        campaign = self.ledger.campaign(campaign_id)
        unit = self._unit(campaign)
        name = self._approver(campaign, unit, by)
        if blockers := self.publisher.blockers(unit.id):
            raise EvidenceError(refusal(unit, blockers, self.definitions))
        # A rolled-back unit cannot be planned again: it is published again unchanged.
        if unit.state is UnitState.open and (moved := drift_of(campaign, self.catalog.code)):
            raise ApprovalError(f"campaign {campaign.id}: {moved}")
        # One approval at a time: the second of two would approve what is already approved.
        with self.ledger.lock(f"approve:{unit.id}", LOCK_WAIT):
            found = current_evidence(self.ledger, unit)
            if why := uncertified(campaign, unit, certificates_of(self.ledger, unit.id, found)):
                raise ApprovalError(f"campaign {campaign.id}: {why}")
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
        require_phase(campaign, RELEASABLE_PHASES, "approve", last)
        unit = self.ledger.unit(campaign.unit)
        if unit.state not in _RELEASABLE:
            raise CampaignError(
                f"campaign {campaign.id} is {unit.state.value}{f' ({last})' if last else ''}: there is nothing left to "
                f"approve. See: backfill status {campaign.id}"
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
            raise ApprovalError(f"campaign {campaign.id}: all of its evidence is already approved{done}")
        if named != waiting.pending:
            raise ApprovalError(
                f"campaign {campaign.id}: {named[:16]!r} is not the hash of the evidence that waits for approval "
                f"({shown_days(waiting.unapproved)}); review it again and use the hash shown by: "
                f"backfill status {campaign.id}"
            )
