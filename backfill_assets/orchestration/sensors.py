"""Sensors that keep the road clear."""

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.domain.work import AttemptState


def dead_workers(application: Application) -> dg.SensorDefinition:
    """Fail runs whose worker stopped renewing its lease; Dagster's default launcher would show them as started for ever."""

    @dg.sensor(
        name="dead_workers",
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Fails the run of a worker that has not renewed its lease, so that Dagster can retry it.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        now = application.clock.now()
        lost = [a for a in application.ledger.attempts(state=AttemptState.running) if a.lease_until < now]
        for attempt in lost:
            application.ledger.end_attempt(attempt.number, AttemptState.lost)
            run = context.instance.get_run_by_id(attempt.run)
            if run is not None and not run.is_finished:
                message = (
                    f"The worker {attempt.worker} has not renewed the lease of attempt {attempt.number} since before "
                    f"{attempt.lease_until:%H:%M:%S} UTC; it is taken for dead. Nothing it had not finished counts."
                )
                context.instance.report_run_failed(run, message)
        return dg.SkipReason(f"{len(lost)} runs of dead workers failed" if lost else "every worker is alive")

    return sensor
