"""How a campaign runs: batches, canaries, time windows, budgets, Spark settings."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from backfill_assets.core.errors import MisfitError
from backfill_assets.core.fields import Part, Period
from backfill_assets.core.text import (
    NAME_PATTERN,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

_CLOCK = r"([01]?\d|2[0-3]):([0-5]\d)"
WINDOW_PATTERN = rf"\s*{_CLOCK}\s*-\s*(?:{_CLOCK}|(24:00))\s*"
"""The format of a window in YAML."""
_PATTERN = re.compile(WINDOW_PATTERN, re.ASCII)
_DAY = dt.timedelta(days=1)
_TICK = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class TimeWindow:
    """A window that opens every day, including `begin` but not `end`; an `end` before `begin` is on the next day.

    Only the wall clock counts: times that it skips when summer time begins are never open, and times that it shows twice
    when summer time ends are open twice.
    """

    begin: dt.time
    end: dt.time

    def __str__(self) -> str:
        end = f"{self.end:%H:%M}" if self.end != dt.time() else "24:00"
        return f"{self.begin:%H:%M}-{end}"

    def contains(self, moment: dt.datetime, zone: ZoneInfo) -> bool:
        """Whether the window is open at an aware moment, on the wall clock of `zone`."""
        clock = moment.astimezone(zone).time()
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end

    def ends(self, moment: dt.datetime, zone: ZoneInfo) -> dt.datetime:
        """When the window that is open at `moment` closes, in UTC; `moment` itself if it is closed."""
        return self._first(moment, zone, opened=False)

    def begins(self, moment: dt.datetime, zone: ZoneInfo) -> dt.datetime:
        """When the window opens next after `moment`, in UTC; if it is open, when it opens again."""
        return self._first(self.ends(moment, zone), zone, opened=True)

    def _first(self, moment: dt.datetime, zone: ZoneInfo, *, opened: bool) -> dt.datetime:
        """The first moment from `moment` on at which the window is open, or closed."""
        found = moment.astimezone(dt.UTC)
        while self.contains(found, zone) is not opened:
            ahead = _until(found.astimezone(zone).time(), self.begin if opened else self.end)
            found = _change_of_offset(found, found + ahead, zone) or found + ahead
        return found


def parse_window(value: object) -> TimeWindow:
    """Read `07:00-09:30`, also past midnight (`22:00-05:00`); a `TimeWindow` passes through.

    Raises:
        ValueError: the text is anything else, or the window would never close.
    """
    if isinstance(value, TimeWindow):
        return value
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a window as two times of day, such as 07:00-09:30 or 22:00-05:00")
    begin = dt.time(int(match[1]), int(match[2]))
    end = dt.time() if match[5] else dt.time(int(match[3]), int(match[4]))
    if begin == end:
        raise ValueError("this window would be the entire day; change one of its times, or leave it out")
    return TimeWindow(begin, end)


def covers_the_day(windows: Iterable[TimeWindow]) -> bool:
    """Whether the windows together cover every minute of an ordinary day."""
    left = set(range(24 * 60))
    for window in windows:
        begin, end = (time.hour * 60 + time.minute for time in (window.begin, window.end))
        left -= set(range(begin, end)) if begin < end else {*range(begin, 24 * 60), *range(end)}
    return not left


def _until(clock: dt.time, edge: dt.time) -> dt.timedelta:
    """How long a clock takes to show `edge` again if its offset does not change; above zero."""
    ahead = dt.datetime.combine(dt.date.min, edge) - dt.datetime.combine(dt.date.min, clock)
    return ahead if ahead > dt.timedelta(0) else ahead + _DAY


def _change_of_offset(first: dt.datetime, last: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
    """When the zone's offset changes between two moments in UTC, if it does; no zone changes it twice within a day."""
    before = first.astimezone(zone).utcoffset()
    if last.astimezone(zone).utcoffset() == before:
        return None
    while last - first > _TICK:
        middle = first + (last - first) / 2
        if middle.astimezone(zone).utcoffset() == before:
            first = middle
        else:
            last = middle
    return last


OF_SPEED: Final = (
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.enabled",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes",
    "spark.sql.adaptive.autoBroadcastJoinThreshold",
    "spark.sql.adaptive.coalescePartitions.*",
    "spark.sql.adaptive.localShuffleReader.enabled",
    "spark.sql.adaptive.skewJoin.*",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.inMemoryColumnarStorage.batchSize",
    "spark.sql.join.preferSortMergeJoin",
    "spark.sql.parquet.columnarReaderBatchSize",
    "spark.sql.sources.parallelPartitionDiscovery.*",
)
"""What a campaign may set: settings that decide how fast a query runs and on how many tasks, never which rows it finds."""

