"""Finds what a unit is missing before its release, why, and which command to run next."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from backfill_assets.core.days import format_days, grouped_by_text
from backfill_assets.core.evidence import Basis, DatasetDay, DayEvidence, unit_hash
from backfill_assets.core.release import DataFile, DaySwap, layout_digest
from backfill_assets.core.text import in_words
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import upstream_first, upstreams_of
from backfill_assets.evidence.basis import BasisNow
from backfill_assets.evidence.contents import ContentFingerprints, Contents
from backfill_assets.warehouse import OnWarehouse


class Blocker(StrEnum):
    """Why the evidence of a day does not allow its release."""

    missing = "is not built yet"
    incomplete = "is missing verdicts"
    failed = "failed its checks"
    inputs_moved = "is stale: its deliveries, references or golden sources changed since it was checked"
    upstream_moved = "is stale: its upstream changed since it was checked"
    code_moved = "is stale: the dataset's code changed since it was checked"
    contract_moved = "is stale: it was checked against another expected change"
    published_moved = "is stale: the published day was rewritten since it was checked"
    altered = "has evidence that was altered in the ledger after it was recorded"
    shadow_moved = "is stale: its shadow files, or the log of its shadow, are gone or altered"

    @property
    def state(self) -> str:
        """The same in one word: missing, failed or stale."""
        if self is Blocker.failed:
            return "failed"
        return "missing" if self in {Blocker.missing, Blocker.incomplete} else "stale"


MOVED = frozenset({Blocker.inputs_moved, Blocker.upstream_moved, Blocker.published_moved})
"""What makes a passed day stale although nothing failed."""
UNFINISHED = frozenset({Blocker.missing, Blocker.incomplete, Blocker.failed, Blocker.upstream_moved})
"""What another run of the same launch still builds, or has already reported."""


@dataclass(frozen=True)
class DayBlocker:
    """One reason why one day cannot be released."""

    dataset: str
    day: dt.date
    reason: Blocker
    detail: str = ""

    @property
    def words(self) -> str:
        """The reason in words."""
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


def blockers_of(
    day: DatasetDay, evidence: DayEvidence | None, required: Iterable[str], now: Basis
) -> tuple[DayBlocker, ...]:
    """What is wrong with a day's evidence, given the required checks and the current basis; empty means releasable.

    `now.published` may be the evidence's own digest if only the layout of the published files changed, not the content.
    """
    dataset, date = day
    if evidence is None:
        return (DayBlocker(dataset, date, Blocker.missing),)
    if evidence.altered:
        return (DayBlocker(dataset, date, Blocker.altered),)
    blockers = []
    missing = sorted(set(required) - {v.check for v in evidence.verdicts})
    if missing:
        blockers.append(DayBlocker(dataset, date, Blocker.incomplete, ", ".join(missing)))
    blockers += [DayBlocker(dataset, date, Blocker.failed, str(v)) for v in evidence.verdicts if v.refuses]
    moved: dict[Blocker, tuple[str, str]] = {
        Blocker.inputs_moved: (evidence.basis.inputs, now.inputs),
        Blocker.upstream_moved: (evidence.basis.upstream, now.upstream),
        Blocker.code_moved: (evidence.basis.code, now.code),
        Blocker.contract_moved: (evidence.basis.contract, now.contract),
    }
    if evidence.verdicts:
        # Without verdicts, the day has not been compared with the published day, so no change can matter.
        moved[Blocker.published_moved] = (evidence.basis.published, now.published)
    blockers += [DayBlocker(dataset, date, reason) for reason, (then, today) in moved.items() if then != today]
    return tuple(blockers)


def explain_blockers(blockers: Iterable[DayBlocker], most: int = 10) -> str:
    """One line per dataset and kind of blocker, days in ranges, with up to `most` details each, similar ones only once."""
    grouped: dict[tuple[str, Blocker], list[DayBlocker]] = {}
    for blocker in blockers:
        grouped.setdefault((blocker.dataset, blocker.reason), []).append(blocker)
    lines = []
    for (dataset, kind), members in sorted(grouped.items()):
        lines.append(f"{dataset} {format_days(f.day for f in members)} {kind.value}")
        details = [f"    {text}" for text in grouped_by_text((f.day, f.detail) for f in members if f.detail)]
        lines += details[:most] + ([f"    … {len(details) - most} more"] if len(details) > most else [])
    return "\n".join(lines)


FilesByDay = Mapping[dt.date, tuple[DataFile, ...]]
_Evidence = Mapping[dt.date, DayEvidence | None]


@dataclass(frozen=True)
class Sanction:
    """What a release records of its campaign (empty without a campaign), and its passing certificate by dataset."""

    campaign: str = ""
    approved_by: str = ""
    source_range: str = ""
    certificates: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Obstacles:
    """What keeps a campaign with passing evidence from being released: `refusals`, and `later`, why not right now.

    `remedy` is the command that ends the refusals, if one does; `proof` the one that gets the certificate that it lacks.
    """

    refusals: tuple[str, ...] = ()
    later: str = ""
    remedy: str = ""
    proof: str = ""


NO_OBSTACLES: Final = Obstacles()
"""Nothing keeps it from being released."""


@dataclass(frozen=True)
class Survey:
    """The evidence of the unit's days, the version and active files of each table, and all blockers."""

    unit: Unit
    evidence: Mapping[DatasetDay, DayEvidence]
    versions: Mapping[str, int]
    active: Mapping[str, FilesByDay]
    blockers: tuple[DayBlocker, ...]

    @property
    def hash(self) -> str:
        """The evidence hash that an approval names."""
        return unit_hash(self.evidence.values())

    def swaps(self, name: str) -> tuple[DaySwap, ...]:
        """What a release would do to the days of a dataset that have evidence, in order."""
        found = ((day, self.evidence.get((name, day))) for day in sorted(self.unit.targets[name]))
        active = self.active[name]
        return tuple(DaySwap(day, active.get(day, ()), e.shadow_files, e.hash) for day, e in found if e is not None)


