"""The backfill specification: the keys of a file under `backfills/`, validated together."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Self
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

from backfill_assets.campaign.execution import STORED, Execution, Window
from backfill_assets.campaign.validation import ROW_CHANGE, Validation
from backfill_assets.core.canonical import digest
from backfill_assets.core.days import MOST_DAYS, day_range
from backfill_assets.core.errors import MisfitError
from backfill_assets.core.expected_change import Clause, Contract
from backfill_assets.core.fields import Day, Line, Name, Part, Period, TimeZone, Who
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import NAME_PATTERN

ID_PATTERN = r"[a-z][a-z0-9-]{2,62}"
"""Lower-case letters, digits and hyphens; begins with a letter; 3 to 63 characters."""
WEBHOOK = "env:"
"""The beginning of a webhook; the rest names the environment variable that holds its URL."""
_WEBHOOK = rf"{WEBHOOK}[A-Za-z_][A-Za-z0-9_]*"


def _id(value: str) -> str:
    if not re.fullmatch(ID_PATTERN, value):
        raise ValueError("use a-z, 0-9 and -, begin with a letter, 3 to 63 characters, such as tax-fix-2026-06")
    return value


def _downstream(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str) and value in {"none", "all"}:
        return value
    names = [str(name) for name in value] if isinstance(value, (list, tuple)) else []
    if not names or len(set(names)) < len(names) or not all(map(NAME_PATTERN.fullmatch, names)):
        raise ValueError("write none, all, or a list that names datasets once each, such as [daily_capacity]")
    return tuple(names)


def _reference(value: str) -> str:
    if not value.isprintable():
        raise ValueError("write one word or line, such as FIN-2841 or the issue's URL")
    return value


def _webhook(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(_WEBHOOK, value):
        # Without the value: it may be the URL itself, and every reader of a log could post to it.
        text = "notify.webhook: write env: and the variable that holds the URL, such as env:BACKFILL_WEBHOOK"
        raise MisfitError([((), text)])
    return value


class FirstLayer(StrEnum):
    """The layer at which a campaign begins; a dataset without that layer begins at its first later one."""

    raw = Layer.raw.value
    staging = Layer.staging.value
    shadow = Layer.shadow.value


class Notice(StrEnum):
    """The events that a webhook can receive."""

    announced = "announced"
    launched = "launched"
    stopped = "stopped"
    validated = "validated"
    published = "published"
    rolled_back = "rolled_back"
    drifted = "drifted"


class SourceRange(Part):
    """The days to recompute, both ends included."""

    start: Day
    end: Day

    @field_validator("end")
    @classmethod
    def _not_before_start(cls, end: dt.date, info: ValidationInfo) -> dt.date:
        start = info.data.get("start")
        if start is not None and end < start:
            raise ValueError(f"it is before start {start}; swap them")
        if start is not None and (end - start).days >= MOST_DAYS:
            raise ValueError(f"these are {(end - start).days + 1:,} days; write at most {MOST_DAYS:,}")
        return end

    @property
    def count(self) -> int:
        """The number of days."""
        return (self.end - self.start).days + 1

    @property
    def days(self) -> tuple[dt.date, ...]:
        """Every day in order."""
        return day_range(self.start, self.end)


class Target(Part):
    """The dataset whose history is recomputed, and the column with its days."""

    dataset: Name
    partition_key: Name


class Reason(Part):
    """Why: the change in one line, and the issue that asked for it."""

    issue: Annotated[str, Field(max_length=100), AfterValidator(_reference)] = ""
    change: Line


class Scope(Part):
    """What is recomputed in addition to the target's shadow: earlier layers, and datasets that are built from it."""

    from_: FirstLayer = Field(default=FirstLayer.raw, alias="from", description="The first layer that is run again.")
    downstream: Annotated[
        str | tuple[str, ...],
        PlainValidator(_downstream),
        PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
        WithJsonSchema({"anyOf": [{"enum": ["none", "all"]}, {"type": "array", "items": {"type": "string"}}]}),
    ] = Field(default="all", description="none, all, or a list of datasets that are built from the target.")


