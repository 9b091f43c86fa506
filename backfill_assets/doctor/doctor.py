"""The doctor: do ledger, Delta logs, manifests, files, reports and the scheduler's event log say the same?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backfill_assets.core.errors import BackfillError
from backfill_assets.core.ports import Clock
from backfill_assets.core.release import is_ahead
from backfill_assets.core.unit import Lock
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.stored_tables import StoredTable, StoredTables
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.files import FilesExam
from backfill_assets.doctor.findings import Cure, EventLog, Finding, Gravity, Mend
from backfill_assets.doctor.releases import RECONCILE, PublishedExam
from backfill_assets.doctor.work import ClockExam, EventsExam, WorkExam
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.release.readers import DataReleases
from backfill_assets.storage.layout import ReportFolder

SETTLED = dt.timedelta(days=1)
"""How old a file or a run must be before the doctor takes it for left over: nothing works that long between two commits."""

_LOOKS = 3
"""How often a dataset is looked at that somebody releases meanwhile."""


@dataclass(frozen=True)
class Doctor:
    """Compares; changes nothing. Without `events` the scheduler is not asked."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]
    clock: Clock
    stored: StoredTables
    reports: ReportFolder
    datasets: Mapping[str, Dataset] = field(default_factory=dict)
    data_releases: DataReleases | None = None
    events: EventLog | None = None
    old_unit: dt.timedelta = dt.timedelta(days=7)
    settled: dt.timedelta = SETTLED

    def examine(self) -> tuple[Finding, ...]:
        """All findings, the worst first."""
        stored = self.stored.look()
        found = [*self._work(), *_examined("the table data_releases", self._projection(stored))]
        found += _examined("files", self._files(stored))
        for name in sorted(self.tables):
            found += _examined(f"published/{name}", self._published(name, stored))
        return tuple(sorted(dict.fromkeys(found), key=lambda f: (list(Gravity).index(f.severity), f.what)))

    def _files(self, stored: Sequence[StoredTable]) -> Iterator[Finding]:
        now = self.clock.now()
        exam = FilesExam(self.ledger, self.datasets, now, now - self.settled)
        there = {table.place for table in stored}
        gone = [StoredTable(f"raw/{name}", "raw", name) for name in self.datasets if f"raw/{name}" not in there]
        for table in (*stored, *gone):
            yield from exam.of_table(table)
        yield from exam.of_staging(stored)
        for name in sorted(self.tables):
            yield from exam.of_shadows(name, self.tables[name])
        yield from exam.of_evidence(self.tables)
        yield from exam.of_reports(self.reports)

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
            yield Finding(Gravity.warning, what, RECONCILE, Cure(Mend.reconcile))

    def _published(self, name: str, stored: Sequence[StoredTable]) -> Iterator[Finding]:
        now, place = self.clock.now(), f"published/{name}"
        table = next((t for t in stored if t.place == place), StoredTable(place, "published", name))
        # What a broken log says of releases is not worth comparing: its own findings come first.
        if table.readable:
            yield from self._standing_still(name, table)
        if self.events is not None:
            exam = EventsExam(self.ledger, self.events, now, now - self.settled)
            yield from exam.of_published(name, busy=self._lock(name) is not None)

    def _standing_still(self, name: str, stored: StoredTable) -> Sequence[Finding]:
        """What is found while nobody releases; who begins or ends in the middle is looked at again."""
        published, found = self.tables[name], list[Finding]()
        for _ in range(_LOOKS):
            lock, version = self._lock(name), published.version()
            exam = PublishedExam(name, self.ledger, published, self.clock.now(), stored, lock)
            found = list(exam.findings())
            if (lock is None) == (self._lock(name) is None) and published.version() == version:
                break
        return found

    def _lock(self, name: str) -> Lock | None:
        """The lock of whoever is releasing a dataset at this moment."""
        now = self.clock.now()
        # Nobody renews one that lies in the future: it was taken before the clock was set right.
        held = (lock for lock in self.ledger.locks() if lock.name == f"publish:{name}")
        return next((lock for lock in held if lock.until >= now and not is_ahead(lock.until, now)), None)


def _examined(what: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings; what cannot be looked at is one itself, and must not hide the others."""
    try:
        yield from findings
    except (BackfillError, OSError) as error:
        yield Finding(Gravity.error, f"{what} cannot be examined to the end: {error}", "mend that, and look again")
