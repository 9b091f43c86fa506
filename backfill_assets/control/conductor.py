"""The conductor takes a launched campaign its next step; the gatekeeper lets its batches in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Protocol, assert_never

from backfill_assets.campaign.load import drift_of
from backfill_assets.campaign.plan import StepKind
from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import (
    CAMPAIGN_TAG,
    WORKING,
    Action,
    Admitted,
    Campaign,
    Decision,
    Halts,
    JournalEntry,
    Phase,
    Traffic,
    admit,
)
from backfill_assets.control.figures import Workload
from backfill_assets.core.canonical import canonical_json, from_json
from backfill_assets.core.days import ONE_DAY, format_days
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import LOCK_WAIT, UNIT_TAG, Attempt, AttemptState, UnitState, Work, shown_days
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.evidence.readiness import MOVED, Blocker, DayBlocker
from backfill_assets.ledger.open import Ledger
from backfill_assets.release.publish import Publisher
from backfill_assets.system import Clock


class LiveRuns(Protocol):
    """The live pipeline, seen from a backfill that yields to it."""

    def active(self) -> tuple[str, ...]:
        """Ids of the live runs that are at work or in the queue."""
        ...


REFUSED: Final = "refused"
"""Key of the detail of an entry `waits`: the batch that a run was told to halt the campaign over."""
_BEGINNINGS = frozenset({Action.launched, Action.resumed})


@dataclass(frozen=True)
class Batch:
    """Days of one layer of a dataset that are worked on in one go."""

    dataset: str
    days: tuple[dt.date, ...]
    layer: Layer = Layer.shadow


@dataclass(frozen=True)
class Gatekeeper:
    """Asks the gate with what is true now; knobs, phase and budget are read anew each time."""

    ledger: Ledger
    catalog: Catalog
    clock: Clock
    live: LiveRuns
    workload: Workload

    def ask(self, campaign_id: str, batch: Batch | None = None) -> Decision:
        """Whether the campaign may start a batch (or any, if none is named) now.

        Raises:
            CampaignError: there is no such campaign.
        """
        campaign = self.ledger.campaign(campaign_id)
        return admit(campaign, self.traffic(campaign, batch))

    def begin(self, campaign_id: str, batch: Batch, run: str, lease: dt.timedelta) -> Attempt | Decision:
        """Start a batch if the gate is open; of two that ask at once the second sees the first at work.

        What it will read is charged at once, so that it counts even if its worker dies.

        Raises:
            CampaignError: there is no such campaign.
            UnitError: the days are not the campaign's.
        """
        with self.ledger.lock(f"gate:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            decision = admit(campaign, self.traffic(campaign, batch))
            if not isinstance(decision, Admitted):
                return decision
            attempt = self.ledger.start_attempt(campaign.unit, batch.dataset, batch.days, run, lease)
            work = Work(bytes_read=self._bytes(batch), layer=batch.layer)
            self.ledger.charge(attempt.number, work)
            return replace(attempt, **vars(work))

    def traffic(self, campaign: Campaign, batch: Batch | None = None) -> Traffic:
        """What goes on around the campaign now."""
        now = self.clock.now()
        attempts = self.ledger.attempts(campaign.unit) if campaign.unit else ()
        begun = [entry.at for entry in self.ledger.journal(campaign.id) if entry.action in _BEGINNINGS]
        zone = campaign.specification.zone
        midnight = dt.datetime.combine(now.astimezone(zone).date(), dt.time(), zone)
        return Traffic(
            now=now,
            last_batch=max([campaign.created_at, *begun, *(a.started_at for a in attempts)]),
            live_runs=self.live.active(),
            in_flight=sum(a.state is AttemptState.running and a.lease_until > now for a in attempts),
            bytes_today=sum(a.bytes_read for a in attempts if a.started_at >= midnight),
            next_bytes=self._bytes(batch) if batch else 0,
            spent=sum((a.spent(now) for a in attempts), dt.timedelta(0)),
            drift=drift_of(campaign, self.catalog.code),
        )

    def _bytes(self, batch: Batch) -> int:
        return self.workload.bytes_read(batch.dataset, batch.days, batch.layer)


@dataclass(frozen=True)
class BackfillRequest:
    """A native backfill to be launched: layers by dataset over some days, with title, description and run tags."""

    layers: Mapping[str, tuple[Layer, ...]]
    days: tuple[dt.date, ...]
    title: str
    description: str
    tags: Mapping[str, str]


class Backfills(Protocol):
    """The scheduler's native backfills, of one campaign at a time."""

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill; its id."""
        ...

    def active(self, campaign: str) -> tuple[str, ...]:
        """Ids of the campaign's backfills that are not over."""
        ...

    def cancel(self, campaign: str) -> int:
        """Cancel what is left of the campaign's backfills, queued runs included; how many backfills that were."""
        ...

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        """What the newest backfill of the campaign failed of, in words; empty unless it is over and a run of it failed.

        Runs in `but` are left out: they gave up before a shut gate.
        """
        ...