Guard = Callable[[Survey], Sanction]
"""Called under the locks before a unit with complete evidence is released; raises to refuse."""


def no_guard(_survey: Survey) -> Sanction:
    """Allow every unit."""
    return Sanction()


@dataclass(frozen=True)
class Readiness(OnWarehouse):
    """Finds what the days of a unit still need before their release; reads only.

    Runs before the gate, the guard, a relaunch, status, report and release all use it. If the files of a published day
    changed after its evidence was compared with them, `fingerprints` tell whether the rows changed too; without
    `fingerprints`, changed files count as changed rows.
    """

    fingerprints: ContentFingerprints | None
    basis: BasisNow

    def survey(self, unit: Unit) -> Survey:
        """Survey all days of a unit."""
        known = self.ledger.evidence(unit.id)
        evidence = {target: known[target] for target in unit.days if target in known}
        blockers: list[DayBlocker] = []
        versions, active = {}, {}
        for name in sorted(unit.targets):
            # Read the version first: if the files change after it, the commit fails instead of passing.
            versions[name] = self.tables[name].version()
            active[name] = self.tables[name].active(unit.targets[name])
            mine = {day: e for (dataset, day), e in evidence.items() if dataset == name}
            blockers += self._blockers(unit, name, dict.fromkeys(unit.targets[name]) | mine, active[name])
        return Survey(unit, evidence, versions, active, tuple(blockers))

    def blockers(self, unit: Unit, name: str, days: Collection[dt.date]) -> tuple[DayBlocker, ...]:
        """What keeps these days of a unit's dataset from being released."""
        return tuple(self._blockers(unit, name, self._evidence(unit, name, days), self.tables[name].active(days)))

    def is_current(self, unit: Unit, name: str, days: Collection[dt.date]) -> bool:
        """Whether readers see what a unit released for these days, and its evidence is still current."""
        evidence, active = self._evidence(unit, name, days), self.tables[name].active(days)
        then = {day: found.basis.published for day, found in evidence.items() if found is not None}
        if self._moved(unit, name, evidence, then):
            return False
        return all(
            found is not None and layout_digest(active.get(day, ())) == layout_digest(found.shadow_files)
            for day, found in evidence.items()
        )

    def _evidence(self, unit: Unit, name: str, days: Collection[dt.date]) -> _Evidence:
        found = self.ledger.evidence(unit.id, name, days)
        return {day: found.get((name, day)) for day in days}

    def _blockers(self, unit: Unit, name: str, evidence: _Evidence, active: FilesByDay) -> list[DayBlocker]:
        published = {day: layout_digest(active.get(day, ())) for day in evidence}
        known = {day: found for day, found in evidence.items() if found is not None}
        published |= {day: known[day].basis.published for day in self._same_content(name, known, published)}
        lost = self.tables[name].unreleasable(f for found in known.values() for f in found.shadow_files)
        shadows = [DayBlocker(name, f.day, Blocker.shadow_moved, f"{f.path} ({f.size} bytes)") for f in lost]
        return self._moved(unit, name, evidence, published) + shadows

    def _moved(self, unit: Unit, name: str, evidence: _Evidence, published: Mapping[dt.date, str]) -> list[DayBlocker]:
        days = sorted(evidence)
        inputs, code, required = self.basis.inputs(name, days), self.basis.code(name), self.basis.checks(name)
        upstream, contract = self.basis.upstream(name, days, unit), unit.contract.of(name).hash
        return [
            blocker
            for day in days
            for now in (Basis(inputs[day], code, contract, published.get(day, ""), upstream[day]),)
            for blocker in blockers_of((name, day), evidence[day], required, now)
        ]

    def _same_content(
        self, name: str, evidence: Mapping[dt.date, DayEvidence], layouts: Mapping[dt.date, str]
    ) -> frozenset[dt.date]:
        # Evidence without verdicts has not been compared with the published day yet.
        moved = [day for day, e in evidence.items() if e.verdicts and e.basis.published != layouts[day]]
        if not moved or self.fingerprints is None:
            return frozenset()
        # `Contents` stores what it has read: this is called many times, also while a run waits for another one.
        now = Contents(self.warehouse, self.fingerprints).of(name, moved)
        return frozenset(day for day in moved if now[day] == evidence[day].measured.published.fingerprint)


