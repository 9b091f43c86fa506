"""The sensor that takes campaigns their next step."""

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.errors import BackfillError
from backfill_assets.orchestration.campaign_desk import desk_of


def conduct_campaigns(application: Application) -> dg.SensorDefinition:
    """Launches what is due of every campaign, notices what has passed, stops what has failed."""

    @dg.sensor(
        name="conduct_campaigns",
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Takes each launched campaign its next step: canaries, the rest, resumes, the end.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        # Read anew: a model that was corrected since this process started is other code, and the campaign must see it.
        fresh = Application(application.settings)
        done = []
        conductor = desk_of(fresh, context.instance).conductor
        for campaign in conductor.waiting():
            try:
                done.append(conductor.conduct(campaign))
            except BackfillError as error:
                # One campaign that cannot go on must not hold up the others.
                context.log.warning(f"campaign {campaign}: {error}")
        said = [text for text in done if text]
        for text in said:
            context.log.info(text)
        return dg.SkipReason("; ".join(said) or "no campaign has a step to take")

    return sensor