Notification = Callable[[Campaign, Notice, str], None]
"""Sends a notice, if the specification asks for it; never fails."""

_RESTS = frozenset({Action.validated, Action.stale})
"""After these nothing is launched until somebody resumes."""
STEPS = _RESTS | {Action.launched, Action.resumed, Action.canaries_passed, Action.backfill, Action.waits}
CONDUCTOR = "the conductor"


@dataclass(frozen=True)
class _Since:
    """The last step of a campaign, whether that is a backfill, and the runs of it that gave up before a shut gate.

    `refused` is the newest batch of theirs over which the gate would have halted the campaign.
    """

    last: Action | None
    ended: bool
    waits: frozenset[str]
    refused: Batch | None = None


@dataclass(frozen=True)
class Conductor:
    """Launches what is due, notices what has passed, stops what has failed; every step may be repeated."""

    ledger: Ledger
    clock: Clock
    publisher: Publisher
    gatekeeper: Gatekeeper
    backfills: Backfills
    notify: Notification

    def waiting(self) -> tuple[str, ...]:
        """The campaigns that are launched and whose unit is open: the ones that may have a step to take."""
        units = {unit.id for unit in self.ledger.units(states={UnitState.open})}
        return tuple(campaign.id for campaign in self.ledger.campaigns() if campaign.unit in units)

    def conduct(self, campaign_id: str) -> str:
        """Take one campaign its next step; what was done, in words, or nothing.

        Raises:
            CampaignError: there is no such campaign.
        """
        # One at a time, or two would launch the same days.
        with self.ledger.lock(f"conduct:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            if not campaign.unit or self.ledger.unit(campaign.unit).state is not UnitState.open:
                return ""
            if campaign.phase in WORKING:
                return self._go_on(campaign)
            return self._clear(campaign)

    def halt(self, campaign_id: str, reason: str, entries: int) -> None:
        """Stop a campaign for what a batch has found; its journal had so many `entries` when the batch began.

        One that is paused, stopped or over already stays as it is. So does one that was resumed since: whoever resumed it has
        mended the cause, and the batch has not seen that yet.

        Raises:
            CampaignError: there is no such campaign, or somebody else changes it at this moment.
        """
        campaign = self.ledger.campaign(campaign_id)
        resumed = any(entry.action is Action.resumed for entry in self.ledger.journal(campaign_id)[entries:])
        if campaign.phase in WORKING and not resumed:
            self._stop(campaign, reason)

    def blockers(self, campaign: Campaign) -> tuple[DayBlocker, ...]:
        """What the campaign's present step still lacks: of the canaries only, or of all days."""
        blockers, step = self.publisher.blockers(campaign.unit), campaign.step
        if step.kind is not StepKind.canary:
            return blockers
        canaries = frozenset(step.days)
        return tuple(blocker for blocker in blockers if blocker.day in canaries)

    def _go_on(self, campaign: Campaign) -> str:
        since = self._since(campaign)
        # With the batch that a run was refused: only with its bytes a budget may be spent, and a next run would fare no better.
        decision = self.gatekeeper.ask(campaign.id, since.refused)
        if self.backfills.active(campaign.id):
            if isinstance(decision, Halts):
                return self._stop(campaign, decision.reason)
            # A run has given up before the shut gate: those behind it in the queue would only do the same.
            return self._clear(campaign) if since.waits else ""
        if since.last in _RESTS:
            # What goes stale from here on is for somebody to look at, and to resume.
            return ""
        blockers = self.blockers(campaign)
        missing = [blocker for blocker in blockers if blocker.reason not in MOVED]
        if not blockers or (since.ended and not missing and campaign.step.kind is StepKind.canary):
            return self._passed(campaign)
        if isinstance(decision, Halts):
            return self._stop(campaign, decision.reason)
        if since.ended and (why := self._why_ended(campaign, missing, since)):
            return self._stop(campaign, why)
        if since.ended and not missing:
            return self._stale(campaign, blockers)
        return self._launch(campaign, blockers) if isinstance(decision, Admitted) else ""

    def _passed(self, campaign: Campaign) -> str:
        match campaign.step.kind:
            case StepKind.canary:
                return self._canaries_passed(campaign)
            case StepKind.rest | StepKind.approve | StepKind.publish | StepKind.sign_off | StepKind.cleanup:
                # With the rest the last step has passed that is the conductor's: all others wait for people.
                return self._validated(campaign)
            case StepKind.announce | StepKind.open_unit:
                raise CampaignError(
                    f"campaign {campaign.id} was never launched; do that with: backfill launch {campaign.id}"
                )
            case _:
                assert_never(campaign.step.kind)

    def _canaries_passed(self, campaign: Campaign) -> str:
        then = replace(campaign, phase=Phase.paused if campaign.canary_only else Phase.running)
        reason = "only the canaries were asked for; go on with: backfill resume" if campaign.canary_only else ""
        days = format_days(campaign.step.days)
        changed = self.ledger.change_campaign(
            then, {Phase.canary}, self._entry(campaign, Action.canaries_passed, reason, days=days)
        )
        text = f"{campaign.id}: the canaries have passed ({days})"
        return text if campaign.canary_only else f"{text}; {self._go_on(changed)}"

    def _validated(self, campaign: Campaign) -> str:
        evidence = self.publisher.evidence_hash(campaign.unit)
        noted = [e.detail.get("evidence") for e in self.ledger.journal(campaign.id) if e.action is Action.validated]
        # Noted again after a `resume` that found nothing to do: what goes stale from here on is left alone as before.
        self.ledger.note(self._entry(campaign, Action.validated, evidence=evidence))
        if noted[-1:] == [evidence]:
            return ""
        text = f"{campaign.id} is validated; evidence {evidence}"
        self.notify(campaign, Notice.validated, text)
        return text

    def _launch(self, campaign: Campaign, blockers: Sequence[DayBlocker]) -> str:
        missing = {(blocker.dataset, blocker.day) for blocker in blockers}
        planned = {dataset.name: dataset.layers for dataset in campaign.plan.datasets}
        wanted = {name for name, _ in missing}
        # What is built from a dataset that is built anew is stale then: it comes along.
        wanted |= set(self.gatekeeper.catalog.downstream_of(wanted))
        names = [name for name in planned if name in wanted]
        days = self._with_followers({day for _, day in missing}, campaign, names)
        what = "canary" if campaign.step.kind is StepKind.canary else "day"
        request = BackfillRequest(
            layers={name: planned[name] for name in names},
            days=days,
            title=f"{campaign.id}: {number_of(len(days), what)}",
            description=campaign.specification.reason.change,
            tags={UNIT_TAG: campaign.unit, CAMPAIGN_TAG: campaign.id},
        )
        backfill = self.backfills.launch(request)
        entry = self._entry(campaign, Action.backfill, backfill=backfill, datasets=names, days=format_days(days))
        self.ledger.note(entry)
        return f"{campaign.id}: launched backfill {backfill} over {', '.join(names)} {format_days(days)}"

    def _with_followers(self, days: set[dt.date], campaign: Campaign, names: Sequence[str]) -> tuple[dt.date, ...]:
        """The days, and those of the campaign that look back at them."""
        datasets = [self.gatekeeper.catalog.dataset(name).dataset for name in names]
        reach = max((u.lookback_days for d in datasets for above, u in d.upstream.items() if above in names), default=0)
        behind = {day + i * ONE_DAY for day in days for i in range(1, reach + 1)}
        return tuple(sorted(days | (behind & set(campaign.plan.days))))

    def _stop(self, campaign: Campaign, reason: str) -> str:
        stopped = replace(campaign, phase=Phase.stopped)
        self.ledger.change_campaign(stopped, WORKING, self._entry(campaign, Action.stopped, reason))
        self.notify(campaign, Notice.stopped, f"{campaign.id} is stopped: {reason}")
        self._clear(stopped)
        return f"{campaign.id} is stopped: {reason}"

    def _clear(self, campaign: Campaign) -> str:
        """Take what is left of the campaign out of the run queue, once the batches at work have ended."""
        if self.gatekeeper.traffic(campaign).in_flight or not self.backfills.active(campaign.id):
            return ""
        cancelled = self.backfills.cancel(campaign.id)
        return (
            f"{campaign.id} is {campaign.phase.value}: cancelled {number_of(cancelled, 'backfill')}"
            if cancelled
            else ""
        )

    def _why_ended(self, campaign: Campaign, missing: Sequence[DayBlocker], since: _Since) -> str:
        """Why the backfill that has ended must not be launched again; nothing if only the gate was shut."""
        failed = [blocker for blocker in missing if blocker.reason is Blocker.failed]
        if failed:
            days = {(blocker.dataset, blocker.day) for blocker in failed}
            return f"{number_of(len(days), 'day')} failed checks: {shown_days(days)}. First: {failed[0].detail}"
        reason = self.backfills.failure(campaign.id, but=since.waits)
        if reason or since.waits or not missing:
            return reason
        days = {(blocker.dataset, blocker.day) for blocker in missing}
        return f"its backfill ended, but {shown_days(days)} still lack evidence (was it cancelled in Dagster?)"

    def _stale(self, campaign: Campaign, blockers: Sequence[DayBlocker]) -> str:
        days = shown_days({(blocker.dataset, blocker.day) for blocker in blockers})
        reason = f"all days have passed, and since then something behind {days} has moved"
        self.ledger.note(self._entry(campaign, Action.stale, reason))
        return f"{campaign.id}: {reason}; go on with: backfill resume {campaign.id}"

    def _since(self, campaign: Campaign) -> _Since:
        """What has happened since the newest backfill was launched, or since it became due."""
        steps = [e for e in self.ledger.journal(campaign.id) if e.action in STEPS]
        last = next((e.action for e in reversed(steps) if e.action is not Action.waits), None)
        waits = list(takewhile(lambda entry: entry.action is Action.waits, reversed(steps)))
        runs = frozenset(str(entry.detail.get("run", "")) for entry in waits)
        refused = (
            from_json(Batch, canonical_json(found))
            for entry in waits
            if isinstance(found := entry.detail.get(REFUSED), Mapping)
        )
        return _Since(last, last is Action.backfill, runs, next(refused, None))

    def _entry(self, campaign: Campaign, action: Action, reason: str = "", **detail: object) -> JournalEntry:
        return JournalEntry(campaign.id, self.clock.now(), CONDUCTOR, action, reason, detail)
