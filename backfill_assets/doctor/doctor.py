"""The complete examination, and the safe repairs."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from backfill_assets.campaign.state import Action, JournalEntry
from backfill_assets.core.days import format_days, parse_day
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import SHADOW, is_ahead
from backfill_assets.core.unit import AttemptState, Lock
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.stored_tables import StoredTable, StoredTables
from backfill_assets.doctor.files import REPORTS, SOURCES, FilesExam, days_of
from backfill_assets.doctor.findings import (
    RECONCILE,
    EventLog,
    Finding,
    FindingSeverity,
    Repair,
    RepairKind,
    RepairResult,
)
from backfill_assets.doctor.releases import PublishedExam
from backfill_assets.doctor.work import ClockExam, EventsExam, WorkExam
from backfill_assets.evidence.references import References
from backfill_assets.release.finish import publish_locks
from backfill_assets.release.readers import DataReleases
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.storage.delivering import tidy
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.layout import ReportFolder
from backfill_assets.warehouse import OnWarehouse

SETTLED = dt.timedelta(days=1)
"""The age from which the doctor counts a file or a run as left over: no work takes that long between two commits."""

_LOOKS = 3
"""How often a dataset is examined if it is released meanwhile."""


@dataclass(frozen=True)
class Doctor(OnWarehouse):
    """Compares ledger, logs and files; changes nothing. Without `events` the scheduler is not asked."""

    stored: StoredTables
    reports: ReportFolder
    data_releases: DataReleases | None = None
    events: EventLog | None = None
    old_unit: dt.timedelta = dt.timedelta(days=7)
    settled: dt.timedelta = SETTLED

    def examine(self) -> tuple[Finding, ...]:
        """All findings, most severe first."""
        stored = self.stored.look()
        found = [*self._work(), *_examined("the table data_releases", self._projection(stored))]
        found += self._files(stored)
        for name in sorted(self.tables):
            found += _examined(f"published/{name}", self._published(name, stored))
        return tuple(sorted(dict.fromkeys(found), key=lambda f: (list(FindingSeverity).index(f.severity), f.what)))

    def _files(self, stored: Sequence[StoredTable]) -> Iterator[Finding]:
        now = self.clock.now()
        exam = FilesExam(self.ledger, self.definitions, self.layout, now, now - self.settled)
        there = {table.place for table in stored}
        gone = [StoredTable(f"raw/{name}", Layer.raw, name) for name in self.datasets if f"raw/{name}" not in there]
        for table in (*stored, *gone):
            yield from _examined(f"the files of {table.place}", exam.of_table(table))
        yield from exam.of_staging(stored)
        for name in sorted(self.tables):
            yield from _examined(f"the shadows of {name}", exam.of_shadows(name, self.tables[name]))
            yield from _examined(f"the evidence about {name}", exam.of_evidence(name, self.tables[name]))
            yield from _examined(f"the references of {name}", self._versions(name))
        yield from _examined(REPORTS, exam.of_reports(self.reports))
        yield from _examined(SOURCES, exam.of_sources(self.layout))

    def _versions(self, name: str) -> Iterator[Finding]:
        """Versions of references that published days see and that are not kept, or damaged."""
        lost = References(self.warehouse).lost(name) if name in self.datasets else {}
        for file, days in sorted(lost.items()):
            place = self.layout.kept_reference(name, file)
            what = f"{name} {format_days(days)}: {place}, the version of a reference that they were published with"
            yield Finding.warning(
                f"{what}, is not there or altered",
                "put that file there again from a backup; without it, these days can be built again only if `renew` of that "
                "reference names them",
            )

    def _work(self) -> Iterator[Finding]:
        now = self.clock.now()
        exam = WorkExam(self.ledger, now, now - self.old_unit)
        yield from exam.findings()
        yield from ClockExam(self.ledger, sorted(self.tables), now).findings()
        if self.events is not None:
            yield from exam.forgotten(self.events.known(exam.launches))
            yield from EventsExam(self.ledger, self.events, now, now - self.settled).of_runs()

    def _projection(self, stored: Sequence[StoredTable]) -> Iterator[Finding]:
        if self.data_releases is None or any(not t.readable for t in stored if t.place == DATA_RELEASES):
            return
        if differing := self.data_releases.differing():
            what = f"the table data_releases is not what the ledger says of {len(differing)} releases, first {differing[0]}"
            yield Finding.warning(what, RECONCILE, Repair(RepairKind.reconcile))

    def _published(self, name: str, stored: Sequence[StoredTable]) -> Iterator[Finding]:
        now, place = self.clock.now(), f"published/{name}"
        table = next((t for t in stored if t.place == place), StoredTable(place, Layer.published, name))
        # Do not compare releases with a broken log: its own findings come first.
        if table.readable:
            yield from self._at_rest(name, table)
        if self.events is not None:
            exam = EventsExam(self.ledger, self.events, now, now - self.settled)
            start = self.definitions[name].start if name in self.definitions else dt.date.min
            yield from exam.of_published(name, start, busy=self._lock(name) is not None)

    def _at_rest(self, name: str, stored: StoredTable) -> Sequence[Finding]:
        """The findings of a time without a release; examines again if one begins or ends meanwhile."""
        published, found = self.tables[name], list[Finding]()
        for _ in range(_LOOKS):
            lock, version = self._lock(name), published.version()
            exam = PublishedExam(name, self.ledger, published, self.clock.now(), stored, lock)
            found = list(exam.findings())
            if (lock is None) == (self._lock(name) is None) and published.version() == version:
                break
        return found

    def _lock(self, name: str) -> Lock | None:
        """The lock of the process that is releasing a dataset now."""
        now = self.clock.now()
        # A lock far in the future is not renewed by anyone: it was taken before the clock was corrected.
        held = (lock for lock in self.ledger.locks() if lock.name == f"publish:{name}")
        return next((lock for lock in held if lock.until >= now and not is_ahead(lock.until, now)), None)


def _examined(what: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings; what cannot be examined is a finding itself, and must not hide the others."""
    try:
        yield from findings
    except (BackfillError, OSError) as error:
        yield Finding.error(f"{what} cannot be examined completely: {error}", "fix that, and run: backfill doctor")


