"""Batches of a run: admitted, leased, built and checked, one checkpoint each; the only way to build."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import dagster as dg
from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.campaign.execution import Execution
from backfill_assets.campaign.gate import PAUSES, TRIED, Admitted, Closed, Decision, Waits, failure_of_spark
from backfill_assets.campaign.state import CAMPAIGN_TAG, WORKING, Action, JournalEntry
from backfill_assets.control.conductor import REFUSED, Batch
from backfill_assets.core.canonical import plain
from backfill_assets.core.days import Days, format_days, grouped_by_text
from backfill_assets.core.errors import PASSING, BackfillError, CampaignError, EngineError, UnitError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import Attempt, AttemptState, Unit, UnitState, Work
from backfill_assets.dataset.definition import Dataset
from backfill_assets.ledger.open import Ledger
from backfill_assets.orchestration.batch_pool import BatchPool, Slot
from backfill_assets.orchestration.launches import Context
from backfill_assets.orchestration.names import asset_key, work_tag
from backfill_assets.orchestration.release_events import evaluations
from backfill_assets.orchestration.services import Services, services_of
from dagster_batched_events import batched_events


@contextlib.contextmanager
def kept_lease(ledger: Ledger, attempt: Attempt, lease: dt.timedelta) -> Iterator[None]:
    """Renew the lease in the background; a step that fails ends its attempt.

    A lost lease is not taken back: the ledger refuses the evidence of such an attempt.
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


_LOOK_SECONDS: Final = 2.0
_MOST_LINES: Final = 20
_OTHER_LOOK_SECONDS: Final = 1.0


def in_batches(
    context: dg.AssetExecutionContext,
    application: Application,
    batch: Batch,
    work: Callable[[SparkSession, Days], object],
) -> None:
    """Do the `work` of raw or staging in batches, each admitted and counted by the campaign's gate; without one, all days.

    Days of a campaign that are already done, from the current deliveries, skip the gate: a run that is launched again
    continues where earlier runs ended, however few batches are admitted at a time.

    Raises:
        dagster.Failure: the gate stays closed.
    """
    gate, pipeline, days = _gate_of(context, application), application.pipeline, batch.days
    if isinstance(gate, _NoGate):
        with application.session(work_tag(context.run, batch.layer, batch.dataset), None, context.log.info) as spark:
            work(spark, days)
        return
    if application.ledger.unit(application.ledger.campaign(gate.campaign).unit).state is not UnitState.open:
        return
    days_to_do = partial(pipeline.days_to_land, again=True) if batch.layer == Layer.raw else pipeline.days_to_stage

    def do(slot: Slot) -> None:
        attempt = slot.attempt
        with _at_work(context, application, slot, batch.layer, gate) as spark:
            work(spark, attempt.days)
            taken = Work(bytes_read=attempt.bytes_read, waited=attempt.waited, layer=batch.layer)
            application.ledger.end_attempt(attempt.number, AttemptState.done, taken)

    with BatchPool(application.ledger, context.log.error) as pool:
        while days:
            # Batches of raw may need the same files, such as that of a month.
            most = 1 if batch.layer == Layer.raw else gate.at_once
            pool.wait(most)
            now, days = gate.cut(days)
            if todo := days_to_do(batch.dataset, now):
                pool.run(do, gate.wait(replace(batch, days=todo), pool), most)


def apart(dataset: Dataset, days: Days, now: dt.datetime) -> tuple[Days, Days]:
    """The days of one batch, and the others: a day that a provisional one awaits is built alone, so that none sees its rows."""
    if dataset.provisional is None:
        return days, ()
    settled = tuple(day for day in days if day <= dataset.newest_settled(now)) or days[:1]
    return settled, tuple(day for day in days if day not in settled)


