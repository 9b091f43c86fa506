"""Sensors that keep the road clear."""

from collections.abc import Iterator

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.unit import AttemptState
from backfill_assets.orchestration.event_log import DagsterEventLog

_COUNTS = "Nothing it had not finished counts."


def dead_workers(application: Application) -> dg.SensorDefinition:
    """End runs whose worker is dead; Dagster's default launcher would show most of them as started for ever.

    A worker is dead if it stopped renewing its lease, or if its process is gone: it may have held none, before its first
    attempt, after its last, or in a run that needs none.
    """

    @dg.sensor(
        name="dead_workers",
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Fails the run of a worker that has not renewed its lease or is gone, so that Dagster can retry it.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        origin = context.code_location_origin
        events = DagsterEventLog(context.instance, application, origin.location_name if origin else "")
        ended = sum(events.fail(run, why) for run, why in _past_their_lease(application))
        gone = {run.id: run.ended_process for run in events.at_work() if run.ended_process is not None}
        # Seen twice: at the first look its code server may be about to say the same.
        seen = gone.keys() & set((context.cursor or "").split())
        ended += sum(_end(events, application, run, gone[run]) for run in sorted(seen))
        context.update_cursor(" ".join(sorted(gone.keys() - seen)))
        return dg.SkipReason(f"{ended} runs of dead workers ended" if ended else "every worker is alive")

    return sensor


def _past_their_lease(application: Application) -> Iterator[tuple[str, str]]:
    """Runs of attempts whose lease is over, which end with them, and why."""
    now = application.clock.now()
    for attempt in application.ledger.attempts(state=AttemptState.running):
        if attempt.lease_until < now:
            application.ledger.end_attempt(attempt.number, AttemptState.lost)
            why = (
                f"The worker {attempt.worker} has not renewed the lease of attempt {attempt.number} since before "
                f"{attempt.lease_until:%H:%M:%S} UTC; it is taken for dead. {_COUNTS}"
            )
            yield attempt.run, why


def _end(events: DagsterEventLog, application: Application, run: str, process: int) -> bool:
    for attempt in application.ledger.attempts(state=AttemptState.running, run=run):
        application.ledger.end_attempt(attempt.number, AttemptState.lost)
    return events.fail(run, f"The process {process} of this run is gone and has not said how it ended. {_COUNTS}")
