"""Batches of a run: gate, lease, work, one checkpoint each."""

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import dagster as dg
from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.campaign.state import (
    CAMPAIGN_TAG,
    WORKING,
    Action,
    Admitted,
    Decision,
    Halts,
    JournalEntry,
    Shut,
    Waits,
)
from backfill_assets.control.conductor import REFUSED, Batch, Conductor, Gatekeeper
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import BackfillError, CampaignError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import Attempt, AttemptState, Unit, UnitState, Work
from backfill_assets.ledger.open import Ledger
from backfill_assets.orchestration.backfills import desk_of
from backfill_assets.orchestration.launches import Context, work_tag
from backfill_assets.orchestration.names import asset_key
from backfill_assets.orchestration.release_events import evaluations
from dagster_batched_events import batched_events


@contextlib.contextmanager
def kept_lease(ledger: Ledger, attempt: Attempt, lease: dt.timedelta) -> Iterator[None]:
    """Renew the lease in the background; a step that fails ends its attempt.

    A lease that was lost is not fought for: the ledger refuses the evidence of such an attempt.
    """
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease.total_seconds() / 4):
            with contextlib.suppress(BackfillError):
                ledger.renew(attempt.number, lease)

    keeper = threading.Thread(target=renew, name=f"lease-{attempt.number}", daemon=True)
    keeper.start()
    try:
        ledger.renew(attempt.number, lease)
        yield
    except BaseException:
        ledger.end_attempt(attempt.number, AttemptState.failed)
        raise
    finally:
        ended.set()
        keeper.join()


_LOOK_SECONDS = 2.0
Days = tuple[dt.date, ...]


def campaign_of(context: dg.AssetExecutionContext) -> str | None:
    """The campaign that a run works for, if any."""
    return context.run.tags.get(CAMPAIGN_TAG)


@contextmanager
def _at_work(
    context: dg.AssetExecutionContext, application: Application, attempt: Attempt, step: str
) -> Iterator[SparkSession]:
    """A session of the campaign's own, and the attempt's lease kept, as long as the batch is at work."""
    execution = application.ledger.campaign(context.run.tags[CAMPAIGN_TAG]).specification.execution
    lease = kept_lease(application.ledger, attempt, application.settings.lease)
    with lease, application.session(work_tag(context, step, attempt.dataset), execution) as spark:
        yield spark


def in_batches(
    context: dg.AssetExecutionContext, application: Application, batch: Batch
) -> Iterator[tuple[SparkSession, Days]]:
    """The days of raw or staging in batches, each let in by the campaign's gate and counted; all at once without one.

    Days of a campaign that are there already, from what is delivered now, pass no gate: a run that is launched again goes
    on behind what earlier ones have done, however few batches are let in at a time.

    Raises:
        dagster.Failure: the gate stays shut.
    """
    campaign, days = campaign_of(context), batch.days
    if campaign is None:
        with application.session(work_tag(context, batch.layer, batch.dataset)) as spark:
            yield spark, days
        return
    if application.ledger.unit(application.ledger.campaign(campaign).unit).state is not UnitState.open:
        return
    door, ledger, road = _door(context, application, campaign), application.ledger, application.road
    lacking = road.days_to_land if batch.layer == "raw" else road.days_to_stage
    while days:
        size = ledger.campaign(campaign).knobs.partitions_per_batch
        now, days = days[:size], days[size:]
        todo = lacking(batch.dataset, now)
        if not todo:
            continue
        attempt = door.wait(replace(batch, days=todo))
        with _at_work(context, application, attempt, batch.layer) as spark:
            yield spark, todo
            work = Work(bytes_read=attempt.bytes_read, waited=door.waited, layer=batch.layer)
            ledger.end_attempt(attempt.number, AttemptState.done, work)


