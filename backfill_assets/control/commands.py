"""Control: what operators do to a campaign while it runs. Everything is recorded, and acts within one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from backfill_assets.campaign.load import drift_of, load_specification
from backfill_assets.campaign.plan import Days, Plan, StepKind
from backfill_assets.campaign.specification import Notice, Specification
from backfill_assets.campaign.state import CHANGED, WORKING, Action, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.control.conductor import Conductor, Notification
from backfill_assets.control.planner import refuse_claimed
from backfill_assets.core.errors import CampaignError, SpecificationError
from backfill_assets.core.unit import LOCK_WAIT, OPENED_BY, Launch, ReleaseMode, Unit, UnitState
from backfill_assets.dataset.yaml import shown_path
from backfill_assets.ledger.open import last_step
from backfill_assets.warehouse import OnWarehouse

_RESUMABLE = WORKING | {Phase.paused, Phase.stopped}
_OVER = {
    UnitState.published: (Action.published, "Sign it off (backfill sign-off {id}), or undo it with: backfill rollback"),
    UnitState.rolled_back: (
        Action.rolled_back, "Publish it again (backfill publish {id}), or plan the days under another backfill_id"
    ),
    UnitState.discarded: (Action.discarded, "Plan its days under another backfill_id"),
}  # fmt: skip
"""How a unit that is over got there, and what can be done about it."""


@dataclass(frozen=True)
class Control(OnWarehouse):
    """Launch, pause, resume, stop, and the knobs; of two operators at once one wins, the other is told who did what."""

    conductor: Conductor
    make_plan: Callable[[Specification, Days | None], Plan]
    notify: Notification

    def launch(self, campaign_id: str, *, canary_only: bool = False) -> Campaign:
        """Announce the campaign, open its unit, which claims its days, and launch its canaries or all of it.

        Raises:
            CampaignError: there is no such campaign, it was launched before, or its code or specification has moved.
            ClaimedDaysError: days of it belong to another open unit, which is named.
            LedgerError: another launch of it takes too long.
        """
        # Of two at once only the first may announce it.
        with self.ledger.lock(f"launch:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            require_phase(campaign, {Phase.planned}, "launch", self._last(campaign_id))
            if moved := self._drift(campaign):
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
        """Let no further batch start; the batches at work end, queued runs go.

        Raises:
            CampaignError: the campaign is not at work, or its unit is over.
        """
        return self._turn_to(campaign_id, Phase.paused, WORKING, (Action.paused, reason))

    def stop(self, campaign_id: str, reason: str) -> Campaign:
        """Stop a campaign for a cause that has to be mended; like a pause, what has passed stays.

        Raises:
            CampaignError: the campaign is neither at work nor paused, or its unit is over.
        """
        changed = self._turn_to(campaign_id, Phase.stopped, WORKING | {Phase.paused}, (Action.stopped, reason))
        self.notify(changed, Notice.stopped, f"{campaign_id} is stopped by {self.identity.name()}: {reason}")
        return changed

    def resume(self, campaign_id: str, reason: str = "") -> Campaign:
        """Go on with what is missing, failed or stale and nothing else; code and specification as they are now.

        Where they have moved a new plan is frozen, over the same days of the same datasets.

        Raises:
            CampaignError: it was never launched, it is over, its backfill is still at work, or its range was changed.
            SpecificationError: the specification's file cannot be read any more.
        """
        campaign = self._found(campaign_id, _RESUMABLE, "resume")
        if campaign.phase in WORKING and self.conductor.backfills.active(campaign_id):
            raise CampaignError(f"campaign {campaign_id} is {campaign.phase.value}: its backfill is at work")
        changed = self._replanned(campaign)
        changed = replace(changed, phase=Phase.running, canary_only=False)
        missing = {blocker.day for blocker in self.conductor.blockers(changed)}
        if missing & set(changed.plan.canaries):
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
        """Turn the knobs that are named, the other stays as it is; batches that start from now on go by them.

        Raises:
            CampaignError: the campaign is over, a knob is out of its bounds, or somebody else changed the campaign at once.
        """
        allowed = _RESUMABLE | {Phase.planned}
        campaign = self._found(campaign_id, allowed, "set")
        turned = campaign.turned(max_concurrency=max_concurrency, partitions_per_batch=partitions_per_batch)
        if turned.knobs.problem:
            raise CampaignError(f"campaign {campaign_id}: {turned.knobs.problem}")
        entry = self._entry(campaign, Action.set, reason, **campaign.knobs.turned_to(turned.knobs))
        return self.ledger.change_campaign(turned, allowed, entry)

    def discard(self, campaign_id: str, reason: str = "") -> Unit:
        """Give the campaign's open unit up: nothing of it is published, its days are free, its backfills are cancelled.

        May be repeated after a crash. A campaign whose launch was not completed can be launched again.

        Raises:
            CampaignError: there is no such campaign, or it has no open unit (any more); says who brought it there.
        """
        campaign = self.ledger.campaign(campaign_id)
        # Not while the conductor takes a step: it might launch another backfill right after these were cancelled.
        with self.ledger.lock(f"conduct:{campaign_id}", LOCK_WAIT):
            unit = self._to_discard(campaign)
            if unit.state is UnitState.open:
                unit = self.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
            self.ledger.note(self._entry(campaign, Action.discarded, reason, unit=unit.id))
            if self.conductor.backfills.active(campaign_id):
                self.conductor.backfills.cancel(campaign_id)
        return unit

    def _to_discard(self, campaign: Campaign) -> Unit:
        told = [entry for entry in self.ledger.journal(campaign.id) if entry.action is Action.discarded]
        known = {str(entry.detail.get("unit")) for entry in told}
        wanted = {UnitState.open, UnitState.discarded}
        for unit in self.ledger.units(states=wanted):
            if unit.campaign == campaign.id and unit.id not in known:
                return unit
        done = f" ({told[-1]})" if told else ""
        raise CampaignError(
            f"campaign {campaign.id} has no open unit{done}: there is nothing to give up. See: backfill status {campaign.id}"
        )

    def _turn_to(self, campaign_id: str, phase: Phase, allowed: Collection[Phase], why: tuple[Action, str]) -> Campaign:
        action, reason = why
        campaign = self._found(campaign_id, allowed, phase.value)
        entry = self._entry(campaign, action, reason)
        changed = self.ledger.change_campaign(replace(campaign, phase=phase), allowed, entry)
        self.conductor.conduct(campaign_id)
        return changed

    def _found(self, campaign_id: str, allowed: Collection[Phase], action: str) -> Campaign:
        """The campaign, in a phase in which the action is possible, and with something left to act upon."""
        campaign, last = self.ledger.campaign(campaign_id), self._last(campaign_id)
        require_phase(campaign, allowed, action, last)
        unit = self.ledger.unit(campaign.unit) if campaign.unit else None
        if unit is not None and unit.state is not UnitState.open:
            done, remedy = _OVER[unit.state]
            told = [entry for entry in self.ledger.journal(campaign_id) if entry.action is done]
            by = f" ({told[-1]})" if told else ""
            raise CampaignError(
                f"campaign {campaign_id} is {done.value}{by}: nothing is left to build, and {action} is not possible any more. "
                f"{remedy.format(id=campaign_id)}; see: backfill status {campaign_id}"
            )
        return campaign

    def _begun(self, campaign: Campaign) -> Campaign:
        """The campaign once the steps of its plan are taken up to the first that builds, which is the conductor's."""
        for step in campaign.plan.steps:
            match step.kind:
                case StepKind.announce:
                    # Before the claim: from there on the live pipeline meets it.
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
        # A launch that died finds its unit again; after that was given up, the next launch has one of its own.
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
            # A launch that died, or lost against a new plan, has opened it over what was planned then.
            raise CampaignError(
                f"campaign {campaign.id}: its unit {unit.id} was opened over an older plan; give it up and launch again: "
                f"backfill discard {unit.id}"
            )
        return unit

    def _replanned(self, campaign: Campaign) -> Campaign:
        """The campaign with the plan and the contract that its code and its specification's file now give."""
        if not self._drift(campaign):
            return campaign
        specification = self._specification(campaign)
        # The canaries stay: those that have passed are no reason to build others.
        plan = self.make_plan(specification, campaign.plan.canaries)
        if plan.targets != campaign.plan.targets:
            file = shown_path(Path(campaign.file))
            raise CampaignError(
                f"campaign {campaign.id}: {file} now names other days or datasets than were launched. Change "
                f"them back, or give the unit up (backfill discard {campaign.unit}) and plan under another backfill_id"
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

    def _drift(self, campaign: Campaign) -> str:
        return drift_of(campaign, self.catalog.code)

    def _last(self, campaign_id: str) -> JournalEntry | None:
        return last_step(self.ledger, campaign_id)

    def _entry(self, campaign: Campaign, action: Action, reason: str = "", **detail: object) -> JournalEntry:
        return JournalEntry(campaign.id, self.clock.now(), self.identity.name(), action, reason, detail)


def _moved(before: Campaign, after: Campaign) -> dict[str, object]:
    """What of the plan and of the specification is another one now: who may approve what is no detail."""
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
