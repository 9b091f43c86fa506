"""The survey before a release: evidence, basis, published files and shadow files of every day, read afresh."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import Basis, DatasetDay, DayEvidence, unit_hash
from backfill_assets.core.release import DataFile, DaySwap, layout_digest
from backfill_assets.core.text import in_words
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.lineage import upstream_first, upstreams_of
from backfill_assets.delta.table import PublishedTable
from backfill_assets.domain.basis_ports import BasisNow, ContentFingerprints
from backfill_assets.domain.evidence import DayFault, Fault, explain_faults, faults_of
from backfill_assets.ledger.ledger import Ledger

FilesByDay = Mapping[dt.date, tuple[DataFile, ...]]


@dataclass(frozen=True)
class Sanction:
    """What a release says of the campaign behind it, empty for a unit of none, and by dataset its passing certificate."""

    campaign: str = ""
    approved_by: str = ""
    source_range: str = ""
    certificates: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Obstacles:
    """What keeps a campaign with good evidence from being released: `refusals`, and `later`, why it is not the time now."""

    refusals: tuple[str, ...] = ()
    later: str = ""


@dataclass(frozen=True)
class Survey:
    """What was found: the evidence of the unit's days, each table's version and active files, and all faults."""

    unit: Unit
    evidence: Mapping[DatasetDay, DayEvidence]
    versions: Mapping[str, int]
    active: Mapping[str, FilesByDay]
    faults: tuple[DayFault, ...]

    @property
    def hash(self) -> str:
        """The evidence hash that an approval is bound to."""
        return unit_hash(self.evidence.values())

    def swaps(self, name: str) -> tuple[DaySwap, ...]:
        """What a release would do to the days of a dataset that have evidence, in order."""
        found = ((day, self.evidence.get((name, day))) for day in sorted(self.unit.targets[name]))
        active = self.active[name]
        return tuple(DaySwap(day, active.get(day, ()), e.shadow_files, e.hash) for day, e in found if e is not None)


Guard = Callable[[Survey], Sanction]
"""Asked, under the locks, before a unit with complete evidence is released; refuses by raising."""


def no_guard(_survey: Survey) -> Sanction:
    """Let every unit pass."""
    return Sanction()


@dataclass(frozen=True)
class Surveyor:
    """Takes surveys; reads only."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]
    fingerprints: ContentFingerprints
    basis: BasisNow

    def survey(self, unit: Unit) -> Survey:
        """Survey all days of a unit."""
        known = self.ledger.evidence(unit.id)
        evidence = {target: known[target] for target in unit.days if target in known}
        faults: list[DayFault] = []
        versions, active = {}, {}
        for name in sorted(unit.targets):
            # The version comes first: files read later than it make the commit fail, never pass.
            versions[name] = self.tables[name].version()
            active[name] = self.tables[name].active(unit.targets[name])
            mine = {day: e for (dataset, day), e in evidence.items() if dataset == name}
            faults += self._faults(unit, name, mine, active[name])
        return Survey(unit, evidence, versions, active, tuple(faults))

    def _faults(
        self, unit: Unit, name: str, evidence: Mapping[dt.date, DayEvidence], active: FilesByDay
    ) -> list[DayFault]:
        days = sorted(unit.targets[name])
        inputs, code, required = self.basis.inputs(name, days), self.basis.code(name), self.basis.checks(name)
        upstream, contract = self.basis.upstream(name, days, unit), unit.contract.of(name).hash
        layouts = {day: layout_digest(active.get(day, ())) for day in days}
        kept = self._same_content(name, evidence, layouts)
        faults: list[DayFault] = []
        for day in days:
            found = evidence.get(day)
            now = Basis(inputs[day], code, contract, layouts[day], upstream[day])
            if found is not None and day in kept:
                now = replace(now, published=found.basis.published)
            faults += faults_of((name, day), found, required, now)
        return faults + self._moved_shadows(name, evidence)

    def _same_content(
        self, name: str, evidence: Mapping[dt.date, DayEvidence], layouts: Mapping[dt.date, str]
    ) -> frozenset[dt.date]:
        moved = [day for day, e in evidence.items() if e.basis.published != layouts[day]]
        if not moved:
            return frozenset()
        now = self.fingerprints.of(name, moved)
        return frozenset(d for d in moved if now.get(d, "") == evidence[d].measured.published.fingerprint)

    def _moved_shadows(self, name: str, evidence: Mapping[dt.date, DayEvidence]) -> list[DayFault]:
        lost = self.tables[name].unreleasable(f for e in evidence.values() for f in e.shadow_files)
        return [DayFault(name, f.day, Fault.shadow_moved, f"{f.path} ({f.size} bytes)") for f in lost]


def refusal(unit: Unit, faults: Sequence[DayFault], datasets: Mapping[str, Dataset]) -> str:
    """Why a unit is not released, and what to do about it."""
    hint = relaunch_hint(unit, {fault.day for fault in faults}, datasets)
    return f"unit {unit.id} is not released:\n{explain_faults(faults)}\n{hint}"


def relaunch_hint(unit: Unit, days: Collection[dt.date], datasets: Mapping[str, Dataset]) -> str:
    """How to get the evidence that is lacking on some days, in all datasets of the unit: one is built from the other."""
    if unit.campaign:
        # Days built by hand would go past the campaign's gate and its budget.
        return (
            f"Get what is missing, and only that, with: backfill resume {unit.campaign}\n"
            f"See: backfill status {unit.campaign}"
        )
    held = {name: [day for day in found if day in days] for name, found in unit.targets.items()}
    lines = [
        f"  {in_words(datasets[name].built_layers if name in datasets else ('shadow',))} of {name} with their checks "
        f"for {format_days(held[name])}"
        for name in upstream_first(held, upstreams_of(datasets))
        if held[name]
    ]
    return "\n".join(
        [
            f"Get what is missing, and only that, with: backfill resume {unit.id}",
            "or materialize, and the unit goes on from there:",
            *lines,
            f"See: backfill status {unit.id}",
        ]
    )