class ApprovalRule(Part):
    """Who must approve the evidence before anything is published."""

    required: bool
    by: tuple[Who, ...] = Field(
        default=(), validate_default=True, description="Users, or roles of BACKFILL_ASSETS_ROLES."
    )
    not_owner: bool = Field(default=False, description="Neither the owner nor the user who launched may approve.")

    @field_validator("by")
    @classmethod
    def _names_an_approver(cls, by: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not by and info.data.get("required"):
            text = "approval.by is empty, but approval is required; name a user or a role, or set required: false"
            raise MisfitError([((), text)])
        return by


class RollbackRule(Part):
    """How long it must be possible to roll the release back."""

    keep_for: Period = Field(default=dt.timedelta(days=30), json_schema_extra={"default": "30d"})


class Notify(Part):
    """Where to send notices, and which ones."""

    webhook: Annotated[
        str, BeforeValidator(_webhook), WithJsonSchema({"type": "string", "pattern": f"^{_WEBHOOK}$"})
    ] = Field(description="env: and the variable that holds the URL.")
    on: tuple[Notice, ...] = Field(default=tuple(Notice), min_length=1)

    @property
    def variable(self) -> str:
        """The environment variable that holds the webhook's URL."""
        return self.webhook.removeprefix(WEBHOOK)

    def wants(self, notice: Notice) -> bool:
        """Whether to send this notice; a webhook that receives `published` also receives `drifted`."""
        return notice in self.on or (notice is Notice.drifted and Notice.published in self.on)


class Specification(Part):
    """A reviewed correction of history."""

    backfill_id: Annotated[str, AfterValidator(_id), WithJsonSchema({"type": "string", "pattern": f"^{ID_PATTERN}$"})]
    owner: Who
    source_range: SourceRange
    target: Target
    reason: Reason
    scope: Scope = Scope()
    time_zone: TimeZone = Field(default="UTC", description="Time zone of the windows and of the budget's day.")
    execution: Execution = Execution()
    validation: Validation = Validation()
    approval: ApprovalRule
    publish_window: tuple[Window, ...] = Field(default=(), description="When it may be published; default any time.")
    rollback: RollbackRule = RollbackRule()
    notify: Notify | None = None

    # Each checks one key and those before it, so it also reports when another key is wrong.

    @field_validator("execution")
    @classmethod
    def _canaries_leave_a_rest(cls, execution: Execution, info: ValidationInfo) -> Execution:
        days = info.data.get("source_range")
        if days and execution.canary and execution.canary.partitions >= days.count:
            most = f"write at most {days.count - 1}, or leave" if days.count > 1 else "leave"
            text = f"execution.canary.partitions = {execution.canary.partitions}: the range has {days.count} day"
            plural = "s" if days.count > 1 else ""
            raise MisfitError([(("canary", "partitions"), f"{text}{plural} and some must remain; {most} canary out")])
        return execution

    @field_validator("validation")
    @classmethod
    def _says_each_change_once(cls, validation: Validation, info: ValidationInfo) -> Validation:
        target = info.data.get("target")
        if problems := validation.contradictions(target.dataset if target else ""):
            raise MisfitError(problems)
        return validation

    @field_validator("approval")
    @classmethod
    def _leaves_an_approver(cls, approval: ApprovalRule, info: ValidationInfo) -> ApprovalRule:
        owner = info.data.get("owner")
        if approval.not_owner and approval.by and set(approval.by) == {owner}:
            text = f"approval.not_owner: approval.by names only the owner {owner!r}; add another user or drop not_owner"
            raise MisfitError([(("not_owner",), text)])
        return approval

    @field_validator("publish_window")
    @classmethod
    def _opens(cls, windows: Sequence[object]) -> Sequence[object]:
        if not windows:
            raise ValueError("it never opens; name a window, or leave publish_window out to publish at any time")
        return windows

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of the windows."""
        return ZoneInfo(self.time_zone)

    @property
    def hash(self) -> str:
        """Digest of its content; spelling, comments and the order of keys do not count."""
        return digest(self.to_plain())

    def contract(self, datasets: Sequence[str]) -> Contract:
        """The expected changes of these datasets on every day: one clause for each dataset that has any."""
        target, asked = self.target.dataset, self.validation
        clauses = (Clause((), asked.changes(n, target), n, asked.row_changes(n, target)) for n in datasets)
        return Contract(tuple(clause for clause in clauses if clause.metrics or clause.rows))

    def to_plain(self) -> dict[str, Any]:
        """JSON values that `from_json` reads back, defaults included."""
        plain = self.model_dump(mode="json", by_alias=True)
        if not self.validation.expected_row_change:
            # Specifications from before rows could be promised keep their hashes.
            del plain["validation"][ROW_CHANGE]
        # An empty list is refused, since it would never open; absent means any time.
        return plain if self.publish_window else {k: v for k, v in plain.items() if k != "publish_window"}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the specification from what `to_plain` stored.

        Raises:
            ValidationError: these are not the values of a specification.
        """
        return cls.model_validate_json(text, strict=True, context=STORED)
