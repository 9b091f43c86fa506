"""The guard before every release, and publishing a campaign."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from backfill_assets.campaign.approval import Roles
from backfill_assets.campaign.load import drift_of
from backfill_assets.campaign.state import Campaign, Phase, require_phase
from backfill_assets.control.approve import (
    RELEASABLE_PHASES,
    approved,
    certificates_of,
    certify_command,
    needs_approval,
    uncertified,
)
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ApprovalError, RollbackError, UnitError
from backfill_assets.core.release import DataFile, Manifest, ReleaseKind
from backfill_assets.core.text import format_duration
from backfill_assets.core.unit import Unit, UnitState, shown_days
from backfill_assets.evidence.readiness import Obstacles, Sanction, Survey, refusal
from backfill_assets.ledger.open import last_step
from backfill_assets.release.publish import AlreadyReleased, Publisher, Released
from backfill_assets.release.rollback import undoing
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class CampaignGuard(OnWarehouse):
    """Checks every unit before the publisher releases it; units without a campaign pass.

    `roles` are the members of each role in this process: an approval counts only if the approver may also give it by these
    roles. `outside_window` is the reason for a release outside the publish window; without a reason it is refused.
    """

    roles: Roles = field(default_factory=dict)
    outside_window: str = ""

    def __call__(self, survey: Survey) -> Sanction:
        """What the release records about its campaign.

        Raises:
            ApprovalError: the campaign cannot be released in its phase, its code or specification has changed, its unit
                is not what the specification says, a required certificate is missing, it is not approved, or the
                publish window is closed.
            RollbackError: the release could not be rolled back for as long as the specification asks.
        """
        campaign = self.ledger.campaign_of(survey.unit.id)
        found = certificates_of(self.ledger, survey.unit.id, survey.evidence)
        certificates = {name: one.id for name, one in found.items() if one.passed}
        if campaign is None:
            _refuse_unlaunched(survey.unit)
            return Sanction(certificates=certificates)
        refusals = self.refusals(campaign, survey)
        if refusals:
            raise refusals[0]
        days = campaign.specification.source_range
        names = approved(self.ledger, survey.unit, survey.evidence, self.roles).approvers
        return Sanction(campaign.id, ", ".join(names), f"{days.start}..{days.end}", certificates)

    def refusals(self, campaign: Campaign, survey: Survey) -> tuple[ApprovalError | RollbackError, ...]:
        """Everything that prevents the release of a campaign with complete evidence now."""
        found = (
            *self._as_planned(campaign, survey.unit),
            self._certificate(campaign, survey),
            self._approval(campaign, survey),
            self._window(campaign),
            *self._undoable(campaign, survey),
        )
        return tuple(refusal for refusal in found if refusal is not None)

    def obstacles(self, campaign: Campaign, survey: Survey) -> Obstacles:
        """What prevents a release, except a missing approval, which reviews check themselves."""
        planned, lasting = self._as_planned(campaign, survey.unit), self._undoable(campaign, survey)
        found = tuple(str(one) for one in (*planned, *lasting) if one is not None)
        # A resume plans again by the current code and specification; it changes nothing about the rollback.
        remedy = f"backfill resume {campaign.id}" if any(planned) and survey.unit.state is UnitState.open else ""
        certificates = certificates_of(self.ledger, survey.unit.id, survey.evidence)
        proof = certify_command(campaign, certificates) if uncertified(campaign, survey.unit, certificates) else ""
        return Obstacles(found, str(self._window(campaign) or ""), remedy, proof)

    def window_open(self, campaign: Campaign) -> bool:
        """Whether the campaign may be published at this time of day."""
        windows, zone, now = campaign.specification.publish_window, campaign.specification.zone, self.clock.now()
        return not windows or any(w.contains(now, zone) for w in windows)

    def _as_planned(self, campaign: Campaign, unit: Unit) -> tuple[ApprovalError | None, ...]:
        return self._phase(campaign), self._drift(campaign, unit), _contract(campaign, unit)

    def _undoable(self, campaign: Campaign, survey: Survey) -> tuple[RollbackError | None, ...]:
        return self._retention(campaign, survey), self._rehearsal(campaign, survey)

    def _phase(self, campaign: Campaign) -> ApprovalError | None:
        if campaign.phase in RELEASABLE_PHASES:
            return None
        last = last_step(self.ledger, campaign.id)
        done = f" ({last})" if last else ""
        over = campaign.phase in {Phase.closed, Phase.cleaned}
        remedy = "plan a new one" if over else f"go on with it first: backfill resume {campaign.id}"
        return ApprovalError(f"campaign {campaign.id} is {campaign.phase.value}{done} and is not published; {remedy}")

    def _drift(self, campaign: Campaign, unit: Unit) -> ApprovalError | None:
        # A rolled-back unit cannot be planned again: it is published again unchanged.
        moved = drift_of(campaign, self.catalog.code) if unit.state is UnitState.open else ""
        return ApprovalError(f"campaign {campaign.id}: {moved}") if moved else None

    def _certificate(self, campaign: Campaign, survey: Survey) -> ApprovalError | None:
        why = uncertified(campaign, survey.unit, certificates_of(self.ledger, survey.unit.id, survey.evidence))
        return ApprovalError(f"campaign {campaign.id}: {why}") if why else None

    def _approval(self, campaign: Campaign, survey: Survey) -> ApprovalError | None:
        rule = campaign.specification.approval
        if not needs_approval(campaign, survey.unit.targets, self.definitions):
            return None
        found = approved(self.ledger, survey.unit, survey.evidence, self.roles)
        if not found.unapproved:
            return None
        # If some evidence is missing, failed or stale, the hash of the rest would be refused.
        named = "" if survey.blockers else f" --evidence {found.pending}"
        return ApprovalError(
            f"campaign {campaign.id}: the current evidence of {shown_days(found.unapproved)} is not approved; "
            f"see: backfill status {campaign.id}, then: backfill approve {campaign.id}{named}"
            + (f" (by {', '.join(rule.by)})" if rule.by else "")
            + (_void(found.void) if found.void else "")
        )

    def _window(self, campaign: Campaign) -> ApprovalError | None:
        windows, zone, now = campaign.specification.publish_window, campaign.specification.zone, self.clock.now()
        if self.outside_window or self.window_open(campaign):
            return None
        opens = min(w.begins(now, zone) for w in windows)
        return ApprovalError(
            f"campaign {campaign.id} is published only in {', '.join(map(str, windows))} ({zone.key}); it is "
            f"{_shown(now, zone)}, the next window opens {_shown(opens, zone)}. To publish now, give a reason: "
            f"backfill publish {campaign.id} --outside-window '…'"
        )

    def _retention(self, campaign: Campaign, survey: Survey) -> RollbackError | None:
        wanted = campaign.specification.rollback.keep_for
        short = {n: self.tables[n].keep_for for n in sorted(survey.unit.targets) if self.tables[n].keep_for < wanted}
        if not short:
            return None
        shown = ", ".join(f"{name} keeps releases for {format_duration(found)}" for name, found in short.items())
        return RollbackError(
            f"campaign {campaign.id}: rollback.keep_for is {format_duration(wanted)}, but {shown}: its rollback window "
            "would be too short. Raise retention.keep_for in dataset.yaml, or lower rollback.keep_for in the specification"
        )

    def _rehearsal(self, campaign: Campaign, survey: Survey) -> RollbackError | None:
        """Rehearse the rollback of the release: every day must go back, and all files for that must exist."""
        lost = []
        for name in sorted(survey.unit.targets):
            swaps = survey.swaps(name)
            # Start from what readers would see after the release.
            back = undoing(self._rehearsed(survey, name), {swap.day: swap.add for swap in swaps})
            taken = {f.path for swap in back for f in swap.remove}
            again = {swap.day for swap in back if not taken & {f.path for f in swap.add}}
            if stuck := [swap.day for swap in swaps if swap.day not in again]:
                lost.append(f"{name} {format_days(stuck)} would not show its current rows again")
            gone = self.tables[name].missing_files(f for swap in back for f in swap.add)
            if gone:
                shown = f"{name} {format_days(f.day for f in gone)} ({len(gone)} files, first {gone[0].path})"
                lost.append(f"files that readers see now are gone or altered: {shown}")
        if not lost:
            return None
        return RollbackError(
            f"campaign {campaign.id} could not be rolled back: {'; '.join(lost)}. Restore them from a backup, see: backfill doctor"
        )

    def _rehearsed(self, survey: Survey, name: str) -> Manifest:
        return Manifest(
            release="rehearsed",
            kind=ReleaseKind.publish,
            dataset=name,
            unit=survey.unit.id,
            by="",
            created_at=self.clock.now(),
            evidence=survey.hash,
            code_version="",
            days=survey.swaps(name),
        )


def _refuse_unlaunched(unit: Unit) -> None:
    if unit.campaign:
        raise ApprovalError(
            f"unit {unit.id} was opened for campaign {unit.campaign}, whose launch was not completed: nothing of it is "
            f"published. Complete the launch: backfill launch {unit.campaign}, or give the unit up: backfill discard {unit.id}"
        )


def _contract(campaign: Campaign, unit: Unit) -> ApprovalError | None:
    asked = campaign.specification.contract(tuple(unit.targets))
    other = [name for name in sorted(unit.targets) if unit.contract.of(name).hash != asked.of(name).hash]
    if not other:
        return None
    return ApprovalError(
        f"campaign {campaign.id}: unit {unit.id} was checked against another expected change of {', '.join(other)} than its "
        f"specification (validation) has now. Check it against that one with: backfill resume {campaign.id}"
    )


def _void(signatures: Sequence[str]) -> str:
    return (
        f". The approval of {', '.join(signatures)} does not count: BACKFILL_ASSETS_ROLES of the process that publishes does not "
        "allow it"
    )


def _shown(moment: dt.datetime, zone: dt.tzinfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"


_LAUNCHED = frozenset(Phase) - {Phase.planned}


@dataclass(frozen=True)
class DatasetChange:
    """What a release would do to one dataset: files removed and added, and rows of its days before and after.

    Rows are None if the statistics of a file do not give them.
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
    """A release as it would be now, upstream first, with all refusals; without refusals it would pass."""

    campaign: str
    unit: str
    evidence: str
    changes: tuple[DatasetChange, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True)
