"""Verdicts: what a check expected of a day, what it found, and whether that will do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from backfill_assets.domain.checks_config import Severity


class CheckKind(StrEnum):
    """The kinds of checks; each has its own judge."""

    unique_key = "unique_key"
    not_null = "not_null"
    not_empty = "not_empty"
    source_present = "source_present"
    upstream_present = "upstream_present"
    corrupt_rows = "corrupt_rows"
    source_freshness = "source_freshness"
    change = "change"
    reference = "reference"
    rule = "rule"
    reconciliation = "reconciliation"
    upstream_total = "upstream_total"
    schema = "schema"
    keys = "keys"
    alone = "alone"
    rows = "rows"
    columns = "columns"
    seams = "seams"
    identical = "identical"
    nulls = "nulls"
    golden = "golden"


@dataclass(frozen=True)
class Check:
    """One check of a dataset: its name in Dagster, its kind, and the metric or rule that it is about."""

    name: str
    kind: CheckKind
    subject: str
    severity: Severity
    blocks: bool
    description: str


@dataclass(frozen=True)
class Finding:
    """What a judge says of one check on one day, before the check's severity is put to it."""

    passed: bool
    expected: str
    found: str
    tolerance: str = ""
    note: str = ""


Row = Mapping[str, object]
"""One offending row, as plain JSON values by column."""


@dataclass(frozen=True)
class Verdict:
    """The result of one check on one day, with the numbers behind it."""

    check: str
    day: dt.date
    passed: bool
    severity: Severity
    blocks: bool
    expected: str
    found: str
    tolerance: str = ""
    note: str = ""
    sample: tuple[Row, ...] = ()

    @property
    def refuses(self) -> bool:
        """Whether this verdict alone keeps the unit from being released."""
        return self.blocks and not self.passed

    def __str__(self) -> str:
        """One line for people: day, check, expected, found."""
        tolerance = f", tolerance {self.tolerance}" if self.tolerance else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.day} {self.check}: expected {self.expected}, found {self.found}{tolerance}{note}"