def refusal(unit: Unit, blockers: Sequence[DayBlocker], datasets: Mapping[str, Dataset]) -> str:
    """Why a unit is not released, and what to do about it."""
    hint = relaunch_hint(unit, {blocker.day for blocker in blockers}, datasets)
    return f"unit {unit.id} is not released:\n{explain_blockers(blockers)}\n{hint}"


def relaunch_hint(unit: Unit, days: Collection[dt.date], datasets: Mapping[str, Dataset]) -> str:
    """How to get the missing evidence of some days, in all datasets of the unit, because they depend on each other."""
    if unit.campaign:
        # Days built by hand would bypass the campaign's gate and budget.
        return f"Build only what is missing: backfill resume {unit.campaign}\nSee: backfill status {unit.campaign}"
    held = {name: [day for day in found if day in days] for name, found in unit.targets.items()}
    lines = [
        f"  {in_words(datasets[name].built_layers if name in datasets else ('shadow',))} of {name} with their checks "
        f"for {format_days(held[name])}"
        for name in upstream_first(held, upstreams_of(datasets))
        if held[name]
    ]
    return "\n".join(
        [
            f"Build only what is missing: backfill resume {unit.id}",
            "or materialize these assets; the unit continues from there:",
            *lines,
            f"See: backfill status {unit.id}",
        ]
    )


def next_command(survey: Survey) -> str:
    """The command that goes on with an open unit."""
    unit = survey.unit
    if unit.campaign:
        # Its state decides: a campaign whose backfill is still running cannot be resumed.
        return f"backfill status {unit.campaign}"
    if survey.blockers:
        return f"backfill resume {unit.id}"
    return f"backfill publish {unit.id} --evidence {survey.hash}"


@dataclass(frozen=True)
class Command:
    """A possible next step, and the command that does it."""

    purpose: str
    text: str


def commands_for(
    unit: Unit, ready: str, pending: str, undoable: Sequence[str], obstacles: Obstacles = NO_OBSTACLES, *, works: bool = False
) -> tuple[Command, ...]:  # fmt: skip
    """The possible next steps for a unit.

    `ready` is the hash of all evidence if the unit can be released, `pending` that of the evidence that waits for an approval;
    each is empty otherwise. `undoable` are the releases that can be rolled back. `obstacles` keep it from being released in spite
    of that. `works` says that the unit's campaign is building its days.
    """
    undo = [Command("roll back", f"backfill rollback {release} --reason '…'") for release in undoable]
    discard = Command("discard it", f"backfill discard {unit.handle}")
    # Only an open unit can be resumed or discarded; a rolled-back unit with stale evidence is launched as a new one.
    if unit.state in {UnitState.discarded, UnitState.published} or (unit.state is UnitState.rolled_back and not ready):
        return tuple(undo)
    if obstacles.refusals:
        if unit.state is not UnitState.open:
            return tuple(undo)
        return Command("go on with it", obstacles.remedy or f"backfill status {unit.handle}"), *undo, discard
    if ready and obstacles.proof:
        prove = Command("get the certificate that it needs", obstacles.proof)
        return (prove, *undo, discard) if unit.state is UnitState.open else (prove, *undo)
    if works and not ready:
        return Command("see how far it is", f"backfill status {unit.handle}"), discard
    if not ready:
        return Command("build only what is missing, failed or stale", f"backfill resume {unit.handle}"), discard
    found = [Command("approve", f"backfill approve {unit.campaign} --evidence {pending}")] if pending else []
    evidence = "" if unit.campaign else f" --evidence {ready}"
    found.append(Command("publish", f"backfill publish {unit.handle}{evidence}"))
    later = Command("roll back, once it is published", "backfill rollback RELEASE --reason '…'")
    return *found, *(undo or [later])
