"""The guard: no road to readers leads past a campaign's approval, its publish window, or a rollback that would work."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backfill_assets.campaign.approval import Roles
from backfill_assets.campaign.state import Campaign, Phase
from backfill_assets.campaigns.conducting.certified import certificates_of, passed_of, uncertified
from backfill_assets.campaigns.releasing.approvals import approved
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ApprovalError, RollbackError
from backfill_assets.core.ports import Clock
from backfill_assets.core.release import Manifest, ReleaseKind
from backfill_assets.core.text import format_duration
from backfill_assets.core.unit import Unit, UnitState, shown_days
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.readiness import Obstacles, Sanction, Survey
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.ledger.open import last_step
from backfill_assets.release.rollback import plan_rollback

_RELEASABLE = frozenset({Phase.canary, Phase.running, Phase.paused})


@dataclass(frozen=True)
class CampaignGuard:
    """Asked by the publisher of every unit; those that belong to no campaign pass.

    `drift` says what of a campaign's code or specification has moved since its plan; `always` are the datasets that
    nothing is published of without approval, whatever a specification says; `roles` says who is in which role where this
    runs, and an approval counts only if whoever gave it may give it by that, too; `outside_window` is the reason why a
    release may come outside the publish window; without one it may not.
    """

    ledger: Ledger
    tables: Mapping[str, PublishedTable]
    clock: Clock
    drift: Callable[[Campaign], str]
    always: frozenset[str] = frozenset()
    roles: Roles = field(default_factory=dict)
    outside_window: str = ""

    def __call__(self, survey: Survey) -> Sanction:
        """What the release is to say of its campaign.

        Raises:
            ApprovalError: the campaign is not at the point of a release, its code or specification has moved, its unit is
                not what the specification says, it lacks the certificate that this requires, it is not approved, or the
                window is shut.
            RollbackError: the release could not be rolled back for as long as the specification asks.
        """
        campaign = self.ledger.campaign_of(survey.unit.id)
        certificates = passed_of(certificates_of(self.ledger, survey.unit.id, survey.evidence))
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
        """Everything that keeps a campaign whose evidence is complete from being released right now."""
        found = (
            *self._as_planned(campaign, survey.unit),
            self._certificate(campaign, survey),
            self._approval(campaign, survey),
            self._window(campaign),
            *self._undoable(campaign, survey),
        )
        return tuple(refusal for refusal in found if refusal is not None)

    def obstacles(self, campaign: Campaign, survey: Survey) -> Obstacles:
        """What keeps it from being released besides a certificate and an approval, which reviews look at themselves."""
        found, shut = (
            (*self._as_planned(campaign, survey.unit), *self._undoable(campaign, survey)),
            self._window(campaign),
        )
        return Obstacles(tuple(str(one) for one in found if one is not None), str(shut or ""))

    def consenting(self, outside_window: str) -> CampaignGuard:
        """The same guard that lets a release pass outside the publish window, for this reason."""
        return replace(self, outside_window=outside_window)

    def window_open(self, campaign: Campaign) -> bool:
        """Whether the campaign may be published at this time of day."""
        windows, zone, now = campaign.specification.publish_window, campaign.specification.zone, self.clock.now()
        return not windows or any(w.contains(now, zone) for w in windows)

    def _as_planned(self, campaign: Campaign, unit: Unit) -> tuple[ApprovalError | None, ...]:
        return self._phase(campaign), self._drift(campaign, unit), _contract(campaign, unit)

    def _undoable(self, campaign: Campaign, survey: Survey) -> tuple[RollbackError | None, ...]:
        return self._retention(campaign, survey), self._rehearsal(campaign, survey)

    def _phase(self, campaign: Campaign) -> ApprovalError | None:
        if campaign.phase in _RELEASABLE:
            return None
        last = last_step(self.ledger, campaign.id)
        done = f" ({last})" if last else ""
        over = campaign.phase in {Phase.closed, Phase.cleaned}
        remedy = "plan a new one" if over else f"go on with it first: backfill resume {campaign.id}"
        return ApprovalError(f"campaign {campaign.id} is {campaign.phase.value}{done} and is not published; {remedy}")

    def _drift(self, campaign: Campaign, unit: Unit) -> ApprovalError | None:
        # What was rolled back cannot be planned anew: it comes again as what it was.
        moved = self.drift(campaign) if unit.state is UnitState.open else ""
        return ApprovalError(f"campaign {campaign.id}: {moved}") if moved else None

    def _certificate(self, campaign: Campaign, survey: Survey) -> ApprovalError | None:
        lacking = uncertified(campaign, survey.unit, certificates_of(self.ledger, survey.unit.id, survey.evidence))
        return ApprovalError(f"campaign {campaign.id}: {lacking}") if lacking else None

    def _approval(self, campaign: Campaign, survey: Survey) -> ApprovalError | None:
        rule = campaign.specification.approval
        if not rule.required and not self.always & set(survey.unit.targets):
            return None
        found = approved(self.ledger, survey.unit, survey.evidence, self.roles)
        if not found.unapproved:
            return None
        # Where evidence is missing, failed or stale, a hash of the rest would be refused.
        named = "" if survey.faults else f" --evidence {found.pending}"
        return ApprovalError(
            f"campaign {campaign.id}: nobody has approved the evidence of {shown_days(found.unapproved)} as it is now; "
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
            f"{_shown(now, zone)}, the next window opens {_shown(opens, zone)}. To publish all the same, say why: "
            f"backfill publish {campaign.id} --outside-window '…'"
        )

    def _retention(self, campaign: Campaign, survey: Survey) -> RollbackError | None:
        wanted = campaign.specification.rollback.keep_for
        short = {n: self.tables[n].keep_for for n in sorted(survey.unit.targets) if self.tables[n].keep_for < wanted}
        if not short:
            return None
        shown = ", ".join(f"{name} keeps releases for {format_duration(found)}" for name, found in short.items())
        return RollbackError(
            f"campaign {campaign.id}: rollback.keep_for is {format_duration(wanted)}, but {shown}: a rollback would end too "
            "early. Raise retention.keep_for in dataset.yaml, or lower the specification's"
        )

    def _rehearsal(self, campaign: Campaign, survey: Survey) -> RollbackError | None:
        """Plan the rollback as if the release had been made: every day goes back, and every file for that is there."""
        lost = []
        for name in sorted(survey.unit.targets):
            swaps = survey.swaps(name)
            # What readers would see after the release, and what its rollback would make of that.
            back = plan_rollback(self._to_be(survey, name), {swap.day: swap.add for swap in swaps})
            taken = {f.path for swap in back.swaps for f in swap.remove}
            again = {swap.day for swap in back.swaps if not taken & {f.path for f in swap.add}}
            if stuck := [swap.day for swap in swaps if swap.day not in again]:
                lost.append(f"{name} {format_days(stuck)} would not show again what it shows now")
            gone = self.tables[name].missing_files(f for swap in back.swaps for f in swap.add)
            if gone:
                shown = f"{name} {format_days(f.day for f in gone)} ({len(gone)} files, first {gone[0].path})"
                lost.append(f"files of what readers see now are gone or altered: {shown}")
        if not lost:
            return None
        return RollbackError(
            f"campaign {campaign.id} could not be rolled back: {'; '.join(lost)}. Restore them from a backup, see: backfill doctor"
        )

    def _to_be(self, survey: Survey, name: str) -> Manifest:
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
        f"specification names; what is expected stands there (validation). Go on with: backfill resume {campaign.id}"
    )


def _void(signatures: Sequence[str]) -> str:
    return (
        f". The approval of {', '.join(signatures)} does not count here: by BACKFILL_ASSETS_ROLES of the process that publishes "
        "they may not give it"
    )


def _shown(moment: dt.datetime, zone: dt.tzinfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"