def build_in_batches(
    context: dg.AssetExecutionContext, application: Application, name: str, unit: Unit, days: Days
) -> Days:
    """Build and check the days that lack good evidence, batch by batch; the days that were built.

    Raises:
        dagster.Failure: the gate stays shut, or days failed blocking checks; what has passed stays, and Dagster is told.
    """
    campaign = campaign_of(context) or ""
    door = _door(context, application, campaign)
    built: list[dt.date] = []
    try:
        while days:
            size = application.ledger.campaign(campaign).knobs.partitions_per_batch
            batch, days = days[:size], days[size:]
            todo = application.road.days_to_build(unit, name, batch)
            if todo:
                attempt = door.wait(Batch(name, todo))
                entries = len(application.ledger.journal(campaign))
                evidence = _build(context, application, door, unit, attempt)
                built += todo
                _stop_on_failure(door.conductor, campaign, name, evidence, entries)
    except dg.Failure:
        _report(context, application, unit, name, built)
        raise
    return tuple(built)


@dataclass
class _Door:
    """The gate as a run stands before it."""

    context: dg.AssetExecutionContext
    application: Application
    campaign: str
    gatekeeper: Gatekeeper
    conductor: Conductor
    waited: dt.timedelta = field(default_factory=dt.timedelta)

    def wait(self, batch: Batch) -> Attempt:
        """Wait until the gate opens; the attempt that the batch began."""
        since = time.monotonic()
        told = ""
        while True:
            answer = self.gatekeeper.begin(self.campaign, batch, self.context.run_id, self.application.settings.lease)
            self.waited = dt.timedelta(seconds=round(time.monotonic() - since, 1))
            if isinstance(answer, Attempt):
                return answer
            if not isinstance(answer, Waits) or self.waited >= self._patience(answer):
                raise self._shut(answer, batch)
            if answer.reason != told:
                told = answer.reason
                self.context.log.info(f"campaign {self.campaign} waits: {told}")
            time.sleep(_LOOK_SECONDS)

    def _patience(self, answer: Waits) -> dt.timedelta:
        # For batches of its own campaign: they will end, and a run that gives up would only be launched again.
        settings = self.application.settings
        return settings.query_timeout if answer.own else settings.gate_wait

    def _shut(self, decision: Decision, batch: Batch) -> dg.Failure:
        reason = "" if isinstance(decision, Admitted) else decision.reason
        if not isinstance(decision, Shut):
            # What halts the campaign is for the conductor to decide: this run may only be of older code than its plan.
            until = decision.until if isinstance(decision, Waits) else None
            detail: dict[str, object] = {"run": self.context.run_id, "until": until.isoformat() if until else ""}
            if isinstance(decision, Halts):
                detail[REFUSED] = batch.to_plain()
            now = self.application.clock.now()
            self.application.ledger.note(JournalEntry(self.campaign, now, "the gate", Action.waits, reason, detail))
        return dg.Failure(
            f"The gate of campaign {self.campaign} is shut: {reason}. The run ends; batches that have passed stay, and what "
            "is missing is launched again when the gate opens (or after: backfill resume, if the campaign was paused or "
            f"stopped). See: backfill status {self.campaign}",
            allow_retries=False,
        )


def _door(context: dg.AssetExecutionContext, application: Application, campaign: str) -> _Door:
    desk = desk_of(application, context.instance)
    return _Door(context, application, campaign, desk.gatekeeper, desk.conductor)


def _build(
    context: dg.AssetExecutionContext, application: Application, door: _Door, unit: Unit, attempt: Attempt
) -> Sequence[DayEvidence]:
    context.log.info(f"unit {unit.id}: batch {attempt.number}: {format_days(attempt.days)}")
    with _at_work(context, application, attempt, "shadow") as spark:
        application.road.build(spark, unit, attempt)
        evidence = application.road.validate(spark, unit, attempt)
        rows = sum(e.measured.shadow.rows for e in evidence)
        work = Work(rows, attempt.bytes_read, door.waited)
        application.ledger.end_attempt(attempt.number, AttemptState.done, work)
    return evidence


def _stop_on_failure(
    conductor: Conductor, campaign: str, name: str, evidence: Collection[DayEvidence], entries: int
) -> None:
    refusals = [verdict for e in evidence for verdict in e.verdicts if verdict.refuses]
    if not refusals:
        return
    failed = {verdict.day for verdict in refusals}
    reason = f"{number_of(len(failed), 'day')} of {name} failed checks ({format_days(failed)}); first: {refusals[0]}"
    with contextlib.suppress(CampaignError):
        # Somebody else has paused or stopped it at this very moment; the days have failed all the same.
        conductor.halt(campaign, reason, entries)
    listed = "\n".join(str(verdict) for verdict in refusals[:20])
    if conductor.ledger.campaign(campaign).phase in WORKING:
        # Resumed since the batch began, or changed at this very moment; the conductor looks at the failed days next.
        then = f"Nothing of it is published. The campaign has been changed since this batch began, see: backfill status {campaign}"
    else:
        then = (
            "The campaign is stopped and nothing of it is published. Correct the cause, then go on with what is missing, "
            f"failed or stale, and only that: backfill resume {campaign}"
        )
    raise dg.Failure(
        f"{reason}\n{listed}\n{then}",
        allow_retries=False,
    )


