"""All sensors, and the live pipeline with its schedules."""

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster import AssetSelection
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from backfill_assets.application import Application
from backfill_assets.core.days import day_range, format_days
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import LIVE_TAG, AttemptState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.evidence.late_deliveries import LateDay
from backfill_assets.evidence.stale import DATA, StaleDays, Staleness
from backfill_assets.orchestration.backfills import live_days
from backfill_assets.orchestration.event_log import DagsterEventLog
from backfill_assets.orchestration.names import asset_key
from backfill_assets.orchestration.services import services_of

_COUNTS = "Its unfinished work does not count."


def dead_workers(application: Application) -> dg.SensorDefinition:
    """End runs whose worker is dead; Dagster's default launcher would show most of them as started forever.

    A worker is dead if it stopped renewing its lease, or if its process is gone: it holds no lease before its first
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
        # Only if seen twice: at the first check its code server may be about to report the same.
        seen = gone.keys() & set((context.cursor or "").split())
        ended += sum(_end(events, application, run, gone[run]) for run in sorted(seen))
        context.update_cursor(" ".join(sorted(gone.keys() - seen)))
        return dg.SkipReason(f"{ended} runs of dead workers ended" if ended else "every worker is alive")

    return sensor


def _past_their_lease(application: Application) -> Iterator[tuple[str, str]]:
    """Runs of attempts whose lease has expired, and why; ends these attempts."""
    now = application.clock.now()
    for attempt in application.ledger.attempts(state=AttemptState.running):
        if attempt.lease_until < now:
            application.ledger.end_attempt(attempt.number, AttemptState.lost)
            why = (
                f"The worker {attempt.worker} has not renewed the lease of attempt {attempt.number}, which expired at "
                f"{attempt.lease_until:%H:%M:%S} UTC; it is considered dead. {_COUNTS}"
            )
            yield attempt.run, why


def _end(events: DagsterEventLog, application: Application, run: str, process: int) -> bool:
    for attempt in application.ledger.attempts(state=AttemptState.running, run=run):
        application.ledger.end_attempt(attempt.number, AttemptState.lost)
    return events.fail(run, f"The process {process} of this run is gone and has not reported how it ended. {_COUNTS}")


def conduct_campaigns(application: Application) -> dg.SensorDefinition:
    """Launches what is due in every campaign, records what has passed, stops what has failed."""

    @dg.sensor(
        name="conduct_campaigns",
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Takes the next step of each launched campaign: canaries, the rest, resumes, the end.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        # Read again: a model that was corrected since this process started is other code, and the campaign must see it.
        fresh = Application(application.settings)
        done = []
        conductor = services_of(fresh, context.instance).conductor
        for campaign in conductor.waiting():
            try:
                done.append(conductor.conduct(campaign))
            except BackfillError as error:
                # One campaign that cannot continue must not block the others.
                context.log.warning(f"campaign {campaign}: {error}")
        said = [text for text in done if text]
        for text in said:
            context.log.info(text)
        return dg.SkipReason("; ".join(said) or "no campaign has a step to take")

    return sensor


def catch_up(application: Application) -> dg.SensorDefinition:
    """Launches the due days that datasets with `live.catch_up` have not published, one bounded backfill after the other."""
    wanted = any(dataset.live.catch_up for dataset in application.catalog.definitions.values())

    @dg.sensor(
        name="catch_up",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING if wanted else dg.DefaultSensorStatus.STOPPED,
        description="Fills the gaps of each release group that asks for it with live.catch_up in dataset.yaml.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        # Read again, as the conductor does: what has been corrected since this process started is worth another run.
        fresh = Application(application.settings)
        catching_up = services_of(fresh, context.instance).catching_up
        if catching_up.groups and (obstacle := _spark_obstacle(fresh)):
            # A backfill that is refused would count as one that could not build its days.
            return dg.SkipReason(f"waiting for the Spark server: {obstacle}")
        groups, begun, done = catching_up.groups, time.monotonic(), list[str]()
        first = next((n for n, group in enumerate(groups) if group[0] == context.cursor), 0)
        for group in (*groups[first:], *groups[:first]):
            if time.monotonic() - begun > _LONGEST_LOOK:
                context.update_cursor(group[0])
                break
            if group not in application.catalog.live_groups:
                done.append(f"{group[0]}: its datasets are others than Dagster has loaded; reload the code location")
                continue
            try:
                done += [f"{group[0]}: {text}" for text in (catching_up.step(group),) if text]
            except BackfillError as error:
                # One group that cannot continue must not block the others.
                context.log.warning(f"{group[0]}: {error}")
        for text in done:
            context.log.info(text)
        return dg.SkipReason("; ".join(done) or "no dataset has a step to take; see: backfill status")

    return sensor


def stale_history(application: Application) -> dg.SensorDefinition:
    """Looks once a day for published days of any age that data made stale, and shows them; launches nothing."""

    @dg.sensor(
        name="stale_history",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Looks after midnight UTC for published days, however old, whose source, references or upstreams changed, and "
        "records them as an observation of the published table.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        today = f"{application.clock.now().date()}"
        looked, _, last = (context.cursor or "").partition(" ")
        done = last if looked == today else ""
        names = [name for name in sorted(application.datasets) if name > done]
        if not names:
            return dg.SkipReason(f"has looked on {today}; see also: backfill stale")
        # Read again, as the conductor does; and without Spark, which would have to read rows of a source table.
        fresh, begun = Application(application.settings), time.monotonic()
        found, passed = list[StaleDays](), list[str]()
        staleness = Staleness(fresh.warehouse, CurrentBasis(fresh.warehouse))
        for done in names:
            # A look that takes too long ends its tick: the next one goes on behind it.
            if done not in fresh.datasets or fresh.ledger.turn(f"stale_history {done}", _LOOKED):
                passed.append(done)
            else:
                found.append(staleness.of(done, DATA, look=True))
            if time.monotonic() - begun > _LONGEST_LOOK:
                break
        for one in found:
            for problem in one.problems:
                context.log.warning(f"{one.dataset} could not be compared: {problem}")
        stale = [one for one in found if one.days]
        over = [
            one for one in found if not one.days and not one.problems and _shows_stale(context.instance, one.dataset)
        ]
        said = [f"stale: {one.dataset} {format_days(one.days)}" for one in stale]
        said += [f"{one.dataset} could not be compared" for one in found if one.problems]
        said += [f"not looked at, or less than {_LOOKED} ago: {', '.join(passed)}"] if passed else []
        return dg.SensorResult(
            asset_events=[_observed(one) for one in (*stale, *over)],
            cursor=f"{today} {done}",
            skip_reason=dg.SkipReason("; ".join(said) or f"data made nothing stale, up to dataset {done}"),
        )

    return sensor


def _spark_obstacle(application: Application) -> str:
    """Why Spark cannot be used now; empty if it can."""
    from backfill_assets.spark.server import SparkServer  # noqa: PLC0415 - a code server loads Spark's client when it needs it

    return SparkServer(application.settings).obstacle()


def _observed(stale: StaleDays) -> dg.AssetObservation:
    causes = {f"stale because of {cause}": format_days(days) for cause, days in stale.by_cause.items()}
    text = f"{number_of(len(stale.days), 'published day')} would come out differently today, or might, because data changed"
    following = {"next": f"backfill refresh {stale.dataset}", "files not landed": ", ".join(stale.paths[:_MOST_FILES])}
    said = {name: value for name, value in {**causes, **following}.items() if value} if stale.days else {}
    return dg.AssetObservation(
        asset_key(Layer.published, stale.dataset),
        description=text if stale.days else "no published day is stale any more because data changed",
        metadata={_STALE: len(stale.days), **said},
    )


def _shows_stale(instance: dg.DagsterInstance, name: str) -> bool:
    """Whether the newest observation of a published table is one of ours, of stale days."""
    newest = instance.fetch_observations(asset_key(Layer.published, name), limit=1).records
    seen = newest[0].asset_observation if newest else None
    count = seen.metadata.get(_STALE) if seen is not None else None
    return count is not None and bool(count.value)


_STALE = "stale_days"
"""Metadata key of an observation: how many published days are stale because of data; Dagster draws it over time."""


_LOOKED = dt.timedelta(hours=12)
"""A dataset is not looked at again so soon, also if a look never ended."""
_MOST_FILES = 5
_LONGEST_LOOK = 20
"""Seconds after which the next group is left to the next look: Dagster gives a sensor 60, and a launch may take as many."""
_TAGS = {
    LIVE_TAG: "true",
    # Before every queued backfill; and the run queue keeps a slot that backfills cannot take.
    "dagster/priority": "10",
}
LATE_TAG = "backfill_assets/late_deliveries"
"""Run tag that names the late day and its deliveries; the same for all runs that request them."""
_MOST = 5
"""How many late days the sensor runs per tick: a complete re-delivered month must not flood the queue."""
_AGAIN = 3
"""How often a run that failed before anything landed is requested again."""


@dataclass(frozen=True)
class LivePipeline:
    """The live job of a release group; without a schedule if the history is closed."""

    group: tuple[str, ...]
    job: UnresolvedAssetJobDefinition
    schedule: dg.ScheduleDefinition | None


def live_pipelines(application: Application) -> tuple[LivePipeline, ...]:
    """The live pipelines of all release groups, without drafts."""
    return tuple(_pipeline(application, group) for group in application.catalog.live_groups)


def late_deliveries(application: Application, pipelines: Sequence[LivePipeline]) -> dg.SensorDefinition:
    """Runs published days with new deliveries again, and gaps, or reports what they wait for."""
    jobs = {name: pipeline.job for pipeline in pipelines for name in pipeline.group}

    @dg.sensor(
        name="late_deliveries",
        jobs=[pipeline.job for pipeline in pipelines],
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Looks for new deliveries of published days, and for gaps, and runs these days before any backfill.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        late, problems = _looked(application)
        for problem in problems:
            context.log.error(problem)
        # Before the limit per tick: days that have already run must not take the place of others.
        ready = _unseen(context.instance, [day for day in late if not day.waits_for])
        if ready and (obstacle := _spark_obstacle(application)):
            # A run that is refused before anything landed would be requested again only a few times.
            context.log.warning(obstacle)
            return dg.SkipReason(f"{number_of(len(ready), 'day')} to run, waiting for the Spark server: {obstacle}")
        if held := [day for day in late if day.waits_for]:
            context.log.info("\n".join(["late deliveries that wait:", *map(_waiting, held)]))
        if not ready:
            return dg.SkipReason("; ".join([*problems, *map(_waiting, held[:_MOST])]) or "no late deliveries")
        requests = [_request(day, jobs[day.dataset], failed) for day, failed in ready[:_MOST]]
        return dg.SensorResult(run_requests=requests)

    return sensor


def _pipeline(application: Application, group: tuple[str, ...]) -> LivePipeline:
    members = [application.dataset(name) for name in group]
    keys = [asset_key(layer, dataset.name) for dataset in members for layer in dataset.launched_layers]
    job = dg.define_asset_job(
        name=f"live_{group[0]}",
        selection=AssetSelection.assets(*keys),
        tags=_TAGS,
        description=f"One day of {', '.join(group)}, from its deliveries to its release.",
    )
    if members[0].end is not None:
        return LivePipeline(group, job, None)
    hour, minute = max(dataset.live.at for dataset in members).split(":")

    @dg.schedule(
        name=f"daily_{group[0]}",
        job=job,
        cron_schedule=f"{int(minute)} {int(hour)} * * *",
        execution_timezone=members[0].time_zone,
        description=f"The newest due partition of {', '.join(group)}: yesterday's, unless days look ahead.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        moment = context.scheduled_execution_time
        # A negative `end_offset` keeps the newest days out of the partitions: yesterday would not be one.
        day = members[0].live_day(moment)
        first = min(members, key=lambda member: member.start)
        if day < first.start:
            yield dg.SkipReason(f"{first.name} begins on {first.start}")
            return
        yield dg.RunRequest(run_key=f"{group[0]}:{day}", partition_key=day.isoformat(), tags=_TAGS)
        for dataset in members:
            yield from _again(dataset, day, moment)

    return LivePipeline(group, job, schedule)


def _again(dataset: Dataset, newest: dt.date, moment: dt.datetime) -> Iterator[dg.RunRequest]:
    """Land later days that its group looks ahead to, before the source loses them, and earlier days that are extracted again.

    If an earlier one has changed, it is a late delivery, and runs as such.
    """
    extract = dataset.extract
    for day in reversed(day_range(dataset.start, dataset.newest_over(moment))):
        if extract is None or (day < newest and moment >= dataset.end_of(day) + extract.again):
            return
        if day == newest:
            continue
        key, raw = f"{dataset.name}:{day}:again after {newest}", asset_key(Layer.raw, dataset.name)
        yield dg.RunRequest(key, partition_key=day.isoformat(), tags=_TAGS, asset_selection=[raw])


def _looked(application: Application) -> tuple[list[LateDay], list[str]]:
    """The late days of all datasets, and the problems of those that cannot be checked and must not stop the others."""
    late: list[LateDay] = []
    problems: list[str] = []
    for name in (name for group in application.catalog.live_groups for name in group):
        try:
            late += application.late_deliveries.of(name)
            # Last: an empty folder is reported, and hides no day that was withdrawn or that other runs have landed.
            if application.datasets[name].dataset.lands_files:
                application.pipeline.require_sources(name)
        except BackfillError as error:
            problems.append(f"{name}: {error}")
    return late, problems


def _unseen(instance: dg.DagsterInstance, days: Sequence[LateDay]) -> list[tuple[LateDay, int]]:
    """The days to run, each with the number of runs for the same deliveries that failed before any was checked.

    A run that checked them is not repeated, whatever it found, until something else is delivered.
    """
    # A live run that works on the day, or waits for it, may be the first run of a gap.
    under_way = live_days(instance) if any(day.gap for day in days) else frozenset()
    days = [day for day in days if not (day.gap and day.day in under_way)]
    names = [_name(day) for day in days]
    runs: dict[str, list[dg.DagsterRun]] = {name: [] for name in names}
    for run in instance.get_runs(dg.RunsFilter(tags={LATE_TAG: names})) if names else ():
        # Dagster's own retries of a run are part of it.
        if run.root_run_id is None:
            runs[run.tags[LATE_TAG]].append(run)
    return [
        (day, len(earlier))
        for day, earlier in zip(days, runs.values(), strict=True)
        if not earlier or ((day.files or day.unjudged) and len(earlier) <= _AGAIN and _all_failed(earlier))
    ]


def _all_failed(runs: Iterable[dg.DagsterRun]) -> bool:
    return all(run.status is dg.DagsterRunStatus.FAILURE for run in runs)


def _name(late: LateDay) -> str:
    return f"{late.dataset}:{late.day}:{late.deliveries}"


def _request(late: LateDay, job: UnresolvedAssetJobDefinition, failed: int) -> dg.RunRequest:
    return dg.RunRequest(
        # Dagster accepts each key only once.
        run_key=f"{_name(late)}:{failed}" if failed else _name(late),
        job_name=job.name,
        partition_key=late.day.isoformat(),
        tags={**_TAGS, LATE_TAG: _name(late), "backfill_assets/late_files": str(len(late.files))},
    )


def _waiting(late: LateDay) -> str:
    return f"{late.dataset} {late.day} ({', '.join(late.files) or 'landed already'}) waits: {late.waits_for}"
