"""Publishes a unit: verifies everything under locks, then changes each dataset in one atomic commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from backfill_assets.core.errors import EvidenceError, ReadBackError, TakenBackError, UnitError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.release import Manifest, ReleaseKind, restorable_until
from backfill_assets.core.unit import Unit, UnitState, shown_days
from backfill_assets.evidence.basis import BasisNow
from backfill_assets.evidence.contents import ContentFingerprints
from backfill_assets.evidence.readiness import DayBlocker, Guard, Readiness, Sanction, Survey, no_guard, refusal
from backfill_assets.release.adopt import require_sole_writer
from backfill_assets.release.finish import (
    WAIT,
    After,
    Checkpoint,
    Finisher,
    in_rounds,
    last_publish,
    no_after,
    no_checkpoint,
    require_tables,
    undone_days,
)
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.release.sweep import SIGNED_OFF
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class _Outcome:
    """A unit that readers see: release, days and version by dataset, and the evidence behind it."""

    unit: str
    releases: Mapping[str, str]
    days: Mapping[str, tuple[dt.date, ...]]
    versions: Mapping[str, int]
    evidence: str

    @property
    def release(self) -> str:
        """The release; those of several datasets are separated by commas."""
        return ", ".join(self.releases[name] for name in sorted(self.releases))


@dataclass(frozen=True)
class Released(_Outcome):
    """This call released the unit."""


@dataclass(frozen=True)
class AlreadyReleased(_Outcome):
    """The unit was already released; nothing changed."""


_Kind = TypeVar("_Kind", bound=_Outcome)


@dataclass(frozen=True)
class Publisher(OnWarehouse):
    """Releases units in which every day has complete, passing and current evidence.

    `wait` is how long another release of one of the tables may take. `guard` may refuse a unit whose evidence is
    complete. `after` receives what is released.
    """

    fingerprints: ContentFingerprints
    basis: BasisNow
    wait: dt.timedelta = WAIT
    checkpoint: Checkpoint = no_checkpoint
    guard: Guard = no_guard
    after: After = no_after

    def survey(self, unit_id: str) -> Survey:
        """Everything that a release of the unit would check, as it is right now; takes no lock.

        Raises:
            UnitError: there is no such unit.
        """
        return self.readiness.survey(self.ledger.unit(unit_id))

    def blockers(self, unit_id: str) -> tuple[DayBlocker, ...]:
        """What keeps the unit from being released right now; takes no lock.

        Raises:
            UnitError: there is no such unit.
        """
        return self.survey(unit_id).blockers

    def evidence_hash(self, unit_id: str) -> str:
        """The hash of the unit's evidence; an approval names this hash."""
        return self.survey(unit_id).hash

    def release(
        self, unit_id: str, *, evidence_hash: str | None = None, reason: str = ""
    ) -> Released | AlreadyReleased:
        """Release the complete unit, or nothing; the days of a unit that is already released stay as they are.

        `evidence_hash` is the approved evidence: the release accepts no other.

        Raises:
            UnitError: there is no such unit, it was discarded, some of its days were rolled back later, or all of them so long
                ago that its files may be gone.
            TakenBackError: this process stood still meanwhile, and another one took back what was committed.
            ClaimedDaysError: it was rolled back completely, and another unit has claimed some of its days since.
            EvidenceError: evidence is missing, failed, stale or not the approved one; names days and remedy.
            ApprovalError: its campaign does not allow the release now.
            PreconditionError: a table or shadow is not in the state that the release needs.
            TableMovedError: other writers committed to a table during every attempt.
            LedgerError: another release of one of the tables takes too long.
        """
        names = tuple(self.ledger.unit(unit_id).targets)
        require_tables(self.tables, names)
        reconcile = Reconcile(self.warehouse, self.after)
        # Locks the upstreams too: the inputs of the days must not change between the verification and the commit.
        with reconcile.settled(names, {*names, *self._read_by(names)}, self.wait):
            outcome = in_rounds(lambda: self._release(unit_id, evidence_hash, reason))
        # Also for a unit that was already released: that run may have died before its follow-up.
        self.after(tuple(outcome.releases.values()))
        return outcome

    def _read_by(self, names: Sequence[str]) -> set[str]:
        return {above for name in names for above in self.catalog.upstreams.get(name, ())}

    @property
    def readiness(self) -> Readiness:
        """What the days still need before their release."""
        return Readiness(self.warehouse, self.fingerprints, self.basis)

    @property
    def _finisher(self) -> Finisher:
        return Finisher(self.warehouse)

    def _release(self, unit_id: str, evidence_hash: str | None, reason: str) -> Released | AlreadyReleased:
        unit = self.ledger.unit(unit_id)
        if unit.state is UnitState.published:
            return self._already(unit)
        if unit.state is UnitState.discarded:
            raise UnitError(f"unit {unit.id} was discarded; launch its days again for a new unit")
        self._require_kept(unit)
        survey, sanction = self._verified(unit, evidence_hash)
        if self._prepare(survey):
            # Creating the table or adding a column made a commit, so verify again on the new version.
            survey, sanction = self._verified(unit, evidence_hash)
        manifests = self._manifests(survey, sanction, reason)
        with self._open_again(unit):
            versions = self._commit_all(survey, manifests)
        self._finalize(unit, versions, manifests)
        self.checkpoint("finalize")
        self._finisher.seal(manifests)
        self.checkpoint("seal")
        return _outcome(Released, unit.id, manifests, versions)

    def _require_kept(self, unit: Unit) -> None:
        """Refuse a rolled-back unit whose files a sweep may delete, even one that is at work and has lost its lock."""
        if unit.state is not UnitState.rolled_back:
            return
        if unit.campaign and self.ledger.campaign(unit.campaign).phase not in SIGNED_OFF:
            return
        kept: dict[DatasetDay, dt.datetime] = {}
        for record in reversed(self.ledger.releases(unit=unit.id)):
            if record.since is not None:
                until = restorable_until(record.since, self.tables[record.manifest.dataset].keep_for)
                kept |= {(record.manifest.dataset, swap.day): until for swap in record.manifest.days}
        if over := [day for day in unit.days if day not in kept or kept[day] <= self.clock.now()]:
            raise UnitError(
                f"unit {unit.id} was rolled back, and its files of {shown_days(over)} are no longer kept (retention.keep_for of "
                "dataset.yaml); launch its days again for a new unit"
            )

    def _verified(self, unit: Unit, evidence_hash: str | None) -> tuple[Survey, Sanction]:
        survey = self.readiness.survey(unit)
        # The upstreams, too: rows that nobody has accepted must not go on into other tables.
        for name in sorted({*unit.targets, *self._read_by(tuple(unit.targets))}):
            # After the survey, whose version the commit compares: a writer in between must not be missed.
            if self.tables[name].adopted:
                require_sole_writer(name, self.tables[name], self.ledger.releases(name))
        if survey.blockers:
            raise EvidenceError(refusal(unit, survey.blockers, self.definitions))
        if evidence_hash is not None and evidence_hash != survey.hash:
            raise EvidenceError(
                f"unit {unit.id}: the approval is for evidence {evidence_hash[:16]}, but the unit's evidence is now "
                f"{survey.hash[:16]}: days have been checked again since. Review them and approve this evidence"
            )
        return survey, self.guard(survey)

    def _prepare(self, survey: Survey) -> bool:
        shadows = {
            (name, evidence.folder)
            for (name, _), evidence in survey.evidence.items()
            if evidence.shadow_files or survey.versions[name] < 0
        }
        for name, shadow in sorted(shadows):
            self.tables[name].prepare(shadow)
        return any(self.tables[name].version() != version for name, version in survey.versions.items())

    def _manifests(self, survey: Survey, sanction: Sanction, reason: str) -> tuple[Manifest, ...]:
        at, by, evidence = self.clock.now(), self.identity.name(), survey.hash
        return tuple(
            Manifest(
                release=self.ids.new("r"),
                kind=ReleaseKind.publish,
                dataset=name,
                unit=survey.unit.id,
                by=by,
                created_at=at,
                evidence=evidence,
                code_version=self.basis.code(name),
                days=survey.swaps(name),
                reason=reason,
                campaign=sanction.campaign,
                approved_by=sanction.approved_by,
                source_range=sanction.source_range,
                certificate=sanction.certificates.get(name, ""),
            )
            for name in self.catalog.upstream_first(survey.unit.targets)
        )

    @contextmanager
    def _open_again(self, unit: Unit) -> Iterator[None]:
        """Claim the days of a rolled-back unit again; give them back if nothing of it is committed in the end."""
        if unit.state is not UnitState.rolled_back:
            yield
            return
        self.ledger.move(unit.id, {UnitState.rolled_back}, UnitState.open)
        try:
            yield
        except ReadBackError:
            # It may be committed: others must not claim its days before reconcile has found out.
            raise
        except Exception:
            self._give_back(unit)
            raise

    def _give_back(self, unit: Unit) -> None:
        # Unless somebody has discarded it.
        with suppress(UnitError):
            self.ledger.move(unit.id, {UnitState.open}, UnitState.rolled_back)

    def _commit_all(self, survey: Survey, manifests: Sequence[Manifest]) -> Mapping[str, int]:
        for manifest in manifests:
            self.tables[manifest.dataset].store_manifest(manifest)
        self.checkpoint("manifest")
        for manifest in manifests:
            self.ledger.intend(manifest)
        self.checkpoint("intend")
        versions: dict[str, int] = {}
        try:
            for manifest in manifests:
                table = self.tables[manifest.dataset]
                versions[manifest.release] = table.commit(manifest, survey.versions[manifest.dataset])
                self.checkpoint("commit")
        except ReadBackError:
            # It is or may be committed, but the table could not be verified: a person has to look first.
            raise
        except Exception:
            self._take_back(versions, manifests)
            raise
        return versions

    def _finalize(self, unit: Unit, versions: Mapping[str, int], manifests: Sequence[Manifest]) -> None:
        try:
            self._finisher.publish(versions, manifests)
        except TakenBackError:
            self._take_back(versions, manifests)
            if unit.state is UnitState.rolled_back:
                self._give_back(unit)
            raise

    def _take_back(self, versions: Mapping[str, int], manifests: Sequence[Manifest]) -> None:
        self._finisher.take_back([m for m in manifests if m.release in versions], manifests)
        self.after(())

    def _already(self, unit: Unit) -> AlreadyReleased:
        history = self.ledger.releases(unit=unit.id)
        records = last_publish(history)
        if not records:
            raise UnitError(
                f"unit {unit.id} was published, and its table was given back since (backfill unadopt); launch its days again "
                "for a new unit"
            )
        undone = {(r.manifest.dataset, day) for r in records for day in undone_days(history, r.manifest.release)}
        if undone:
            raise UnitError(
                f"unit {unit.id} was published, and {shown_days(undone)} was rolled back since. A unit is released "
                "completely or not at all, and the rest is still published; launch these days again for a new unit"
            )
        # The run that published it may have stopped before the last step.
        self._finisher.seal([r.manifest for r in records])
        versions = {r.manifest.release: r.version for r in records if r.version is not None}
        return _outcome(AlreadyReleased, unit.id, [r.manifest for r in records], versions)


def _outcome(kind: type[_Kind], unit: str, manifests: Sequence[Manifest], versions: Mapping[str, int]) -> _Kind:
    return kind(
        unit=unit,
        releases={m.dataset: m.release for m in manifests},
        days={m.dataset: tuple(s.day for s in m.days) for m in manifests},
        versions={m.dataset: versions[m.release] for m in manifests if m.release in versions},
        evidence=manifests[0].evidence if manifests else "",
    )
