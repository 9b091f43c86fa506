"""The main steps of a campaign as jobs, for those who work in the Dagster UI; the commands use the same use cases."""

from collections.abc import Callable
from typing import TypeVar

import dagster as dg
from pydantic import Field

from backfill_assets.application import Application
from backfill_assets.domain.days import format_days
from backfill_assets.orchestration.campaign_desk import Desk, desk_of
from backfill_assets.orchestration.outdated import report_outdated
from backfill_assets.orchestration.release_assets import released_events
from backfill_assets.orchestration.reporting import report_rollback
from backfill_assets.orchestration.storage import batched_events

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


class Approving(OfCampaign):
    """What an approval takes; who approves is whoever this runs as, never a value."""

    evidence: str = Field(description="The evidence hash that you approve, as `backfill status` shows it.")
    by: str = Field(default="", description="The name of the specification's list in which you approve.")


class Publishing(WithReason):
    """What a publication takes."""

    outside_window: str = Field(default="", description="Why to publish outside of the publish window, if so.")


class RollingBack(dg.Config):
    """What a rollback takes."""

    release: str = Field(description="The release to undo, as `backfill releases` lists it.")
    reason: str = Field(description="Why; shown to whoever meets the days on hold.")


def campaign_jobs(application: Application) -> list[dg.JobDefinition]:
    """The jobs `launch_campaign`, `pause_campaign` … `rollback_release`."""

    def job(
        name: str, about: str, config: type[ConfigT], act: Callable[[dg.OpExecutionContext, Application, ConfigT], None]
    ) -> dg.JobDefinition:
        @dg.op(name=f"{name}_op", config_schema=config.to_fields_dict(), out=dg.Out(dg.Nothing))
        def step(context: dg.OpExecutionContext) -> None:
            # Read anew: the models may have been corrected since this code location was loaded.
            act(context, Application(application.settings), config(**context.op_config))

        @dg.job(name=name, description=about, executor_def=dg.in_process_executor)
        def definition() -> None:
            step()

        return definition

    return [
        job("launch_campaign", "Launch a planned campaign: canaries first, then the rest.", Launching, _launch),
        job("pause_campaign", "Let no further batch start; what has passed stays.", WithReason, _pause),
        job("resume_campaign", "Go on with what is missing, failed or stale, and only that.", WithReason, _resume),
        job("stop_campaign", "Stop a campaign for a cause that has to be mended.", WithReason, _stop),
        job("approve_campaign", "Approve exactly the evidence that you name.", Approving, _approve),
        job("publish_campaign", "Release the whole range in one commit per dataset.", Publishing, _publish),
        job("rollback_release", "Undo a release; its days go on hold.", RollingBack, _rollback),
    ]


def _launch(context: dg.OpExecutionContext, application: Application, config: Launching) -> None:
    launched = _desk(context, application).control.launch(config.campaign, canary_only=config.canary_only)
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


def _approve(context: dg.OpExecutionContext, application: Application, config: Approving) -> None:
    given = application.approving.approve(config.campaign, config.evidence, by=config.by)
    context.log.info(f"{given.identity} approves evidence {given.evidence} of campaign {config.campaign}")


def _publish(context: dg.OpExecutionContext, application: Application, config: Publishing) -> None:
    publication = application.campaign_release.publish(
        config.campaign, reason=config.reason, outside_window=config.outside_window
    )
    with batched_events(context.instance):
        for event in released_events([publication.outcome], context.run_id, set()):
            context.log_event(event)
    report_outdated(context.instance, application, [publication.outcome], ())
    context.log.info(str(publication))


def _rollback(context: dg.OpExecutionContext, application: Application, config: RollingBack) -> None:
    done = application.rollback.execute(config.release, config.reason)
    report_rollback(application, done, config.reason)
    context.log.info(f"{done.release} rolls back {done.undoes}: {done.dataset} {format_days(done.days)}")


def _desk(context: dg.OpExecutionContext, application: Application) -> Desk:
    return desk_of(application, context.instance)
