"""Jobs for users of the Dagster UI: one for each operation, and the schedule of the sweep."""

from collections.abc import Mapping
from datetime import date
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Any

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.days import parse_day
from backfill_assets.operations import OPERATIONS, PARAMETERS, Operation, Shell
from backfill_assets.orchestration.release_events import (
    release_metadata,
    released_events,
    report_outside_runs,
    report_stale,
)
from backfill_assets.orchestration.services import services_of
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.rollback import RolledBack
from backfill_assets.storage.disk import below
from dagster_batched_events import batched_events, delete_old_logs

_TYPES: Mapping[object, Any] = {
    str: dg.String, str | None: dg.String, int: dg.Int, bool: dg.Bool, Path: dg.String, date | None: dg.String,
}  # fmt: skip


def operation_jobs(application: Application) -> list[dg.JobDefinition]:
    """The jobs `campaign_plan`, `campaign_launch` … `campaign_cleanup`, `sweep`."""
    return [_job(application, operation) for operation in OPERATIONS]


def _job(application: Application, operation: Operation) -> dg.JobDefinition:
    parameters = operation.parameters
    schema = {name: _plain_field(parameter) for name, parameter in parameters.items()}

    @dg.op(name=f"{operation.job}_op", config_schema=schema, out=dg.Out(dg.Nothing))
    def step(context: dg.OpExecutionContext) -> None:
        # Read again: the models may have been corrected since this code location was loaded.
        fresh = Application(application.settings)
        report = partial(_report, context, fresh)
        shell = Shell(
            fresh,
            lambda: services_of(fresh, context.instance).control,
            lambda before, dry_run: delete_old_logs(context.instance, before, dry_run=dry_run),
            report,
            context.log.warning,
        )
        given = {name: _read(parameters[name].annotation, value) for name, value in context.op_config.items()}
        result = operation.act(shell, **given)
        said = []
        for line in filter(None, result.lines):
            said.append(line)
            context.log.info(line)
        if result.failed:
            # Like the command's exit code: a failed run of a schedule is noticed.
            raise dg.Failure("\n".join(said), allow_retries=False)

    @dg.job(name=operation.job, description=operation.text, executor_def=dg.in_process_executor)
    def definition() -> None:
        step()

    return definition


def _plain_field(parameter: Parameter) -> dg.Field:
    """The config field of a parameter, whose value is taken literally.

    Dagster's own fields also accept `{env: NAME}`: a user who launches a job could read any variable in its error.
    """
    required = parameter.default is Parameter.empty
    default = {} if required or parameter.default is None else {"default_value": parameter.default}
    about = PARAMETERS[parameter.name]
    return dg.Field(_TYPES[parameter.annotation], is_required=required, description=about, **default)


def _read(kind: object, value: Any) -> object:
    if kind is Path:
        # A user who launches a job must not be able to read any file of the machine.
        return below(Path.cwd(), value)
    return parse_day(value) if kind == date | None else value


def _report(
    context: dg.OpExecutionContext, application: Application, done: Released | AlreadyReleased | RolledBack
) -> None:
    if isinstance(done, RolledBack):
        report_outside_runs(application, done)
        return
    metadata = release_metadata(application, [done], context.run_id, context.log)
    with batched_events(context.instance):
        for event in released_events([done], metadata):
            context.log_event(event)
    report_stale(context.instance, application, [done], ())


def sweep_schedule() -> dg.ScheduleDefinition:
    """The daily schedule of the job `sweep`, off by default."""
    return dg.ScheduleDefinition(
        name="daily_sweep",
        job_name="sweep",
        cron_schedule="30 5 * * *",
        execution_timezone="UTC",
        description="Removes files that no reader, no release in its window and no open unit needs.",
    )
