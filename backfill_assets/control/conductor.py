"""The conductor takes the next step of launched campaigns; the gatekeeper decides whether a batch may start."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, Protocol, assert_never

from backfill_assets.campaign.gate import Admitted, Decision, Halts, Traffic, admit, failure_of_spark
from backfill_assets.campaign.load import drift_of
from backfill_assets.campaign.plan import StepKind
from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import BEGINNINGS, CAMPAIGN_TAG, WORKING, Action, Campaign, JournalEntry, Phase
from backfill_assets.control.figures import FigureReader
from backfill_assets.core.canonical import canonical_json, from_json
from backfill_assets.core.days import ONE_DAY, format_days
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import LOCK_WAIT, UNIT_TAG, Attempt, AttemptState, UnitState, Work, shown_days
from backfill_assets.evidence.readiness import MOVED, Blocker, DayBlocker
from backfill_assets.release.publish import Publisher
from backfill_assets.warehouse import OnWarehouse

REFUSED: Final = "refused"
"""Key in the detail of a `waits` entry: the batch that the gate did not let start."""


@dataclass(frozen=True)
class Batch:
    """Days of one layer of a dataset that are built together."""

    dataset: str
    days: tuple[dt.date, ...]
    layer: Layer = Layer.shadow


@dataclass(frozen=True)
class Gatekeeper(OnWarehouse):
    """Asks the gate with the current state; knobs, phase and budget are read again each time.

    `live_runs` gives the ids of the live runs that are running or queued, which a backfill may have to wait for.
    """

    live_runs: Callable[[], tuple[str, ...]]

    def ask(self, campaign_id: str, batch: Batch | None = None) -> Decision:
        """Whether the campaign may start a batch (or any, if none is named) now.

        Raises:
            CampaignError: there is no such campaign.
        """
        campaign = self.ledger.campaign(campaign_id)
        return admit(campaign, self.traffic(campaign, batch))

    def begin(
        self, campaign_id: str, batch: Batch, run: str, lease: dt.timedelta, beside: Collection[int] = ()
    ) -> Attempt | Decision:
        """Start a batch if the gate is open; if two ask at the same time, the second sees the first as running.

        The bytes that it will read are recorded with its start, so that they count even if its worker dies. `beside` are the
        attempts that the run works on at this moment; its other ones are lost.

        Raises:
            CampaignError: there is no such campaign.
            UnitError: the days are not the campaign's.
        """
        with self.ledger.lock(f"gate:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            decision = admit(campaign, self.traffic(campaign, batch))
            if not isinstance(decision, Admitted):
                return decision
            work = Work(bytes_read=self._bytes(batch), layer=batch.layer)
            return self.ledger.start_attempt(campaign.unit, batch.dataset, batch.days, run, lease, work, beside)

    def traffic(self, campaign: Campaign, batch: Batch | None = None) -> Traffic:
        """What is running now, and what the campaign has used up."""
        now = self.clock.now()
        attempts = self.ledger.attempts(campaign.unit) if campaign.unit else ()
        journal = self.ledger.journal(campaign.id)
        begun = [entry.at for entry in journal if entry.action in BEGINNINGS]
        zone = campaign.specification.zone
        midnight = dt.datetime.combine(now.astimezone(zone).date(), dt.time(), zone)
        return Traffic(
            now=now,
            last_batch=max([campaign.created_at, *begun, *(a.started_at for a in attempts)]),
            live_runs=self.live_runs(),
            in_flight=sum(a.state is AttemptState.running and a.lease_until > now for a in attempts),
            bytes_today=sum(a.bytes_read for a in attempts if a.started_at >= midnight),
            next_bytes=self._bytes(batch) if batch else 0,
            spent=sum((a.spent(now) for a in attempts), dt.timedelta(0)),
            drift=drift_of(campaign, self.catalog.code),
            failure=failure_of_spark(journal, (a for a in attempts if a.state is AttemptState.done)),
        )

    def _bytes(self, batch: Batch) -> int:
        figures = FigureReader(self.warehouse).read(batch.dataset, batch.days, {}, landing=False)
        return figures.bytes_read(batch.days, batch.layer)


@dataclass(frozen=True)
class BackfillRequest:
    """A native backfill to launch: layers by dataset, days, title, description, run tags and run config."""

    layers: Mapping[str, Sequence[Layer]]
    days: tuple[dt.date, ...]
    title: str = ""
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    run_config: Mapping[str, object] = field(default_factory=dict)


class Backfills(Protocol):
    """The scheduler's native backfills of a campaign."""

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill; returns its id."""
        ...

    def active(self, campaign: str) -> tuple[str, ...]:
        """Ids of the campaign's unfinished backfills."""
        ...

    def cancel(self, campaign: str) -> int:
        """Cancel the campaign's unfinished backfills and their queued runs; returns the number of backfills."""
        ...

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        """Why the newest backfill of the campaign failed; empty unless it is finished and one of its runs failed.

        Runs in `but` are ignored: they ended because the gate was closed.
        """
        ...