def _report(
    context: dg.AssetExecutionContext, application: Application, unit: Unit, name: str, days: Sequence[dt.date]
) -> None:
    """Tell Dagster of the batches of a step that does not end well: its own events would come only at a good end."""
    key, instance = asset_key("shadow", name), context.instance
    evidence = application.ledger.evidence(unit.id, name, days) if days else {}
    with batched_events(instance):
        for day in days:
            context.log_event(dg.AssetMaterialization(key, partition=day.isoformat(), metadata={"unit": unit.id}))
    with batched_events(instance):
        for evaluation in evaluations(instance, name, list(evidence.values())):
            instance.report_runless_asset_event(evaluation)


_BETWEEN_STEPS: Final = 10
"""How many leases long the way from the shadow to its checks may take."""
_OTHER_LOOK_SECONDS: Final = 1.0


def build(
    context: Context, application: Application, name: str, unit: Unit, days: tuple[dt.date, ...]
) -> tuple[dt.date, ...]:
    """Build those of a dataset's days that have no good evidence in the unit; the days that were built.

    Raises:
        ModelError: the fact model fails or returns other columns than declared.
        EvidenceError: an upstream that the unit holds has not passed its checks.
        LeaseLostError: another attempt has taken these days over.
    """
    ledger, lease = application.ledger, application.settings.lease
    # Before the session, which would stand open while another launch is at work.
    attempt = _begun(context, application, unit, name, days)
    if attempt is None:
        context.log.info(f"unit {unit.id}: nothing is left to build of {format_days(days)}")
        return ()
    context.log.info(f"unit {unit.id}: building {format_days(attempt.days)} of {format_days(days)}")
    with kept_lease(ledger, attempt, lease), application.session(work_tag(context, "shadow", name)) as spark:
        application.road.build(spark, unit, attempt)
    # Until the checks begin, Dagster stores an event per day; nobody renews the lease meanwhile.
    ledger.renew(attempt.number, lease * _BETWEEN_STEPS)
    return attempt.days


def _begun(
    context: Context, application: Application, unit: Unit, name: str, days: tuple[dt.date, ...]
) -> Attempt | None:
    """An attempt on the days that lack good evidence, once no other launch is at work on them; `None` if none lacks any.

    Two launches of the same days at once would otherwise take them from each other, and build them twice.
    """
    ledger, told = application.ledger, False
    while True:
        with ledger.lock(f"build:{name}", application.settings.query_timeout):
            if ledger.unit(unit.id).state is not UnitState.open:
                return None
            todo = application.road.days_to_build(unit, name, days)
            if not todo:
                return None
            other = _other_at_work(context, application, unit, name, todo)
            if other is None:
                return ledger.start_attempt(unit.id, name, todo, context.run.run_id, application.settings.lease)
        if not told:
            told = True
            context.log.info(
                f"waiting for run {other.run} (attempt {other.number}) at work on {format_days(other.days)}"
            )
        time.sleep(_OTHER_LOOK_SECONDS)


def _other_at_work(
    context: Context, application: Application, unit: Unit, name: str, days: Collection[dt.date]
) -> Attempt | None:
    """The living attempt of another launch on any of the days; what a run retries was its own."""
    own, now = {context.run.run_id, context.run.root_run_id, context.run.parent_run_id}, application.clock.now()
    for attempt in application.ledger.attempts(unit.id, AttemptState.running):
        same = attempt.dataset == name and set(attempt.days) & set(days)
        if same and attempt.run not in own and attempt.lease_until > now:
            run = context.instance.get_run_by_id(attempt.run)
            if run is not None and not run.is_finished:
                return attempt
    return None
