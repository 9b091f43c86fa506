"""How a campaign runs: batches, canaries, windows, budgets and the floor of progress."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from backfill_assets.core.errors import MisfitError
from backfill_assets.core.fields import Period
from backfill_assets.core.text import (
    NAME_PATTERN,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from backfill_assets.domain.spark_settings import OF_SPEED, is_of_speed
from backfill_assets.domain.windows import WINDOW_PATTERN, TimeWindow, covers_the_day, parse_window

STORED = "stored"
"""The context of validation of what was stored by an earlier version."""
MOST_AT_ONCE = 100
MOST_IN_A_BATCH = 10_000
_PACE = r"\s*(\d{1,4}) batch(?:es)? per (second|minute|hour|day|\d{1,6}\s*[smhd])\s*"


@dataclass(frozen=True)
class MinProgress:
    """The floor of progress while live runs are at work: so many batches in each period."""

    batches: int
    per: dt.timedelta

    def __str__(self) -> str:
        return f"{self.batches} batch{'' if self.batches == 1 else 'es'} per {format_duration(self.per)}"


def parse_pace(value: object) -> MinProgress:
    """Read `1 batch per hour` or `2 batches per 30m`; a `MinProgress` passes through.

    Raises:
        ValueError: the text is anything else, or a part of it is zero.
    """
    if isinstance(value, MinProgress):
        return value
    match = re.fullmatch(_PACE, value, re.ASCII) if isinstance(value, str) else None
    pace = match and MinProgress(
        int(match[1]), parse_duration(match[2] if match[2][0].isdecimal() else f"1{match[2][0]}")
    )
    if not pace or not pace.batches or not pace.per:
        raise ValueError("write a pace such as 1 batch per hour or 2 batches per 30m, or leave the key out")
    return pace


def _some(size: int) -> int:
    if not size:
        raise ValueError("a budget of 0 lets no batch start; give a size, or leave the key out for no limit")
    return size


def _compute(value: str) -> str:
    if value and not NAME_PATTERN.fullmatch(value):
        raise ValueError("use a name of a-z, 0-9 and _, or leave the key out for the default Spark")
    return value


def _session_settings(value: object, info: ValidationInfo) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("write a mapping from setting to value, such as {spark.sql.shuffle.partitions: 8}")  # noqa: TRY004  # pydantic reports no other
    faults: list[tuple[tuple[str, ...], str]] = []
    for name, setting in value.items():
        where = f"execution.spark.{name}"
        # What the ledger holds can be read for ever; a session takes only what may be set.
        if not is_of_speed(str(name)) and info.context != STORED:
            text = f"{where}: a campaign may set only what decides how fast Spark is, not which rows it finds; drop it"
            faults.append(((str(name),), f"{text} (docs/backfill-yaml.md lists what there is, such as {OF_SPEED[0]})"))
        elif not isinstance(setting, (str, int, float)):
            faults.append(((str(name),), f"{where}: write a text, a number, true or false"))
    if faults:
        raise MisfitError(faults)
    return {str(n): str(v).lower() if isinstance(v, bool) else str(v) for n, v in value.items()}


Window = Annotated[
    TimeWindow,
    PlainValidator(parse_window),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": f"^{WINDOW_PATTERN}$"}),
]
"""A time window as text."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    AfterValidator(_some),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{SIZE_PATTERN}$"}),
]
"""A size in bytes, above zero."""
Pace = Annotated[
    MinProgress,
    PlainValidator(parse_pace),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": f"^{_PACE}$"}),
]
"""A pace as text."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Canary(_Part):
    """The days that go first, alone."""

    partitions: Annotated[int, Field(ge=1, le=10_000)]


class Budget(_Part):
    """What a campaign may use up before it stops; what is not named has no limit."""

    bytes_read_per_day: Size | None = Field(
        default=None, description="By the sizes of the files read, from midnight in the specification's time zone."
    )
    wall_time: Period | None = Field(default=None, description="Time of all batches, added up.")


class Execution(_Part):
    """How the days are worked through."""

    partitions_per_batch: Annotated[int, Field(ge=1, le=MOST_IN_A_BATCH)] = Field(
        default=7, description="Days of one dataset in one Spark pass, which is one checkpoint."
    )
    max_concurrency: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = Field(
        default=1, description="Batches at work at once."
    )
    pause_during_live_pipeline: bool = Field(default=True, description="No batch starts while a live run is at work.")
    blackout_windows: tuple[Window, ...] = Field(default=(), description="No batch starts in these.")
    canary: Canary | None = None
    query_timeout: Period | None = Field(default=None, description="Of one Spark operation; then it is interrupted.")
    budget: Budget = Budget()
    min_progress: Pace | None = Field(default=None, description="Floor of progress beside the live pipeline.")
    on_failure: Literal["stop"] = "stop"
    spark: Annotated[
        dict[str, str],
        PlainValidator(_session_settings),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
    ] = Field(default_factory=dict, description="Spark settings of this campaign's sessions only.")
    compute: Annotated[str, AfterValidator(_compute)] = Field(
        default="", description="Name of the Spark of BACKFILL_ASSETS_SPARK_URL_<NAME>, for this campaign only."
    )

    @field_validator("blackout_windows")
    @classmethod
    def _leave_time_to_work(cls, windows: tuple[TimeWindow, ...]) -> tuple[TimeWindow, ...]:
        if windows and covers_the_day(windows):
            raise ValueError("together they are the whole day, so that no batch could start; leave some time free")
        return windows

    @field_validator("min_progress")
    @classmethod
    def _is_a_floor_under_something(cls, pace: MinProgress | None, info: ValidationInfo) -> MinProgress | None:
        if pace and info.data.get("pause_during_live_pipeline") is False:
            raise ValueError("it only matters with pause_during_live_pipeline: true; set that, or drop min_progress")
        return pace