_LOG: Final = logging.getLogger(__name__)
_LOCK: Final = "doctor"
_NO_WAIT: Final = dt.timedelta(0)
_RECONCILE: Final = Repair(RepairKind.reconcile)
_ROUNDS: Final = 4
"""A log that can be read again may show more."""


@dataclass(frozen=True)
class Repairer:
    """Repairs what is safe. Each repair is safe to repeat: the next call finishes what a crash interrupted."""

    doctor: Doctor
    reconcile: Reconcile

    def repair(self) -> tuple[RepairResult, ...]:
        """Make all safe repairs, also of what shows only after the first ones; a failed one says why.

        Raises:
            LedgerError: another repair is running.
        """
        done: list[RepairResult] = []
        tried: set[Repair] = set()
        with self.doctor.ledger.lock(_LOCK, _NO_WAIT):
            for _ in range(_ROUNDS):
                found = self._found(tried)
                # In this order: a commit that was set aside decides what else needs repair.
                for repair in sorted(found, key=lambda c: list(RepairKind).index(c.kind)):
                    done += self._repaired(repair, found[repair])
                tried |= found.keys()
                if not any(repair.kind is not RepairKind.reconcile for repair in found):
                    break
                # The other repairs may have left more to reconcile.
                tried.discard(_RECONCILE)
        return tuple(done)

    def _found(self, tried: Collection[Repair]) -> Mapping[Repair, Sequence[Finding]]:
        found: dict[Repair, list[Finding]] = {}
        for finding in self.doctor.examine():
            if finding.repair is not None and finding.repair not in tried:
                found.setdefault(finding.repair, []).append(finding)
        return found

    def _repaired(self, repair: Repair, findings: Sequence[Finding]) -> Iterator[RepairResult]:
        try:
            # Recorded first: every repair must be on record, even if this process dies.
            for finding in findings:
                self._record(repair, finding)
            problem = self._carry_out(repair)
        except (BackfillError, OSError) as error:
            problem = str(error)
        return (RepairResult(repair, finding.what, problem) for finding in findings)

    def _record(self, repair: Repair, finding: Finding) -> None:
        _LOG.info("repair by %s: %s: %s", self.doctor.identity.name(), finding.what, finding.repair)
        doctor, text = self.doctor, f"{finding.what}: {finding.repair}"
        campaign = doctor.ledger.campaign_of(repair.unit) if repair.unit else None
        if campaign is not None:
            entry = JournalEntry(campaign.id, doctor.clock.now(), self.doctor.identity.name(), Action.repaired, text)
            doctor.ledger.note(entry)
        if repair.dataset and doctor.events is not None:
            doctor.events.note(repair.dataset, f"repaired by {self.doctor.identity.name()}: {text}")

    def _carry_out(self, repair: Repair) -> str:
        """Make the repair; returns why it failed, or nothing."""
        doctor = self.doctor
        with publish_locks(doctor.ledger, repair.locked, _NO_WAIT):
            match repair.kind:
                case RepairKind.set_aside | RepairKind.checkpoint | RepairKind.files:
                    self._in_files(repair)
                case RepairKind.manifest | RepairKind.commit | RepairKind.seal:
                    self._in_table(repair)
                case RepairKind.reconcile:
                    return self._reconcile()
                case RepairKind.attempt | RepairKind.run:
                    self._end(repair)
                case RepairKind.lock:
                    # Taking over and releasing a lock frees it; a lock that is held again stays held.
                    with doctor.ledger.lock(repair.subject, _NO_WAIT):
                        pass
                case RepairKind.stage:
                    self._forget_staged(repair.dataset)
                case RepairKind.report:
                    if doctor.events is not None:
                        doctor.events.report(repair.subject, [parse_day(day, "day") for day in repair.paths])
                case _:
                    assert_never(repair.kind)
        return ""

    def _reconcile(self) -> str:
        # A table that cannot be read must not prevent repairs of the others.
        broken = {table.dataset for table in self.doctor.stored.look() if not table.readable}
        done = self.reconcile.run([name for name in self.doctor.tables if name not in broken])
        return "; ".join(str(settled) for settled in done if settled.kind.left)

    def _in_files(self, repair: Repair) -> None:
        doctor, place = self.doctor, repair.subject
        if repair.kind is RepairKind.set_aside:
            if place.startswith("staging/"):
                self._forget_staged(repair.dataset)
            doctor.stored.set_aside(place, int(repair.paths[0]))
        elif repair.kind is RepairKind.checkpoint:
            doctor.stored.set_aside_checkpoint(place, int(repair.paths[0]))
        elif place == REPORTS:
            doctor.reports.remove(repair.paths)
        elif place == SOURCES:
            for folder in {path_of(doctor.layout.source(path)).parent for path in repair.paths}:
                tidy(folder)
        elif repair.paths[0].startswith(f"{SHADOW}/"):
            doctor.tables[repair.dataset].delete(repair.paths)
        else:
            doctor.stored.remove(place, repair.paths)

    def _in_table(self, repair: Repair) -> None:
        table = self.doctor.tables[repair.dataset]
        if repair.kind is RepairKind.seal:
            table.seal(repair.subject)
            return
        record = self.doctor.ledger.release(repair.subject)
        if repair.kind is RepairKind.manifest:
            table.restore_manifest(record.manifest)
        elif record.version is not None:
            table.commit(record.manifest, record.version - 1)

    def _forget_staged(self, dataset: str) -> None:
        """Mark all staged days of a dataset as staged from nothing known, so that they are staged again when needed."""
        ledger, days = self.doctor.ledger, days_of(self.doctor.definitions.get(dataset), self.doctor.clock.now())
        ledger.add_staged(replace(day, inputs="", code="") for day in ledger.staged(dataset, days).values())

    def _end(self, repair: Repair) -> None:
        ledger, now = self.doctor.ledger, self.doctor.clock.now()
        if repair.kind is RepairKind.attempt:
            # Check again: a worker that was only slow has renewed its lease meanwhile.
            running = ledger.attempts(state=AttemptState.running)
            over = [a for a in running if a.number == int(repair.subject) and a.lease_until < now]
            if not over:
                return
            run = over[0].run
        else:
            run = repair.subject
            over = list(ledger.attempts(state=AttemptState.running, run=run))
        for attempt in over:
            ledger.end_attempt(attempt.number, AttemptState.lost)
        if self.doctor.events is not None:
            self.doctor.events.fail(run, "the doctor found its worker dead; its unfinished work does not count")
