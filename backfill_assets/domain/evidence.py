"""Evidence: exactly what was checked for a day, and whether it still holds for a release."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from backfill_assets.domain.canonical import digest
from backfill_assets.domain.comparison import Compared
from backfill_assets.domain.days import format_days
from backfill_assets.domain.measurement import DayMeasurement
from backfill_assets.domain.release import DataFile
from backfill_assets.domain.verdict import Verdict

DatasetDay = tuple[str, dt.date]
"""A dataset and one of its days."""

SEEN: Final = ("unit", "dataset", "day", "basis", "shadow_files", "measured", "verdicts")
"""What the hash of evidence is made of, besides `compared`."""


@dataclass(frozen=True)
class Basis:
    """What evidence rests on; when any of it moves, the evidence is stale.

    `inputs` is the digest of the deliveries and references that the day was built from, and of the golden sources that it
    was compared with, `code` the fingerprint of the
    dataset folder and of this project, `contract` the hash of the expected change, `published` the layout digest of the
    published files that the day's release would replace, `upstream` the digest of the contents of the upstream days that
    the day was built from (empty without upstreams).
    """

    inputs: str
    code: str
    contract: str
    published: str
    upstream: str = ""


@dataclass(frozen=True)
class DayEvidence:
    """What was built and checked for one day, in one attempt of a unit; `compared` lacks where rows were not compared.

    `deliveries` are those that the day was built from, as `origins` names them; the basis has their digest.
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
        """Whether it is not what was recorded; the ledger, which compares, says so of what it has read."""
        return False

    @cached_property
    def hash(self) -> str:
        """Digest of everything that a reviewer approves (`SEEN`); the time of recording is not part of it."""
        seen = [getattr(self, name) for name in SEEN]
        # Evidence of before rows were compared keeps the hash that somebody has approved.
        return digest(seen if self.compared is None else [*seen, self.compared])


class Fault(StrEnum):
    """Why a day's evidence does not carry a release."""

    missing = "has no evidence"
    incomplete = "lacks verdicts"
    failed = "failed its checks"
    inputs_moved = "is stale: its deliveries, references or golden sources changed since it was checked"
    upstream_moved = "is stale: its upstream changed since it was checked"
    code_moved = "is stale: the dataset's code changed since it was checked"
    contract_moved = "is stale: it was checked under another contract"
    published_moved = "is stale: the published day was rewritten since it was checked"
    altered = "has evidence that was altered in the ledger after it was recorded"
    shadow_moved = "is stale: its shadow files, or the log of its shadow, are gone or altered"


@dataclass(frozen=True)
class DayFault:
    """One reason why one day cannot be released."""

    dataset: str
    day: dt.date
    fault: Fault
    detail: str = ""

    @property
    def words(self) -> str:
        """The reason as people read it."""
        return f"{self.fault.value}: {self.detail}" if self.detail else self.fault.value


def shadow_folder(unit: str, attempt: int) -> str:
    """Where an attempt of a unit keeps its rows, relative to the published table's folder."""
    return f"_shadow/{unit}/{attempt}"


def unit_hash(evidence: Iterable[DayEvidence]) -> str:
    """The evidence hash of a unit, which an approval is bound to."""
    return digest(sorted((e.dataset, e.day.isoformat(), e.hash) for e in evidence))


def faults_of(
    day: DatasetDay, evidence: DayEvidence | None, required: Iterable[str], now: Basis
) -> tuple[DayFault, ...]:
    """What is wrong with a day's evidence, given the checks required and the basis as it is now; empty means releasable.

    `now.published` may be the evidence's own digest where only the layout, not the content, of the published files moved.
    """
    dataset, date = day
    if evidence is None:
        return (DayFault(dataset, date, Fault.missing),)
    if evidence.altered:
        return (DayFault(dataset, date, Fault.altered),)
    faults = []
    lacking = sorted(set(required) - {v.check for v in evidence.verdicts})
    if lacking:
        faults.append(DayFault(dataset, date, Fault.incomplete, ", ".join(lacking)))
    faults += [DayFault(dataset, date, Fault.failed, str(v)) for v in evidence.verdicts if v.refuses]
    moved: dict[Fault, tuple[str, str]] = {
        Fault.inputs_moved: (evidence.basis.inputs, now.inputs),
        Fault.upstream_moved: (evidence.basis.upstream, now.upstream),
        Fault.code_moved: (evidence.basis.code, now.code),
        Fault.contract_moved: (evidence.basis.contract, now.contract),
    }
    if evidence.verdicts:
        # Before its checks nothing has been compared with what is published, and nothing can have moved.
        moved[Fault.published_moved] = (evidence.basis.published, now.published)
    faults += [DayFault(dataset, date, fault) for fault, (then, today) in moved.items() if then != today]
    return tuple(faults)


def explain_faults(faults: Iterable[DayFault], most: int = 10) -> str:
    """One line per dataset and kind of fault, days in ranges, with up to `most` details each."""
    grouped: dict[tuple[str, Fault], list[DayFault]] = {}
    for fault in faults:
        grouped.setdefault((fault.dataset, fault.fault), []).append(fault)
    lines = []
    for (dataset, kind), members in sorted(grouped.items()):
        lines.append(f"{dataset} {format_days(f.day for f in members)} {kind.value}")
        details = [f"    {f.detail}" for f in members if f.detail]
        lines += details[:most] + ([f"    … {len(details) - most} more"] if len(details) > most else [])
    return "\n".join(lines)