def build(context: dg.AssetExecutionContext, application: Application, unit: Unit, name: str, days: Days) -> Days:
    """Build and check the days without passing, current evidence in the unit, batch by batch; returns the built days.

    A campaign's batches pass its gate, and stop the campaign if a check fails. Any other launch is one batch of all its
    days without a gate; its check step, which Dagster may repeat alone, fails by what the batch has found.

    Raises:
        dagster.Failure: the gate stays closed, or days of a campaign failed blocking checks; what has passed stays and
            is reported to Dagster.
        ModelError: the fact model fails or returns other columns than declared.
        EvidenceError: an upstream that the unit holds has not passed its checks.
        LeaseLostError: another attempt has taken these days over.
    """
    gate = _gate_of(context, application)
    built: list[dt.date] = []

    def do(slot: Slot) -> None:
        attempt = slot.attempt
        context.log.info(f"unit {unit.id}: building {format_days(attempt.days)}")
        with _at_work(context, application, slot, Layer.shadow, gate) as spark:
            application.pipeline.build(spark, unit, attempt)
            context.log.info(f"unit {unit.id}: checking {format_days(attempt.days)}")
            evidence = application.pipeline.validate(spark, unit, attempt)
            work = Work(sum(e.measured.shadow.rows for e in evidence), attempt.bytes_read, attempt.waited)
            application.ledger.end_attempt(attempt.number, AttemptState.done, work)
        built.extend(attempt.days)
        gate.judged(attempt, evidence)

    try:
        with BatchPool(application.ledger, context.log.error) as pool:
            while days:
                # Days that read the same other days would stage them at the same time.
                most = 1 if application.dataset(name).has_own_window else gate.at_once
                pool.wait(most)
                batch, days = gate.cut(days)
                batch, later = apart(application.dataset(name), batch, application.clock.now())
                days = (*later, *days)
                # Before the session, which would stay open while another launch is working.
                attempt = gate.begin(unit, name, batch, pool)
                if attempt is None:
                    context.log.info(f"unit {unit.id}: nothing is left to build of {format_days(batch)}")
                    continue
                pool.run(do, attempt, most)
    except dg.Failure:
        _report(context, application, unit, name, sorted(built))
        raise
    return tuple(sorted(built))


@contextmanager
def _at_work(
    context: dg.AssetExecutionContext,
    application: Application,
    slot: Slot,
    layer: Layer,
    gate: _NoGate | _CampaignGate,
) -> Iterator[SparkSession]:
    """Open a session for a batch and keep the attempt's lease while the batch runs."""
    attempt = slot.attempt
    lease, tag = application.settings.lease, work_tag(context.run, layer, attempt.dataset, attempt)
    try:
        with (
            kept_lease(application.ledger, attempt, lease),
            application.session(tag, gate.execution, context.log.info) as spark,
        ):
            slot.spark = spark
            yield spark
    except PASSING as error:
        gate.engine_failed(attempt, layer, error)
        raise


@dataclass
class _NoGate:
    """A launch outside of campaigns: one batch, as soon as no other launch is working on its days."""

    context: dg.AssetExecutionContext
    application: Application
    at_once: int = 1
    execution: Execution | None = None

    def cut(self, days: Days) -> tuple[Days, Days]:
        """The days of the next batch, and those after it."""
        return days, ()

    def begin(self, unit: Unit, name: str, days: Days, _: BatchPool) -> Attempt | None:
        """The attempt on the days of a batch without passing, current evidence; None if all have it.

        Waits for other launches: two that build the same days at the same time would take them from each other.
        """
        application, ledger, logged = self.application, self.application.ledger, False
        while True:
            with ledger.lock(f"build:{name}", application.settings.query_timeout):
                if ledger.unit(unit.id).state is not UnitState.open:
                    return None
                todo = application.pipeline.days_to_build(unit, name, days)
                if not todo:
                    return None
                other = _other_at_work(self.context, self.application, unit, name, todo)
                if other is None:
                    return self._started(unit, name, todo)
            if not logged:
                logged = True
                self.context.log.info(
                    f"waiting for run {other.run} (attempt {other.number}), which works on {format_days(other.days)}"
                )
            time.sleep(_OTHER_LOOK_SECONDS)

    def _started(self, unit: Unit, name: str, days: Days) -> Attempt | None:
        ledger = self.application.ledger
        try:
            return ledger.start_attempt(unit.id, name, days, self.context.run.run_id, self.application.settings.lease)
        except UnitError:
            # Another launch has released it since this one looked: that is why days seemed to lack something.
            if ledger.unit(unit.id).state is UnitState.open:
                raise
            return None

    def engine_failed(self, attempt: Attempt, layer: Layer, error: EngineError) -> None:
        """Leave it to the run to fail."""

    def judged(self, attempt: Attempt, evidence: Collection[DayEvidence]) -> None:
        """Only warn: the check step, if the run has one, fails because of it, and no release takes these days."""
        if failed := {verdict.day for e in evidence for verdict in e.verdicts if verdict.refuses}:
            days = number_of(len(failed), "day")
            self.context.log.warning(f"{days} of {attempt.dataset} failed blocking checks ({format_days(failed)})")


