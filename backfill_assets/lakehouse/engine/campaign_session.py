"""Sessions as campaigns want them, opened without loading Spark's client before anybody needs it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from backfill_assets.campaign.execution import Execution, is_of_speed
from backfill_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def campaign_session(settings: Settings, tag: str, execution: Execution | None) -> AbstractContextManager[SparkSession]:
    """A session of its own, see `open_session`; `execution` is what a campaign wants of it.

    Raises:
        SettingsError: the campaign names a compute that this process has no URL of.
    """
    # Here, not above: Spark's client takes longer to import than most commands to run, and few need it.
    from backfill_assets.spark.session import open_session  # noqa: PLC0415

    conf: Mapping[str, str] | None = None
    if execution is not None:
        settings = settings.of_campaign(execution)
        conf = {name: value for name, value in execution.spark.items() if is_of_speed(name)}
    return open_session(settings, tag, conf)
