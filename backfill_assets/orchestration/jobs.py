"""Jobs for those who work in the Dagster UI; the commands use the same use cases."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field

from backfill_assets.application import Application, tell
from backfill_assets.campaign.load import uncompared
from backfill_assets.campaign.plan import SHOWN_DIGITS, explain
from backfill_assets.campaign.state import Campaign
from backfill_assets.control.planner import Freezer
from backfill_assets.core.days import format_days, parse_days
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import shown_days
from backfill_assets.orchestration.backfills import Desk, desk_of
from backfill_assets.orchestration.release_events import (
    release_metadata,
    released_events,
    report_outdated,
    report_rollback,
)
from backfill_assets.storage.layout import below
from dagster_batched_events import batched_events

_PLAIN: Mapping[object, Any] = {str: dg.String, int: dg.Int, bool: dg.Bool}
ConfigT = TypeVar("ConfigT", bound=dg.Config)


class OfCampaign(dg.Config):
    """Names the campaign."""

    campaign: str = Field(description="The backfill_id of its specification.")


class Launching(OfCampaign):
    """What a launch takes."""

    canary_only: bool = Field(default=False, description="Stop after the canaries have passed.")


class WithReason(OfCampaign):
    """What the steps take that are recorded with a reason."""

    reason: str = Field(default="", description="Why; kept in the campaign's journal.")


class ApprovalOptions(OfCampaign):
    """What an approval takes; who approves is whoever this runs as, never a value."""

    evidence: str = Field(description="The evidence hash that you approve, as `backfill status` shows it.")
    by: str = Field(default="", description="The name of the specification's list in which you approve.")


class Publishing(WithReason):
    """What a publication takes."""

    outside_window: str = Field(default="", description="Why to publish outside of the publish window, if so.")


class Planning(dg.Config):
    """What a plan takes."""

    file: str = Field(description="The specification, a path below the folder of the code location.")


class Turning(WithReason):
    """What turns the knobs; one that is not named stays as it is."""

    max_concurrency: int = Field(default=0, description="Batches at work at once.")
    partitions_per_batch: int = Field(default=0, description="Days in a batch from now on.")


class CleaningUp(WithReason):
    """What a clean-up takes."""

    dry_run: bool = Field(default=False, description="Only log which files would go.")


class Watching(dg.Config):
    """What a watch takes."""

    release: str = Field(description="The release to watch, as `backfill releases` lists it.")


class RollingBack(dg.Config):
    """What a rollback takes."""

    release: str = Field(description="The release to undo, as `backfill releases` lists it.")
    reason: str = Field(description="Why; shown to whoever meets the days on hold.")


def campaign_jobs(application: Application) -> list[dg.JobDefinition]:
    """The jobs `plan_campaign`, `launch_campaign` … `rollback_release`, `cleanup_campaign`."""

    def job(
        name: str, about: str, config: type[ConfigT], act: Callable[[dg.OpExecutionContext, Application, ConfigT], None]
    ) -> dg.JobDefinition:
        @dg.op(name=f"{name}_op", config_schema=_plain_fields(config), out=dg.Out(dg.Nothing))
        def step(context: dg.OpExecutionContext) -> None:
            # Read anew: the models may have been corrected since this code location was loaded.
            act(context, Application(application.settings), config(**context.op_config))

        @dg.job(name=name, description=about, executor_def=dg.in_process_executor)
        def definition() -> None:
            step()

        return definition

    return [
        job("plan_campaign", "Freeze the plan of a specification; nothing is built yet.", Planning, _plan),
        job("launch_campaign", "Launch a planned campaign: canaries first, then the rest.", Launching, _launch),
        job("pause_campaign", "Let no further batch start; what has passed stays.", WithReason, _pause),
        job("resume_campaign", "Go on with what is missing, failed or stale, and only that.", WithReason, _resume),
        job("stop_campaign", "Stop a campaign for a cause that has to be mended.", WithReason, _stop),
        job("set_campaign", "Turn the knobs; batches that start from now on go by them.", Turning, _set),
        job("discard_campaign", "Give a campaign up: its days are free again.", WithReason, _discard),
        job("approve_campaign", "Approve exactly the evidence that you name.", ApprovalOptions, _approve),
        job("publish_campaign", "Release the whole range in one commit per dataset.", Publishing, _publish),
        job("rollback_release", "Undo a release; its days go on hold.", RollingBack, _rollback),
        job("watch_release", "Fail if a figure that consumers read has drifted since a release.", Watching, _watch),
        job("sign_off_campaign", "Close a published campaign: what readers see is right.", WithReason, _sign_off),
        job("cleanup_campaign", "Remove what only a rollback of the campaign needed.", CleaningUp, _cleanup),
    ]


def _plain_fields(config: type[dg.Config]) -> dict[str, dg.Field]:
    """The fields of a config, with values that stand for themselves.

    Dagster's own would also take `{env: NAME}`: whoever launches a job could read any variable in its refusal.
    """
    return {
        name: dg.Field(
            _PLAIN[field.annotation],
            is_required=field.is_required(),
            description=field.description,
            **({} if field.is_required() else {"default_value": field.default}),
        )
        for name, field in config.model_fields.items()
    }


def _plan(context: dg.OpExecutionContext, application: Application, config: Planning) -> None:
    settings = application.settings
    freezer = Freezer(application.planner, application.identity, settings.computes, settings.state)
    # Whoever launches a job must not have any file of the machine read to them.
    campaign, file = freezer.freeze(below(Path.cwd(), config.file))
    context.log.info(f"{explain(campaign.plan)}\nplan {campaign.plan.fingerprint[:SHOWN_DIGITS]} is frozen in {file}")


def _launch(context: dg.OpExecutionContext, application: Application, config: Launching) -> None:
    moved = application.planner.moved(application.ledger.campaign(config.campaign).plan)
    launched = _desk(context, application).control.launch(config.campaign, canary_only=config.canary_only)
    if moved:
        context.log.info(f"moved since the plan, and built from what is there now: {shown_days(moved)}")
    _warn_uncompared(context, launched)
    context.log.info(f"campaign {launched.id} is launched in unit {launched.unit}")


def _pause(context: dg.OpExecutionContext, application: Application, config: WithReason) -> None:
    _desk(context, application).control.pause(config.campaign, config.reason)
    context.log.info(f"campaign {config.campaign} is paused")


def _resume(context: dg.OpExecutionContext, application: Application, config: WithReason) -> None:
    _desk(context, application).control.resume(config.campaign, config.reason)
    context.log.info(f"campaign {config.campaign} goes on with what is missing, failed or stale")


def _stop(context: dg.OpExecutionContext, application: Application, config: WithReason) -> None:
    _desk(context, application).control.stop(config.campaign, config.reason)
    context.log.info(f"campaign {config.campaign} is stopped")


def _set(context: dg.OpExecutionContext, application: Application, config: Turning) -> None:
    asked = vars(config)
    given = {name: asked[name] for name in ("max_concurrency", "partitions_per_batch") if asked[name]}
    turned = _desk(context, application).control.set(config.campaign, config.reason, **given)
    context.log.info(f"campaign {config.campaign}: {turned.knobs}")


def _discard(context: dg.OpExecutionContext, application: Application, config: WithReason) -> None:
    unit = _desk(context, application).control.discard(config.campaign, config.reason)
    context.log.info(f"campaign {config.campaign} is given up; free again: {shown_days(unit.days)}")


def _sign_off(context: dg.OpExecutionContext, application: Application, config: WithReason) -> None:
    application.sign_off.sign_off(config.campaign, config.reason)
    context.log.info(f"campaign {config.campaign} is signed off; its files stay until the window ends")


def _cleanup(context: dg.OpExecutionContext, application: Application, config: CleaningUp) -> None:
    done = application.sign_off.cleanup(config.campaign, config.reason, dry_run=config.dry_run)
    if done.refusal:
        context.log.warning(f"would be refused: {done.refusal}")
    context.log.info(done.listed(dry_run=config.dry_run))


def _approve(context: dg.OpExecutionContext, application: Application, config: ApprovalOptions) -> None:
    given = application.approving.approve(config.campaign, config.evidence, by=config.by)
    context.log.info(f"{given.identity} approves evidence {given.evidence} of campaign {config.campaign}")
    unit = application.ledger.unit(application.ledger.campaign(config.campaign).unit)
    context.log.info(tell(application, unit, context.log.warning).sentence)


def _publish(context: dg.OpExecutionContext, application: Application, config: Publishing) -> None:
    _warn_uncompared(context, application.ledger.campaign(config.campaign))
    publication = application.campaign_release.publish(
        config.campaign, reason=config.reason, outside_window=config.outside_window
    )
    metadata = release_metadata(application, [publication.outcome], context.run_id, context.log)
    with batched_events(context.instance):
        for event in released_events([publication.outcome], metadata):
            context.log_event(event)
    report_outdated(context.instance, application, [publication.outcome], ())
    context.log.info(str(publication))


def _watch(context: dg.OpExecutionContext, application: Application, config: Watching) -> None:
    seen = application.watch_release.watch(config.release)
    if seen.drifted:
        # As the command's exit code does: a schedule's run that fails is noticed.
        raise dg.Failure(str(seen), allow_retries=False)
    context.log.info(str(seen))


def _rollback(context: dg.OpExecutionContext, application: Application, config: RollingBack) -> None:
    done = application.rollback.execute(config.release, config.reason)
    report_rollback(application, done)
    context.log.info(f"{done.release} rolls back {done.undoes}: {done.dataset} {format_days(done.days)}")


def _warn_uncompared(context: dg.OpExecutionContext, campaign: Campaign) -> None:
    if attention := uncompared(campaign):
        context.log.warning(attention)


def _desk(context: dg.OpExecutionContext, application: Application) -> Desk:
    return desk_of(application, context.instance)


def publish_job(application: Application) -> dg.JobDefinition:
    """The job `publish_unit`: releases one unit whole, bound to the evidence hash that was approved."""
    # No `StringSource`: that would let whoever launches it name a variable, and read its value in the refusal.
    schema = {
        "unit": dg.Field(dg.String, description="The unit, as `backfill status` lists it."),
        "evidence": dg.Field(
            dg.String, description="The evidence hash that you approve, as `backfill status UNIT` shows it."
        ),
        "reason": dg.Field(dg.String, is_required=False, default_value="", description="Why, for the history."),
    }

    @dg.op(name="publish", config_schema=schema, out=dg.Out(dg.Nothing))
    def publish(context: dg.OpExecutionContext) -> None:
        config = context.op_config
        outcome = application.publisher.release(
            config["unit"], evidence_hash=config["evidence"], reason=config["reason"]
        )
        metadata = release_metadata(application, [outcome], context.run_id, context.log)
        for event in released_events([outcome], metadata):
            context.log_event(event)
        context.log.info(f"unit {outcome.unit} is released as {outcome.release}")

    @dg.job(name="publish_unit", executor_def=dg.in_process_executor)
    def publish_unit() -> None:
        """Release a complete unit after its evidence has been approved; refused without it."""
        publish()

    return publish_unit


def prove_job(application: Application) -> dg.JobDefinition:
    """The job `prove`: recomputes days in several ways and fails if anything differs."""
    # Plain values, as in `publish_job`.
    schema = {
        "target": dg.Field(dg.String, description="A campaign, a unit or a dataset."),
        "partitions": dg.Field(
            dg.String,
            is_required=False,
            default_value="",
            description="Days, such as 2013-03-01,2013-03-05 or 2013-03-01..2013-03-03; without any, three are chosen.",
        ),
    }

    @dg.op(name="recompute", config_schema=schema, out=dg.Out(dg.Nothing))
    def recompute(context: dg.OpExecutionContext) -> None:
        target, partitions = context.op_config["target"], context.op_config["partitions"]
        days = parse_days(partitions, "partitions") if partitions else ()
        # Read anew: the models may have been corrected since this code location was loaded.
        fresh = Application(application.settings)
        certificates = fresh.prover.prove(target, days)
        for unit in dict.fromkeys(one.unit for one in certificates if one.unit):
            context.log.info(tell(fresh, fresh.ledger.unit(unit), context.log.warning).sentence)
        told = "\n".join(f"certificate {one}" for one in certificates)
        if not all(one.passed for one in certificates):
            raise dg.Failure(told, allow_retries=False)
        context.log.info(told)

    @dg.job(name="prove", executor_def=dg.in_process_executor)
    def prove() -> None:
        """Compute sampled days again, in several ways, and compare what comes out."""
        recompute()

    return prove


def sweep_schedule(application: Application) -> dg.ScheduleDefinition:
    """The job `sweep` and its daily schedule, which is off until somebody switches it on."""

    @dg.op(name="sweep_files", out=dg.Out(dg.Nothing))
    def sweep_files(context: dg.OpExecutionContext) -> None:
        # Read anew: what datasets keep may have been changed since this code location was loaded.
        fresh = Application(application.settings)
        for swept in fresh.sweep().execute():
            context.log.info(swept.listed("are gone"))
        for name, count in fresh.vacuum_staging().items():
            context.log.info(f"{name}: {number_of(count, 'old file')} of staging gone")

    @dg.job(name="sweep", executor_def=dg.in_process_executor)
    def sweep() -> None:
        """Remove the files that nobody needs any more, as `backfill sweep` does."""
        sweep_files()

    return dg.ScheduleDefinition(
        name="daily_sweep",
        job=sweep,
        cron_schedule="30 5 * * *",
        execution_timezone="UTC",
        description="Removes files that no reader, no release in its window and no open unit needs.",
    )