@dataclass
class _CampaignGate:
    """The gate of a campaign for one run; `seen` counts the journal's entries when each attempt began, by its number."""

    context: dg.AssetExecutionContext
    application: Application
    campaign: str
    services: Services
    seen: dict[int, int] = field(default_factory=dict)

    @property
    def execution(self) -> Execution:
        return self.application.ledger.campaign(self.campaign).specification.execution

    @property
    def at_once(self) -> int:
        """How many batches of the run may be at work; the gate also counts those of the campaign's other runs."""
        return self.application.ledger.campaign(self.campaign).knobs.max_concurrency

    def cut(self, days: Days) -> tuple[Days, Days]:
        """Read the knobs again for each batch: they may have changed."""
        size = self.application.ledger.campaign(self.campaign).knobs.partitions_per_batch
        return days[:size], days[size:]

    def begin(self, unit: Unit, name: str, days: Days, beside: BatchPool) -> Attempt | None:
        todo = self.application.pipeline.days_to_build(unit, name, days)
        return self.wait(Batch(name, todo), beside) if todo else None

    def wait(self, batch: Batch, beside: BatchPool) -> Attempt:
        """Wait until the gate opens, or a batch that is at work fails; return the attempt that the batch began."""
        since = time.monotonic()
        logged = ""
        while True:
            beside.check()
            entries = len(self.application.ledger.journal(self.campaign))
            answer = self.services.gatekeeper.begin(
                self.campaign, batch, self.context.run_id, self.application.settings.lease, beside.attempts
            )
            waited = dt.timedelta(seconds=round(time.monotonic() - since, 1))
            if isinstance(answer, Attempt):
                self.seen[answer.number] = entries
                return replace(answer, waited=waited)
            # Batches of its own campaign will end, or their leases will.
            if not isinstance(answer, Waits) or not (answer.own or waited < self.application.settings.gate_wait):
                raise self._gave_up(answer, batch)
            if answer.reason != logged:
                logged = answer.reason
                self.context.log.info(f"campaign {self.campaign} waits: {logged}")
            time.sleep(_LOOK_SECONDS)

    def _gave_up(self, decision: Decision, batch: Batch) -> dg.Failure:
        reason = "" if isinstance(decision, Admitted) else decision.reason
        if not isinstance(decision, Closed):
            # The conductor decides what halts the campaign: this run may only have older code than the plan.
            until = decision.until if isinstance(decision, Waits) else None
            detail: dict[str, object] = {"run": self.context.run_id, "until": until.isoformat() if until else ""}
            # The next question is about this batch: without its bytes, the budget of the day may seem to be enough.
            detail[REFUSED] = plain(batch)
            now = self.application.clock.now()
            self.application.ledger.note(JournalEntry(self.campaign, now, "the gate", Action.waits, reason, detail))
        return dg.Failure(
            f"The gate of campaign {self.campaign} is closed: {reason}. The run ends; batches that have passed "
            "stay, and what is missing is launched again when the gate opens (or after: backfill resume, if the "
            f"campaign was paused or stopped). See: backfill status {self.campaign}",
            allow_retries=False,
        )

    def engine_failed(self, attempt: Attempt, layer: Layer, error: EngineError) -> None:
        """Let the batch begin again after a pause; if that has not helped, the failure stops the campaign."""
        ledger, now = self.application.ledger, self.application.clock.now()
        newest = failure_of_spark(ledger.journal(self.campaign), ledger.attempts(attempt.unit, AttemptState.done))
        failures = newest.failures if newest is not None else 0
        # Batches that ran at the same time failed for the same reason: they count once.
        if newest is None or attempt.started_at > newest.at:
            failures += 1
        if failures > len(PAUSES):
            return
        until = now + PAUSES[failures - 1]
        reason = f"Spark failed, {failures} of {len(PAUSES)} times in a row; next try at {until:%H:%M} UTC: {error}"
        batch = plain(Batch(attempt.dataset, attempt.days, layer))
        detail = {"run": self.context.run_id, "until": until.isoformat(), TRIED: failures, REFUSED: batch}
        ledger.note(JournalEntry(self.campaign, now, "the gate", Action.waits, reason, detail))

    def judged(self, attempt: Attempt, evidence: Collection[DayEvidence]) -> None:
        """Stop the campaign and end the run if days failed blocking checks: no later batch of it is admitted."""
        campaign, name = self.campaign, attempt.dataset
        refusals = [verdict for e in evidence for verdict in e.verdicts if verdict.refuses]
        if not refusals:
            return
        failed = {verdict.day for verdict in refusals}
        reason = (
            f"{number_of(len(failed), 'day')} of {name} failed checks ({format_days(failed)}); first: {refusals[0]}"
        )
        with contextlib.suppress(CampaignError):
            # It may have been paused or stopped at the same moment; the days have failed all the same.
            self.services.conductor.halt(campaign, reason, self.seen[attempt.number])
        lines = grouped_by_text((verdict.day, str(verdict)) for verdict in refusals)
        if more := lines[_MOST_LINES:]:
            lines = [*lines[:_MOST_LINES], f"and {len(more)} more: backfill status {campaign}"]
        listed = "\n".join(lines)
        if self.application.ledger.campaign(campaign).phase in WORKING:
            # Resumed since the batch began, or changed at the same moment; the conductor checks the failed days next.
            then = (
                "Nothing of it is published. The campaign has been changed since this batch began, see: backfill status "
                f"{campaign}"
            )
        else:
            then = (
                "The campaign is stopped and nothing of it is published. Correct the cause, then build only what is "
                f"missing, failed or stale, with: backfill resume {campaign}"
            )
        raise dg.Failure(f"{reason}\n{listed}\n{then}", allow_retries=False)