class PublishedCampaign:
    """A published campaign: its release, and who made it, when; `already` if an earlier call made it."""

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
class CampaignRelease(OnWarehouse):
    """Publishes campaigns. The publisher asks its guard before every release; here the user may also give a reason."""

    publisher: Publisher
    guard: CampaignGuard

    def plan(self, campaign_id: str, *, outside_window: str = "", evidence_hash: str = "") -> ReleasePlan:
        """What publishing the campaign would do now, and what it would be refused for; changes nothing (`--dry-run`).

        Raises:
            CampaignError: there is no such campaign, or it was never launched.
        """
        campaign, unit = self._launched(campaign_id)
        survey = self.publisher.survey(unit.id)
        refusals = [str(r) for r in replace(self.guard, outside_window=outside_window).refusals(campaign, survey)]
        if evidence_hash and evidence_hash != survey.hash:
            refusals.insert(0, f"the evidence of campaign {campaign_id} is now {survey.hash}, not {evidence_hash[:16]}")
        if survey.blockers:
            refusals.insert(0, refusal(unit, survey.blockers, self.publisher.definitions))
        if unit.state in {UnitState.published, UnitState.discarded}:
            last = last_step(self.ledger, campaign_id)
            refusals.insert(0, f"campaign {campaign_id} is {unit.state.value}{f' ({last})' if last else ''}")
        changes = tuple(_change(survey, name) for name in self.publisher.catalog.upstream_first(unit.targets))
        return ReleasePlan(campaign.id, unit.id, survey.hash, changes, tuple(refusals))

    def publish(
        self, campaign_id: str, *, reason: str = "", outside_window: str = "", evidence_hash: str = ""
    ) -> PublishedCampaign:
        """Publish the complete campaign, one commit per dataset; a second call returns the first one's release.

        `outside_window` is the reason for a release outside the publish window; it becomes part of the release's reason.
        `evidence_hash` is the hash of all the evidence, as `plan` shows it; if given, no other evidence is released.

        Raises:
            CampaignError: there is no such campaign, it was never launched, or it was given up.
            ApprovalError: it is stopped, finished or not approved, or the publish window is closed.
            RollbackError: it could not be rolled back for as long as its specification asks.
            EvidenceError: evidence is missing, failed or stale.
            PreconditionError: a table or shadow is not what the release needs.
            TableMovedError: another writer kept committing to a table all the time.
            LedgerError: another release of one of the tables takes too long.
        """
        campaign, unit = self._launched(campaign_id)
        publisher = replace(self.publisher, guard=replace(self.guard, outside_window=outside_window))
        closed_now = outside_window and not self.guard.window_open(campaign)
        outside = f"outside the publish window: {outside_window}" if closed_now else ""
        # The fix first: it is what readers of the history look for.
        reasons = (campaign.specification.reason.issue, campaign.specification.reason.change, reason, outside)
        stated = "; ".join(filter(None, reasons))
        outcome = publisher.release(unit.id, evidence_hash=evidence_hash or None, reason=stated)
        made = self.ledger.release(_any(outcome.releases.values())).manifest
        return PublishedCampaign(outcome, made.by, made.created_at)

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


def _any(releases: Iterable[str]) -> str:
    for release in releases:
        return release
    raise UnitError("a published unit has no release in the ledger; run: backfill reconcile")
