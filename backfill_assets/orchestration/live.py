"""The live pipeline: one job and one daily schedule per release group, and a sensor for late deliveries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster import AssetSelection
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from backfill_assets.application import Application
from backfill_assets.campaigns.late_deliveries import LateDay
from backfill_assets.domain.days import ONE_DAY
from backfill_assets.domain.units import LIVE_TAG
from backfill_assets.orchestration.names import asset_key, layers_of

_TAGS = {
    LIVE_TAG: "true",
    # Before every queued backfill; and the run queue keeps a slot that backfills cannot take.
    "dagster/priority": "10",
}
_MOST = 5
"""How many late days one look of the sensor runs: a whole re-delivered month must not flood the queue."""


@dataclass(frozen=True)
class LivePipeline:
    """The live job of a release group; without a schedule where the history is closed."""

    group: tuple[str, ...]
    job: UnresolvedAssetJobDefinition
    schedule: dg.ScheduleDefinition | None


def live_pipelines(application: Application) -> tuple[LivePipeline, ...]:
    """The live pipelines of all release groups."""
    return tuple(_pipeline(application, group) for group in application.catalog.groups)


def late_deliveries(application: Application, pipelines: Sequence[LivePipeline]) -> dg.SensorDefinition:
    """Runs published days again for which something new was delivered, or says what they wait for."""
    jobs = {name: pipeline.job for pipeline in pipelines for name in pipeline.group}

    @dg.sensor(
        name="late_deliveries",
        jobs=[pipeline.job for pipeline in pipelines],
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Looks for new deliveries of published days and runs these days, before any backfill.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        late = [day for name in application.datasets for day in application.late_deliveries.of(name)]
        ready = [day for day in late if not day.waits_for]
        if held := [day for day in late if day.waits_for]:
            context.log.info("\n".join(["late deliveries that wait:", *map(_waiting, held)]))
        if not ready:
            return dg.SkipReason("; ".join(map(_waiting, held[:_MOST])) or "no late deliveries")
        return dg.SensorResult(run_requests=[_request(day, jobs[day.dataset]) for day in ready[:_MOST]])

    return sensor


def _pipeline(application: Application, group: tuple[str, ...]) -> LivePipeline:
    members = [application.dataset(name) for name in group]
    keys = [asset_key(layer, dataset.name) for dataset in members for layer in layers_of(dataset)]
    job = dg.define_asset_job(
        name=f"live_{group[0]}",
        selection=AssetSelection.assets(*keys),
        tags=_TAGS,
        description=f"One day of {', '.join(group)}, from what was delivered to its release.",
    )
    if members[0].end is not None:
        return LivePipeline(group, job, None)
    hour, minute = max(dataset.live.at for dataset in members).split(":")

    @dg.schedule(
        name=f"daily_{group[0]}",
        job=job,
        cron_schedule=f"{int(minute)} {int(hour)} * * *",
        execution_timezone=members[0].time_zone,
        description=f"Yesterday's partition of {', '.join(group)}.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        moment = context.scheduled_execution_time.astimezone(members[0].zone)
        # A negative `end_offset` keeps the newest days out of the partitions: yesterday would be none.
        day = moment.date() - ONE_DAY + min(0, members[0].end_offset) * ONE_DAY
        if day < members[0].start:
            yield dg.SkipReason(f"{group[0]} begins on {members[0].start}")
            return
        yield dg.RunRequest(run_key=f"{group[0]}:{day}", partition_key=day.isoformat(), tags=_TAGS)

    return LivePipeline(group, job, schedule)


def _request(late: LateDay, job: UnresolvedAssetJobDefinition) -> dg.RunRequest:
    return dg.RunRequest(
        # Once for each set of deliveries: a run that fails its checks is not repeated until something else comes.
        run_key=f"{late.dataset}:{late.day}:{late.deliveries}",
        job_name=job.name,
        partition_key=late.day.isoformat(),
        tags={**_TAGS, "backfill_assets/late_files": str(len(late.files))},
    )


def _waiting(late: LateDay) -> str:
    return f"{late.dataset} {late.day} ({', '.join(late.files)}) waits: {late.waits_for}"