SendNotice = Callable[[Campaign, Notice, str], None]
"""Sends a notice if the specification asks for it; never fails."""

_RESTS = frozenset({Action.validated, Action.stale})
"""After these actions nothing is launched until a user resumes."""
STEPS = _RESTS | {Action.launched, Action.resumed, Action.canaries_passed, Action.backfill, Action.waits}
CONDUCTOR = "the conductor"


@dataclass(frozen=True)
class Since:
    """The last step of a campaign, whether that is a backfill, and its runs that ended because the gate was closed.

    `refused` is the newest batch that the gate did not let start, or in which Spark failed.
    """

    last: Action | None
    ended: bool
    waits: frozenset[str]
    refused: Batch | None = None


def since_launch(journal: Sequence[JournalEntry]) -> Since:
    """What has happened since the newest backfill was launched or became due."""
    steps = [entry for entry in journal if entry.action in STEPS | {Action.set}]
    last = next((e.action for e in reversed(steps) if e.action not in {Action.waits, Action.set}), None)
    newest = list(takewhile(lambda entry: entry.action in {Action.waits, Action.set}, reversed(steps)))
    runs = frozenset(str(entry.detail.get("run", "")) for entry in newest if entry.action is Action.waits)
    # A batch from before the knobs were set would have other days now.
    waits = takewhile(lambda entry: entry.action is Action.waits, newest)
    refused = (
        from_json(Batch, canonical_json(found))
        for entry in waits
        if isinstance(found := entry.detail.get(REFUSED), Mapping)
    )
    return Since(last, last is Action.backfill, runs, next(refused, None))