def wait_for_others(context: Context, application: Application, unit: Unit, name: str, days: Days) -> None:
    """Wait until no other launch is working on these days: until then its evidence for them is incomplete."""
    while _other_at_work(context, application, unit, name, days) is not None:
        time.sleep(_OTHER_LOOK_SECONDS)


def _other_at_work(
    context: Context, application: Application, unit: Unit, name: str, days: Collection[dt.date]
) -> Attempt | None:
    """The running attempt of another launch on any of the days; the attempts of the run that it retries are its own."""
    run, now = context.run, application.clock.now()
    own = {run.run_id, run.root_run_id, run.parent_run_id}
    for attempt in application.ledger.attempts(unit.id, AttemptState.running):
        same = attempt.dataset == name and set(attempt.days) & set(days)
        if same and attempt.run not in own and attempt.lease_until > now:
            other = context.instance.get_run_by_id(attempt.run)
            if other is not None and not other.is_finished:
                return attempt
    return None


def _gate_of(context: dg.AssetExecutionContext, application: Application) -> _NoGate | _CampaignGate:
    campaign = context.run.tags.get(CAMPAIGN_TAG)
    if campaign is None:
        return _NoGate(context, application)
    return _CampaignGate(context, application, campaign, services_of(application, context.instance))


def _report(
    context: dg.AssetExecutionContext, application: Application, unit: Unit, name: str, days: Sequence[dt.date]
) -> None:
    """Report the batches of a failing step to Dagster: its own events are sent only if it succeeds."""
    key, instance = asset_key(Layer.shadow, name), context.instance
    evidence = application.ledger.evidence(unit.id, name, days) if days else {}
    with batched_events(instance):
        for day in days:
            context.log_event(dg.AssetMaterialization(key, partition=day.isoformat(), metadata={"unit": unit.id}))
    with batched_events(instance):
        for evaluation in evaluations(instance, name, list(evidence.values())):
            instance.report_runless_asset_event(evaluation)
