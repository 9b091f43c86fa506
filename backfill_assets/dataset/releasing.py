"""The keys of `dataset.yaml` about runs and releases: when days are built, who releases them, and for how long."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from backfill_assets.core.fields import Duration, Name, Part


class Publication(StrEnum):
    """Whether a complete unit is released by its own runs or by a separate, approved step."""

    auto = "auto"
    approval = "approval"


class DatasetState(StrEnum):
    """Whether live runs build a dataset, or it is prepared beside them until somebody has released it."""

    draft = "draft"
    live = "live"


class AuditTrail(StrEnum):
    """Where it is recorded which unit wrote a row, when and with which code version."""

    columns = "columns"
    ledger = "ledger"


class Provisional(Part):
    """Days are published before the days that they look ahead to have landed, marked, and finalized when these have."""

    may_change: Annotated[tuple[Name, ...], Field(min_length=1)] = Field(
        description="The columns that finalizing a day may change. All others have to stay as they were published.",
    )


class CatchUpOrder(StrEnum):
    """Which end of the missing history is filled first."""

    oldest = "oldest"
    newest = "newest"


class CatchUp(Part):
    """How due days that are not published are filled: the sensor `catch_up` launches one bounded backfill after the other."""

    days_per_run: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=90, description="The most days of one backfill, which is released as a whole."
    )
    order: CatchUpOrder = Field(
        default=CatchUpOrder.oldest,
        description="Which days come first, after those of the last `watch_days`. Days that look back come oldest first.",
    )

    def __str__(self) -> str:
        """The same in words."""
        return f"{self.days_per_run} days per run, {self.order} first"


class Live(Part):
    """The daily pipeline: when it builds the newest due partition, and how long it watches for late deliveries."""

    at: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] = Field(
        default="03:00", description="Time of day in the dataset's time zone; a release group uses its latest time."
    )
    watch_days: Annotated[int, Field(ge=1, le=366)] = Field(
        default=30, description="How many days back gaps, and new deliveries of published days, are detected and run."
    )
    catch_up: CatchUp | None = Field(
        default=None,
        description="Fills all gaps from `start` on; by default nothing does, except for gaps of the last `watch_days`.",
    )


class Retention(Part):
    """How long a release can be rolled back."""

    keep_for: Duration = dt.timedelta(days=30)
