"""Jobs that are not materializations of a launch: the approved release of a unit, certificates, and the sweep."""

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.days import parse_days
from backfill_assets.core.text import number_of
from backfill_assets.orchestration.release_assets import release_metadata, released_events
from backfill_assets.orchestration.unit_report import tell


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
