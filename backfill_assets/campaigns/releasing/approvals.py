"""What is approved of a unit, as the ledger knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill_assets.campaign.approval import Roles, approvers, may_approve, signature, unapproved
from backfill_assets.campaign.state import Action, Approval, Campaign, JournalEntry
from backfill_assets.core.evidence import DatasetDay, DayEvidence, unit_hash
from backfill_assets.core.unit import ReleaseRecord, Unit, UnitState
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.release.finish import is_rollback

_RULES = frozenset({"approval", "validation"})
"""Keys of a specification that an approval is given under."""
_RELEASABLE = frozenset({UnitState.open, UnitState.rolled_back})


@dataclass(frozen=True)
class Approved:
    """The days whose present evidence nobody has approved, who approved the rest, and whose approvals do not count.

    `pending` is the hash that an approver names for the unapproved days, which after a recomputation are only the new
    ones; empty where all is approved.
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
    """The campaign's own people, and what each of them is to it."""
    return {campaign.specification.owner: "owns this campaign", unit.by: "launched this campaign"}


def approved(
    ledger: Ledger, unit: Unit, evidence: Mapping[DatasetDay, DayEvidence], roles: Roles | None = None
) -> Approved:
    """What is approved of this evidence; with `roles`, only by those who may approve by them and the specification.

    Of what is released the approvals of then stand, whoever has left a role since.

    A rollback withdraws the approvals of its days, and a specification that expects another change, or wants others to
    approve, those of all days: they have to be given again.
    """
    edges, campaign = withdrawn(ledger.releases(unit=unit.id)), ledger.campaign_of(unit.id)
    every = given = ledger.approvals(unit.id)
    if campaign is not None and roles is not None and unit.state in _RELEASABLE:
        rule, own = campaign.specification.approval, own_people(campaign, unit)
        given = tuple(one for one in every if may_approve(rule, one, own, roles))
    void = tuple(dict.fromkeys(signature(one) for one in every if one not in given))
    if campaign is not None:
        ruled = _ruled_anew(ledger.journal(campaign.id))
        given = tuple(one for one in given if one.after_entry >= ruled)
    left = unapproved(evidence, given, edges)
    standing = {day: e for day, e in evidence.items() if day not in left}
    pending = unit_hash(evidence[day] for day in left) if left else ""
    return Approved(left, pending, approvers(standing, _standing(given, edges)), void)


def withdrawn(records: Iterable[ReleaseRecord]) -> Mapping[DatasetDay, int]:
    """The newest rollback of each day that somebody has rolled back, by its number."""
    edges: dict[DatasetDay, int] = {}
    for record in filter(is_rollback, records):
        for swap in record.manifest.days:
            target = (record.manifest.dataset, swap.day)
            edges[target] = max(edges.get(target, 0), record.number)
    return edges


def _ruled_anew(journal: Iterable[JournalEntry]) -> int:
    """The entry of the resume that has last brought other rules for approvals, by its number; 0 if the first ones still hold."""
    return max((e.number for e in journal if e.action is Action.resumed and _RULES & set(e.changed)), default=0)


def _standing(given: Iterable[Approval], edges: Mapping[DatasetDay, int]) -> list[Approval]:
    return [a for a in given if any(a.after_release >= edges.get(day, 0) for day in a.days)]
