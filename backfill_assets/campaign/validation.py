"""What a specification says about validation: how the metrics of the target and of its downstream datasets may change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.config import JsonDict

from backfill_assets.core.errors import ContractError, MisfitError
from backfill_assets.core.expected_change import Change, parse_change
from backfill_assets.core.fields import Part, format_percent, parse_percent
from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.core.text import NAME_PATTERN

SHORT_SPELLING = "_delta_expected"
"""Ending of the other spelling: `revenue_delta_expected: …` is `expected_change: {revenue: …}`."""

METRIC_CHANGE = "expected_change"
ROW_CHANGE = "expected_row_change"
"""The keys of the two kinds of expectations."""

Expectations = Mapping[str, Change | Mapping[str, Change]]
"""By metric (or column) of the target, or by dataset and metric (or column)."""
_Problem = tuple[tuple[str, ...], str]
_WORD = re.compile(r"[a-z][a-z0-9_]{0,99}")
"""The format of metric names: the name of a column, and a word before or after it."""
_SHOWN = 60
_NAME = f"^{NAME_PATTERN.pattern}$"
_CHANGE_SCHEMA: Final[JsonDict] = {"type": "string", "description": "unchanged, any, -50% or '-1.5% to -0.8%'"}
_CHANGES_SCHEMA: Final[JsonDict] = {
    "type": "object",
    "patternProperties": {
        _NAME: {"anyOf": [_CHANGE_SCHEMA, {"type": "object", "patternProperties": {_NAME: _CHANGE_SCHEMA}}]}
    },
}


def _tolerance(value: object) -> Decimal:
    # Here a number can only mean a percentage: the key takes nothing else except `0`.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        value = f"{Decimal(str(value)):f}%"
    return parse_percent(value)


def _expectations(value: object, info: ValidationInfo) -> Expectations:
    key = f"validation.{info.field_name}"
    what = "column" if info.field_name == ROW_CHANGE else "metric"
    if not isinstance(value, Mapping):
        raise ValueError(f"write a mapping from {what} to change, such as {{revenue: -50%}}")  # noqa: TRY004  # pydantic reports no other
    problems: list[_Problem] = []
    found: dict[str, Change | Mapping[str, Change]] = {}
    for name, entry in value.items():
        if strange := _strange(name, entry):
            problems.append(((), f"{key}: {strange} cannot be the name of a {what} or a dataset; use a-z, 0-9 and _"))
        elif isinstance(entry, Mapping):
            found[name] = {metric: _change((name, metric), text, key, problems) for metric, text in entry.items()}
            if not entry:
                problems.append(((name,), f"{key}.{name} names no {what}; name one, or drop it"))
        else:
            found[name] = _change((name,), entry, key, problems)
    if problems:
        raise MisfitError(problems)
    return found


def _strange(name: object, entry: object) -> str:
    """The first impossible name, shortened for a message; the catalog checks the possible ones."""
    names = (name, *(entry if isinstance(entry, Mapping) else ()))
    return next((repr(str(one)[:_SHOWN]) for one in names if not _WORD.fullmatch(str(one))), "")


def _change(path: tuple[str, ...], value: object, key: str, problems: list[_Problem]) -> Change:
    if isinstance(value, Change):
        return value
    try:
        return parse_change(value, ".".join((key, *path)))
    except ContractError as error:
        problems.append((path, str(error)))
        return Change(Decimal(0), Decimal(0))


def _texts(value: Expectations) -> dict[str, object]:
    return {
        name: str(entry) if isinstance(entry, Change) else {metric: str(change) for metric, change in entry.items()}
        for name, entry in value.items()
    }


_Expected = Annotated[
    Expectations, PlainValidator(_expectations), PlainSerializer(_texts), WithJsonSchema(_CHANGES_SCHEMA)
]


class Certification(StrEnum):
    """Whether a release needs a certificate of idempotency."""

    required = "required"
    none = "none"


def _flat(expected: Expectations) -> dict[str, Change]:
    return {name: entry for name, entry in expected.items() if isinstance(entry, Change)}


def _own(expected: Expectations, dataset: str) -> dict[str, Change]:
    entry = expected.get(dataset, {})
    return {} if isinstance(entry, Change) else dict(entry)


class Validation(Part):
    """How much may change; metrics that are not named keep the tolerances of their dataset.yaml."""

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {rf"^[a-z][a-z0-9_]*{SHORT_SPELLING}$": _CHANGE_SCHEMA}}
    )

    row_count_tolerance: (
        Annotated[
            Decimal,
            BeforeValidator(_tolerance),
            PlainSerializer(format_percent, when_used="json"),
            WithJsonSchema(
                {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*[\d.]+\s*%\s*$"}]}
            ),
        ]
        | None
    ) = Field(default=None, description="By how many percent the target's row count may rise or fall; 0 is unchanged.")
    expected_change: _Expected = Field(
        default_factory=dict, description="Change by metric of the target, or by downstream dataset and metric."
    )
    certificate: Certification = Field(
        default=Certification.none,
        # A specification without this key keeps the hash that plans and approvals name.
        exclude_if=lambda value: value is Certification.none,
        description="required: approval and publication need a passing `backfill prove` of the evidence.",
    )
    expected_row_change: _Expected = Field(
        default_factory=dict,
        description="Change of each row by column of the target, or by downstream dataset and column.",
    )

    def changes(self, dataset: str, target: str) -> Mapping[str, Change]:
        """The expected change of one dataset by metric; metrics without a dataset belong to the target."""
        found: dict[str, Change] = {}
        if dataset == target:
            if self.row_count_tolerance is not None:
                found[ROW_COUNT] = Change(-self.row_count_tolerance, self.row_count_tolerance)
            found |= _flat(self.expected_change)
        return found | _own(self.expected_change, dataset)

    def row_changes(self, dataset: str, target: str) -> Mapping[str, Change]:
        """The expected change of each row of one dataset by column; columns without a dataset belong to the target."""
        flat = _flat(self.expected_row_change) if dataset == target else {}
        return flat | _own(self.expected_row_change, dataset)

    def datasets(self, key: str) -> Iterable[str]:
        """The datasets that are named under one of the two keys of expectations."""
        return (name for name, entry in getattr(self, key).items() if not isinstance(entry, Change))

    def contradictions(self, target: str) -> list[_Problem]:
        """Expectations of the target that are set twice, as (path of the key, message)."""
        problems: list[_Problem] = [
            (
                (key, target, m),
                f"validation.{key}.{target}.{m}: the target's {m} is also set outside of it; keep one of them",
            )
            for key in (METRIC_CHANGE, ROW_CHANGE)
            for m in sorted(_flat(getattr(self, key)).keys() & _own(getattr(self, key), target).keys())
        ]
        named = _flat(self.expected_change).keys() | _own(self.expected_change, target).keys()
        if self.row_count_tolerance is not None and ROW_COUNT in named:
            text = "validation.row_count_tolerance and an expected change of row_count contradict each other; keep one"
            problems.append((("row_count_tolerance",), text))
        return problems