@dataclass(frozen=True)
class Conductor(OnWarehouse):
    """Launches what is due, records what has passed, stops what has failed; every step is safe to repeat."""

    publisher: Publisher
    gatekeeper: Gatekeeper
    backfills: Backfills
    notify: SendNotice

    def waiting(self) -> tuple[str, ...]:
        """The launched campaigns with an open unit: those that may have a next step."""
        units = {unit.id for unit in self.ledger.units(states={UnitState.open})}
        return tuple(campaign.id for campaign in self.ledger.campaigns() if campaign.unit in units)

    def conduct(self, campaign_id: str) -> str:
        """Take the next step of a campaign; returns a sentence on what was done, or nothing.

        Raises:
            CampaignError: there is no such campaign.
        """
        # One process at a time: two would launch the same days.
        with self.ledger.lock(f"conduct:{campaign_id}", LOCK_WAIT):
            campaign = self.ledger.campaign(campaign_id)
            if not campaign.unit or self.ledger.unit(campaign.unit).state is not UnitState.open:
                return ""
            if campaign.phase in WORKING:
                return self._continue(campaign)
            return self._clear(campaign)

    def halt(self, campaign_id: str, reason: str, entries: int) -> None:
        """Stop a campaign because of what a batch found; `entries` is the length of its journal when the batch began.

        A campaign that is already paused, stopped or finished stays as it is. So does one that was resumed since: the user
        who resumed it has fixed the cause, which the batch has not seen yet.

        Raises:
            CampaignError: there is no such campaign, or another process is changing it.
        """
        campaign = self.ledger.campaign(campaign_id)
        resumed = any(entry.action is Action.resumed for entry in self.ledger.journal(campaign_id)[entries:])
        if campaign.phase in WORKING and not resumed:
            self._stop(campaign, reason)

    def blockers(self, campaign: Campaign) -> tuple[DayBlocker, ...]:
        """What blocks the campaign's current step: of the canaries only, or of all days."""
        blockers, step = self.publisher.blockers(campaign.unit), campaign.step
        if step.kind is not StepKind.canary:
            return blockers
        canaries = frozenset(step.days)
        return tuple(blocker for blocker in blockers if blocker.day in canaries)

    def _continue(self, campaign: Campaign) -> str:
        since = since_launch(self.ledger.journal(campaign.id))
        # Ask with the refused batch: the budget may be spent only with its bytes, and the next run would end the same way.
        decision = self.gatekeeper.ask(campaign.id, since.refused)
        if self.backfills.active(campaign.id):
            if isinstance(decision, Halts):
                return self._stop(campaign, decision.reason)
            # A run has ended because the gate was closed: the queued runs would do the same.
            return self._clear(campaign) if since.waits else ""
        if since.last in _RESTS:
            # A user has to look at what goes stale from here on, and to resume.
            return ""
        blockers = self.blockers(campaign)
        unpassed = [blocker for blocker in blockers if blocker.reason not in MOVED]
        if not blockers or (since.ended and not unpassed and campaign.step.kind is StepKind.canary):
            return self._passed(campaign)
        if isinstance(decision, Halts):
            return self._stop(campaign, decision.reason)
        if since.ended and (why := self._why_ended(campaign, unpassed, since)):
            return self._stop(campaign, why)
        if since.ended and not unpassed:
            return self._stale(campaign, blockers)
        return self._launch(campaign, blockers) if isinstance(decision, Admitted) else ""

    def _passed(self, campaign: Campaign) -> str:
        match campaign.step.kind:
            case StepKind.canary:
                return self._canaries_passed(campaign)
            case StepKind.rest | StepKind.approve | StepKind.publish | StepKind.sign_off | StepKind.cleanup:
                # The rest is the conductor's last step: all later ones wait for people.
                return self._validated(campaign)
            case StepKind.announce | StepKind.open_unit:
                raise CampaignError(
                    f"campaign {campaign.id} was never launched; launch it with: backfill launch {campaign.id}"
                )
            case _:
                assert_never(campaign.step.kind)

    def _canaries_passed(self, campaign: Campaign) -> str:
        then = replace(campaign, phase=Phase.paused if campaign.canary_only else Phase.running)
        reason = f"only canaries were asked for; go on: backfill resume {campaign.id}" if campaign.canary_only else ""
        days = format_days(campaign.step.days)
        changed = self.ledger.change_campaign(
            then, {Phase.canary}, self._entry(campaign, Action.canaries_passed, reason, days=days)
        )
        text = f"{campaign.id}: the canaries have passed ({days})"
        return text if campaign.canary_only else f"{text}; {self._continue(changed)}"

    def _validated(self, campaign: Campaign) -> str:
        evidence = self.publisher.evidence_hash(campaign.unit)
        noted = [e.detail.get("evidence") for e in self.ledger.journal(campaign.id) if e.action is Action.validated]
        # Also after a `resume` that found nothing to do: what goes stale from here on is left to the users again.
        self.ledger.note(self._entry(campaign, Action.validated, evidence=evidence))
        if noted[-1:] == [evidence]:
            return ""
        text = f"{campaign.id} is validated; evidence {evidence}"
        self.notify(campaign, Notice.validated, text)
        return text

    def _launch(self, campaign: Campaign, blockers: Sequence[DayBlocker]) -> str:
        blocked = {(blocker.dataset, blocker.day) for blocker in blockers}
        planned = {dataset.name: dataset.layers for dataset in campaign.plan.datasets}
        wanted = {name for name, _ in blocked}
        # Datasets that are built from a rebuilt one become stale: they are built as well.
        wanted |= set(self.catalog.downstream_of(wanted))
        names = [name for name in planned if name in wanted]
        days = self._with_followers({day for _, day in blocked}, campaign, names)
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
        """The days, and the days of the campaign that look back at them."""
        datasets = [self.catalog.dataset(name).dataset for name in names]
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
        """Remove the campaign's remaining runs from the run queue once its running batches have ended."""
        if self.gatekeeper.traffic(campaign).in_flight or not self.backfills.active(campaign.id):
            return ""
        cancelled = self.backfills.cancel(campaign.id)
        return (
            f"{campaign.id} is {campaign.phase.value}: cancelled {number_of(cancelled, 'backfill')}"
            if cancelled
            else ""
        )

    def _why_ended(self, campaign: Campaign, unpassed: Sequence[DayBlocker], since: Since) -> str:
        """Why the ended backfill must not be launched again; empty if only the gate was closed."""
        failed = [blocker for blocker in unpassed if blocker.reason is Blocker.failed]
        if failed:
            days = {(blocker.dataset, blocker.day) for blocker in failed}
            return f"{number_of(len(days), 'day')} failed checks: {shown_days(days)}. First: {failed[0].detail}"
        reason = self.backfills.failure(campaign.id, but=since.waits)
        if reason or since.waits or not unpassed:
            return reason
        days = {(blocker.dataset, blocker.day) for blocker in unpassed}
        return f"its backfill ended, but {shown_days(days)} still need new evidence (was it cancelled in Dagster?)"

    def _stale(self, campaign: Campaign, blockers: Sequence[DayBlocker]) -> str:
        days = shown_days({(blocker.dataset, blocker.day) for blocker in blockers})
        reason = f"all days have passed, but inputs, upstreams or published rows of {days} have changed since then"
        self.ledger.note(self._entry(campaign, Action.stale, reason))
        return f"{campaign.id}: {reason}; go on with: backfill resume {campaign.id}"

    def _entry(self, campaign: Campaign, action: Action, reason: str = "", **detail: object) -> JournalEntry:
        return JournalEntry(campaign.id, self.clock.now(), CONDUCTOR, action, reason, detail)
