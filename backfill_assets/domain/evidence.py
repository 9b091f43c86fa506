"""Evidence: exactly what was checked for a day, and whether it still holds for a release."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import Basis, DatasetDay, DayEvidence


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
