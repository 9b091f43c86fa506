"""What operators do to a running campaign. Every action is recorded, and takes effect within one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from backfill_assets.campaign.load import drift_of, load_specification
from backfill_assets.campaign.plan import Plan, StepKind
from backfill_assets.campaign.specification import Notice, Specification
from backfill_assets.campaign.state import CHANGED, WORKING, Action, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.control.conductor import Conductor, SendNotice
from backfill_assets.control.planner import refuse_claimed
from backfill_assets.core.days import Days
from backfill_assets.core.errors import CampaignError, SpecificationError
from backfill_assets.core.unit import LOCK_WAIT, OPENED_BY, Launch, ReleaseMode, Unit, UnitState
from backfill_assets.dataset.yaml import shown_path
from backfill_assets.ledger.open import last_step
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.warehouse import OnWarehouse

_RESUMABLE = WORKING | {Phase.paused, Phase.stopped}
_OVER = {
    UnitState.published: (Action.published, "Sign it off (backfill sign-off {id}), or undo it with: backfill rollback"),
    UnitState.rolled_back: (
        Action.rolled_back, "Publish it again (backfill publish {id}), or plan the days under another backfill_id"
    ),
    UnitState.discarded: (Action.discarded, "Plan its days under another backfill_id"),
}  # fmt: skip
"""For each final state of a unit: the action that led to it, and what the user can do."""


@dataclass(frozen=True)
class Control(OnWarehouse):
    """Launch, pause, resume, stop and set; if two operators act at the same time, one fails and learns who did what."""

    conductor: Conductor
    make_plan: Callable[[Specification, Days | None], Plan]
    notify: SendNotice

    def launch(self, campaign_id: str, *, canary_only: bool = False) -> Campaign:
        """Announce the campaign, open its unit, which claims the days, and launch the canaries or all days.

        Raises:
            CampaignError: there is no such campaign, it was launched before, or its code or specification has changed.
            ClaimedDaysError: some of its days belong to another open unit, which is named.
            LedgerError: another launch of it takes too long.
        """
        # If two launch at the same time, only the first may announce the campaign.
        with self.ledger.lock(f"launch:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            require_phase(campaign, {Phase.planned}, "launch", last_step(self.ledger, campaign_id))
            if moved := drift_of(campaign, self.catalog.code):
                raise CampaignError(
                    f"campaign {campaign_id}: {moved.partition(';')[0]}; plan it again: {_planning(campaign)}"
                )
            refuse_claimed(self.ledger, campaign_id, campaign.plan.targets)
            launched = self._begun(replace(campaign, canary_only=canary_only))
            entry = self._entry(campaign, Action.launched, unit=launched.unit, plan=campaign.plan.fingerprint)
            launched = self.ledger.change_campaign(launched, {Phase.planned}, entry)
        self._say(launched, Notice.launched)
        self.conductor.conduct(campaign_id)
        return self.ledger.campaign(campaign_id)

    def pause(self, campaign_id: str, reason: str) -> Campaign:
        """Start no further batch; running batches finish, queued runs are cancelled.

        Raises:
            CampaignError: the campaign is not running, or its unit is finished.
        """
        return self._enter(campaign_id, Phase.paused, WORKING, (Action.paused, reason))

    def stop(self, campaign_id: str, reason: str) -> Campaign:
        """Stop a campaign because something has to be fixed; as with a pause, passed days stay.

        Raises:
            CampaignError: the campaign is neither running nor paused, or its unit is finished.
        """
        changed = self._enter(campaign_id, Phase.stopped, WORKING | {Phase.paused}, (Action.stopped, reason))
        self.notify(changed, Notice.stopped, f"{campaign_id} is stopped by {self.identity.name()}: {reason}")
        return changed

    def resume(self, campaign_id: str, reason: str = "") -> Campaign:
        """Continue with only what is missing, failed or stale, by the current code and specification.

        If they have changed, a new plan is frozen, over the same days of the same datasets.

        Raises:
            CampaignError: it was never launched, it is finished, its backfill still runs, or its range was changed.
            SpecificationError: the specification's file can no longer be read.
        """
        campaign = self._found(campaign_id, _RESUMABLE, "resume")
        if campaign.phase in WORKING and self.conductor.backfills.active(campaign_id):
            raise CampaignError(f"campaign {campaign_id} is {campaign.phase.value}: its backfill is still running")
        changed = self._replanned(campaign)
        changed = replace(changed, phase=Phase.running, canary_only=False)
        blocked = {blocker.day for blocker in self.conductor.blockers(changed)}
        if blocked & set(changed.plan.canaries):
            changed = replace(changed, phase=Phase.canary)
        entry = self._entry(campaign, Action.resumed, reason, **_moved(campaign, changed))
        self.ledger.change_campaign(changed, _RESUMABLE, entry)
        self.conductor.conduct(campaign_id)
        return self.ledger.campaign(campaign_id)

    def set(
        self,
        campaign_id: str,
        reason: str,
        *,
        max_concurrency: int | None = None,
        partitions_per_batch: int | None = None,
    ) -> Campaign:
        """Change the given knobs and leave the other; the change applies to batches that start from now on.

        Raises:
            CampaignError: the campaign is finished, a knob is out of bounds, or another user changed the campaign meanwhile.
        """
        allowed = _RESUMABLE | {Phase.planned}
        campaign = self._found(campaign_id, allowed, "set")
        turned = campaign.turned(max_concurrency=max_concurrency, partitions_per_batch=partitions_per_batch)
        if turned.knobs.problem:
            raise CampaignError(f"campaign {campaign_id}: {turned.knobs.problem}")
        entry = self._entry(campaign, Action.set, reason, **campaign.knobs.turned_to(turned.knobs))
        return self.ledger.change_campaign(turned, allowed, entry)

    def discard(self, campaign_id: str, reason: str = "") -> Unit:
        """Give up the campaign's open unit: nothing of it is published, its days are free, its backfills are cancelled.

        Safe to repeat after a crash. A campaign whose launch was not completed can be launched again.

        Raises:
            CampaignError: there is no such campaign, or it has no open unit (any more); names who closed it.
            UnitError: it was just being released, and now is.
            LedgerError: that release takes too long.
        """
        campaign = self.ledger.campaign(campaign_id)
        # Wait for the conductor's step: it might launch another backfill right after these were cancelled.
        with self.ledger.lock(f"conduct:{campaign_id}", LOCK_WAIT):
            unit = self._to_discard(campaign)
            if unit.state is UnitState.open:
                unit = Reconcile(self.warehouse, self.conductor.publisher.after).discard(unit.id)
            self.ledger.note(self._entry(campaign, Action.discarded, reason, unit=unit.id))
            if self.conductor.backfills.active(campaign_id):
                self.conductor.backfills.cancel(campaign_id)
        return unit

    def _to_discard(self, campaign: Campaign) -> Unit:
        noted = [entry for entry in self.ledger.journal(campaign.id) if entry.action is Action.discarded]
        known = {str(entry.detail.get("unit")) for entry in noted}
        wanted = {UnitState.open, UnitState.discarded}
        for unit in self.ledger.units(states=wanted):
            if unit.campaign == campaign.id and unit.id not in known:
                return unit
        done = f" ({noted[-1]})" if noted else ""
        raise CampaignError(
            f"campaign {campaign.id} has no open unit{done}: there is nothing to give up. See: backfill status {campaign.id}"
        )

    def _enter(self, campaign_id: str, phase: Phase, allowed: Collection[Phase], why: tuple[Action, str]) -> Campaign:
        action, reason = why
        campaign = self._found(campaign_id, allowed, phase.value)
        entry = self._entry(campaign, action, reason)
        changed = self.ledger.change_campaign(replace(campaign, phase=phase), allowed, entry)
        self.conductor.conduct(campaign_id)
        return changed

    def _found(self, campaign_id: str, allowed: Collection[Phase], action: str) -> Campaign:
        """The campaign, if its phase and its unit allow the action."""
        campaign, last = self.ledger.campaign(campaign_id), last_step(self.ledger, campaign_id)
        require_phase(campaign, allowed, action, last)
        unit = self.ledger.unit(campaign.unit) if campaign.unit else None
        if unit is not None and unit.state is not UnitState.open:
            done, remedy = _OVER[unit.state]
            noted = [entry for entry in self.ledger.journal(campaign_id) if entry.action is done]
            by = f" ({noted[-1]})" if noted else ""
            raise CampaignError(
                f"campaign {campaign_id} is {done.value}{by}: nothing is left to build, so {action} is no longer possible. "
                f"{remedy.format(id=campaign_id)}; see: backfill status {campaign_id}"
            )
        return campaign

    def _begun(self, campaign: Campaign) -> Campaign:
        """The campaign after the steps before its first build; the conductor takes the builds."""
        for step in campaign.plan.steps:
            match step.kind:
                case StepKind.announce:
                    # Before the claim: from the claim on, it affects the live pipeline.
                    self._say(campaign, Notice.announced)
                case StepKind.open_unit:
                    campaign = replace(campaign, unit=self._open(campaign).id)
                case StepKind.canary:
                    return replace(campaign, phase=Phase.canary)
                case StepKind.rest | StepKind.approve | StepKind.publish | StepKind.sign_off | StepKind.cleanup:
                    break
                case _:
                    assert_never(step.kind)
        return replace(campaign, phase=Phase.running)

    def _open(self, campaign: Campaign) -> Unit:
        targets = campaign.plan.targets
        given_up = [u for u in self.ledger.units(states={UnitState.discarded}) if u.campaign == campaign.id]
        # Repeating a crashed launch finds its unit again; if that unit was given up, the next launch opens a new one.
        opened_by = f"{OPENED_BY}{campaign.id}" + (f"/{len(given_up) + 1}" if given_up else "")
        launch = Launch({name: frozenset(days) for name, days in targets.items()}, opened_by)
        proposal = Unit(
            id=self.ids.new("u"),
            opened_by=opened_by,
            opened_at=self.clock.now(),
            by=self.identity.name(),
            targets=targets,
            mode=ReleaseMode.manual,
            contract=campaign.specification.contract(tuple(targets)),
        )
        unit = self.ledger.assign(launch, proposal)
        if unit.state is not UnitState.open or unit.opened_by != opened_by:
            raise CampaignError(
                f"campaign {campaign.id}: its days belong to unit {unit.id} ({unit.state.value}, opened by "
                f"{unit.opened_by}). Publish that one first, or give it up: backfill discard {unit.id}"
            )
        if unit.targets != proposal.targets or unit.contract != proposal.contract:
            # A launch that crashed, or that a new plan overtook, opened it over the older plan.
            raise CampaignError(
                f"campaign {campaign.id}: its unit {unit.id} was opened over an older plan; give it up and launch again: "
                f"backfill discard {unit.id}"
            )
        return unit

    def _replanned(self, campaign: Campaign) -> Campaign:
        """The campaign with a new plan and contract from its current code and specification, if these have changed."""
        if not drift_of(campaign, self.catalog.code):
            return campaign
        specification = self._specification(campaign)
        # Keep the canaries: those that have passed need no others.
        plan = self.make_plan(specification, campaign.plan.canaries)
        if plan.targets != campaign.plan.targets:
            file = shown_path(Path(campaign.file))
            raise CampaignError(
                f"campaign {campaign.id}: {file} now means other days or datasets than were launched, or a dataset of its scope "
                f"has another start or state. Change this back, or give the unit up (backfill discard {campaign.unit}) and plan "
                "under another backfill_id"
            )
        self.ledger.set_contract(campaign.unit, specification.contract(tuple(plan.targets)))
        return campaign.replanned(specification, plan)

    def _specification(self, campaign: Campaign) -> Specification:
        file = Path(campaign.file)
        if not campaign.file or not file.is_file():
            return campaign.specification
        loaded = load_specification(file)
        if isinstance(loaded, tuple):
            raise SpecificationError("\n".join(str(problem) for problem in loaded))
        return loaded.specification

    def _say(self, campaign: Campaign, notice: Notice) -> None:
        self.notify(campaign, notice, f"{campaign.id} {notice.value} by {self.identity.name()}: {_about(campaign)}")

    def _entry(self, campaign: Campaign, action: Action, reason: str = "", **detail: object) -> JournalEntry:
        return JournalEntry(campaign.id, self.clock.now(), self.identity.name(), action, reason, detail)


def _moved(before: Campaign, after: Campaign) -> dict[str, object]:
    """What of plan, specification and knobs has changed, for the journal; changed rules for approvals are part of it."""
    one, other = before.specification.to_plain(), after.specification.to_plain()
    keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
    plan = {"plan": after.plan.fingerprint} if after.plan != before.plan else {}
    return {**plan, **({CHANGED: keys} if keys else {}), **before.knobs.turned_to(after.knobs)}


def _planning(campaign: Campaign) -> str:
    return f"backfill plan {shown_path(Path(campaign.file)) if campaign.file else 'with its specification'}"


def _about(campaign: Campaign) -> str:
    specification, plan = campaign.specification, campaign.plan
    days = specification.source_range
    return f"{', '.join(plan.targets)} {days.start}..{days.end}: {specification.reason.change}"
