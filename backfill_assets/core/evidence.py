"""Evidence: what was checked for a day, with which verdicts, and what it is based on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.measured import Compared, DayMeasurement
from backfill_assets.core.release import SHADOW, DataFile


class Severity(StrEnum):
    """How bad a failed check is: `error` or `warn`."""

    error = "error"
    warn = "warn"


@dataclass(frozen=True)
class CheckOutcome:
    """A judge's result for one check on one day, before the check's severity is applied."""

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
        """Whether this verdict alone blocks the release of the unit."""
        return self.blocks and not self.passed

    def __str__(self) -> str:
        """One line for people: day, check, expected, found."""
        tolerance = f", tolerance {self.tolerance}" if self.tolerance else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.day} {self.check}: expected {self.expected}, found {self.found}{tolerance}{note}"


DatasetDay = tuple[str, dt.date]
"""A dataset and one of its days."""

SEEN: Final = ("unit", "dataset", "day", "basis", "shadow_files", "measured", "verdicts")
"""What the hash of evidence is made of, in addition to `compared`."""


@dataclass(frozen=True)
class Basis:
    """What evidence is based on; when any of it changes, the evidence is stale.

    `inputs` is the digest of the deliveries and references that the day was built from, and of the golden sources that it
    was compared with; `code` the fingerprint of the dataset folder and of this project; `contract` the hash of the expected
    change; `published` the layout digest of the published files that the day's release would replace; `upstream` the digest
    of the contents of the upstream days that the day was built from (empty without upstreams).
    """

    inputs: str
    code: str
    contract: str
    published: str
    upstream: str = ""


@dataclass(frozen=True)
class DayEvidence:
    """What was built and checked for one day, in one attempt of a unit; `compared` is None if rows were not compared.

    `deliveries` are those that the day was built from, as `origins` names them, `references` the fingerprints of its references and
    golden sources by name; the basis has a digest of both. `parts` is the name that the ledger gives to the parts of its code.
    """

    unit: str
    attempt: int
    dataset: str
    day: dt.date
    basis: Basis
    shadow_files: tuple[DataFile, ...]
    measured: DayMeasurement
    verdicts: tuple[Verdict, ...]
    recorded_at: dt.datetime
    compared: Compared | None = None
    deliveries: tuple[str, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)
    parts: str = ""

    @property
    def folder(self) -> str:
        """The shadow folder with the rows, relative to the published table's folder."""
        return shadow_folder(self.unit, self.attempt)

    @property
    def passed(self) -> bool:
        """Whether no blocking verdict failed."""
        return not any(v.refuses for v in self.verdicts)

    @cached_property
    def altered(self) -> bool:
        """Whether it differs from what was recorded; the ledger compares, and says so of the evidence that it reads."""
        return False

    @cached_property
    def hash(self) -> str:
        """Digest of everything that a reviewer approves (`SEEN`); the time of recording is not part of it."""
        seen = [getattr(self, name) for name in SEEN]
        # Evidence from before rows were compared keeps the hash that was approved.
        return digest(seen if self.compared is None else [*seen, self.compared])


def shadow_folder(unit: str, attempt: int) -> str:
    """Where an attempt of a unit keeps its rows, relative to the published table's folder."""
    return f"{SHADOW}/{unit}/{attempt}"


def unit_hash(evidence: Iterable[DayEvidence]) -> str:
    """The evidence hash of a unit, which an approval is bound to."""
    return digest(sorted((e.dataset, e.day.isoformat(), e.hash) for e in evidence))