PINNED: Final[Mapping[str, str]] = {
    # An overflow, a division by zero or a text that is not a number is an error, not null.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    # Files that vanish or cannot be read are an error, not missing rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreInvalidPartitionPaths": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.legacy.csv.enableDateTimeParsingFallback": "false",
    "spark.sql.legacy.json.enableDateTimeParsingFallback": "false",
    # A write is one commit, with one file a day, and the log says how many rows each has.
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.stats.collect": "true",
    "spark.databricks.delta.stalenessLimit": "0",
    # Raw is read at the version at which its rows were counted, even if it is a week old and another landing commits meanwhile.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Days, times and numbers.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Spark's own default, INT96, is unknown to many readers, has no statistics, and ends in the year 2262 for Arrow and Polars.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # What names mean.
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    # A task that is tried again, because its executor was lost, and comes to other rows: what read the first ones is done again.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    # Plans are shown completely: they show what a model reads.
    "spark.sql.debug.maxToStringFields": "100000",
    "spark.sql.maxPlanStringLength": "2147483632",
    # Writing.
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "true",
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
}
"""What every session sets, whatever the server or a campaign sets: with other values the same models build other rows."""


def is_of_speed(name: str) -> bool:
    """Whether a campaign may set it."""
    return any(fnmatchcase(name, pattern) for pattern in OF_SPEED)


STORED = "stored"
"""The validation context for data that an earlier version stored."""
MOST_AT_ONCE = 100
MOST_IN_A_BATCH = 10_000
_PACE = r"\s*(\d{1,4}) batch(?:es)? per (second|minute|hour|day|\d{1,6}\s*[smhd])\s*"


@dataclass(frozen=True)
class MinProgress:
    """The minimum progress while live runs are running: a number of batches in each period."""

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
    problems: list[tuple[tuple[str, ...], str]] = []
    for name, setting in value.items():
        where = f"execution.spark.{name}"
        # Settings in the ledger can always be read; a session takes only those that may be set.
        if not is_of_speed(str(name)) and info.context != STORED:
            text = f"{where}: a campaign may only set what affects Spark's speed, not which rows it finds; drop it"
            problems.append(
                ((str(name),), f"{text} (docs/backfill-yaml.md lists all allowed ones, such as {OF_SPEED[0]})")
            )
        elif not isinstance(setting, (str, int, float)):
            problems.append(((str(name),), f"{where}: write a text, a number, true or false"))
    if problems:
        raise MisfitError(problems)
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


class Canary(Part):
    """The days that run first, alone."""

    partitions: Annotated[int, Field(ge=1, le=10_000)]


class Budget(Part):
    """How much a campaign may use before it stops; a key that is left out means no limit."""

    bytes_read_per_day: Size | None = Field(
        default=None, description="Size of the files read since midnight in the specification's time zone."
    )
    used_up: Literal["stop", "wait"] = Field(
        default="stop",
        # Left out: the hash of specifications that were planned before it existed stays.
        exclude_if=lambda what: what == "stop",
        description="What happens when a day's bytes are used up: `stop` the campaign, or `wait` for midnight.",
    )
    wall_time: Period | None = Field(default=None, description="Total time of all batches.")

    @field_validator("used_up")
    @classmethod
    def _is_about_a_day(cls, what: str, info: ValidationInfo) -> str:
        if what == "wait" and info.data.get("bytes_read_per_day") is None:
            raise ValueError("only bytes_read_per_day begins again at midnight; give it, or drop used_up")
        return what


class Execution(Part):
    """How the days are processed."""

    partitions_per_batch: Annotated[int, Field(ge=1, le=MOST_IN_A_BATCH)] = Field(
        default=7, description="Days of one dataset in one Spark pass, which is one checkpoint."
    )
    max_concurrency: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = Field(
        default=1, description="Batches that run at the same time."
    )
    pause_during_live_pipeline: bool = Field(default=True, description="No batch starts while a live run is running.")
    blackout_windows: tuple[Window, ...] = Field(default=(), description="No batch starts in these windows.")
    canary: Canary | None = None
    query_timeout: Period | None = Field(default=None, description="One Spark operation is interrupted after this.")
    budget: Budget = Budget()
    min_progress: Pace | None = Field(default=None, description="Minimum progress while the live pipeline runs.")
    on_failure: Literal["stop"] = "stop"
    spark: Annotated[
        dict[str, str],
        PlainValidator(_session_settings),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
    ] = Field(default_factory=dict, description="Spark settings of this campaign's sessions only.")
    compute: Annotated[str, AfterValidator(_compute)] = Field(
        default="", description="<NAME>, in lower case, of a BACKFILL_ASSETS_SPARK_URL_<NAME>, for this campaign only."
    )

    @field_validator("blackout_windows")
    @classmethod
    def _leave_time_to_work(cls, windows: tuple[TimeWindow, ...]) -> tuple[TimeWindow, ...]:
        if windows and covers_the_day(windows):
            raise ValueError("together they cover the entire day, so no batch could start; leave some time free")
        return windows

    @field_validator("min_progress")
    @classmethod
    def _is_a_floor_under_something(cls, pace: MinProgress | None, info: ValidationInfo) -> MinProgress | None:
        if pace and info.data.get("pause_during_live_pipeline") is False:
            raise ValueError("it only matters with pause_during_live_pipeline: true; set that, or drop min_progress")
        return pace
