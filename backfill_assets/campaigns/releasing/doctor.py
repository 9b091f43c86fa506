"""The doctor: does the ledger say what the Delta logs, the manifests and the files on disk say?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from backfill_assets.campaigns.releasing.data_releases import DataReleases
from backfill_assets.domain.days import format_days
from backfill_assets.domain.ports import Clock, Ledger, PublishedTable
from backfill_assets.domain.release import CommitKind, Manifest, ReleaseKind, ReleaseState, TableCommit
from backfill_assets.domain.retention import restorable_until
from backfill_assets.domain.units import UnitState
from backfill_assets.domain.work import AttemptState, ReleaseRecord

_RECONCILE = "run: backfill reconcile"


class Gravity(StrEnum):
    """How bad a finding is."""

    error = "error"
    warning = "warning"
    info = "info"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be, and what to do about it."""

    severity: Gravity
    what: str
    remedy: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.severity.value}: {self.what}; {self.remedy}"


@dataclass(frozen=True)
class Doctor:
    """Compares; changes nothing."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]
    clock: Clock
    old_unit: dt.timedelta = dt.timedelta(days=7)
    data_releases: DataReleases | None = None

    def examine(self) -> tuple[Finding, ...]:
        """All findings, the worst first."""
        found = [f for name in sorted(self.tables) for f in self._examine(name)]
        found += [*self._expired_attempts(), *self._old_units(), *self._projection()]
        return tuple(sorted(found, key=lambda f: (list(Gravity).index(f.severity), f.what)))

    def _projection(self) -> Iterator[Finding]:
        differing = self.data_releases.differing() if self.data_releases else ()
        if differing:
            what = f"the table data_releases is not what the ledger says of {len(differing)} releases, first {differing[0]}"
            yield Finding(Gravity.warning, what, _RECONCILE)

    def _examine(self, name: str) -> Iterator[Finding]:
        table = self.tables[name]
        records = {r.manifest.release: r for r in self.ledger.releases(name)}
        manifests = {m.release: m for m in table.manifests()}
        commits = table.history()
        yield from self._releases(table, records)
        yield from _commits(name, commits, records, manifests)
        yield from _manifests(table, manifests, records)
        yield from self._files(name, records)

    def _releases(self, table: PublishedTable, records: Mapping[str, ReleaseRecord]) -> Iterator[Finding]:
        for release, record in records.items():
            if record.state is ReleaseState.intent:
                yield Finding(Gravity.warning, f"release {release} is intended and not finished", _RECONCILE)
            elif record.state is ReleaseState.finalized and table.committed(release) is None:
                what = f"release {release} is finalized in the ledger, but not in the Delta log of its table"
                remedy = "the table was replaced or restored from a backup; restore the ledger of the same time"
                yield Finding(Gravity.error, what, remedy)

    def _files(self, name: str, records: Mapping[str, ReleaseRecord]) -> Iterator[Finding]:
        table = self.tables[name]
        active = table.active()
        lost = table.missing_files(f for files in active.values() for f in files)
        if lost:
            what = f"{name} {format_days(f.day for f in lost)}: {len(lost)} files that readers see are gone, first {lost[0].path}"
            yield Finding(Gravity.error, what, "restore them from a backup, or build these days anew and publish")
        for release, record in records.items():
            if not self._restorable(record, table.keep_for):
                continue
            gone = table.missing_files(record.manifest.removed)
            if gone:
                what = f"release {release} cannot be rolled back for {format_days(f.day for f in gone)}: files are gone"
                yield Finding(Gravity.warning, what, "restore them from a backup, or roll back other days only")

    def _restorable(self, record: ReleaseRecord, keep_for: dt.timedelta) -> bool:
        if record.manifest.kind is not ReleaseKind.publish or record.committed_at is None:
            return False
        return self.clock.now() < restorable_until(record.committed_at, keep_for)

    def _expired_attempts(self) -> Iterator[Finding]:
        for attempt in self.ledger.attempts(state=AttemptState.running):
            if attempt.lease_until < self.clock.now():
                what = (
                    f"attempt {attempt.number} of {attempt.dataset} {format_days(attempt.days)} (run {attempt.run}) "
                    "counts as running, but its lease is over"
                )
                yield Finding(Gravity.warning, what, "end its run if it still shows, and launch the days again")

    def _old_units(self) -> Iterator[Finding]:
        for unit in self.ledger.units(states={UnitState.open}):
            if self.clock.now() - unit.opened_at >= self.old_unit:
                what = f"unit {unit.id} of {unit.by} has been open since {unit.opened_at:%Y-%m-%d} and claims its days"
                remedy = f"publish it (backfill publish {unit.id}) or give it up (backfill discard {unit.id})"
                yield Finding(Gravity.info, what, remedy)


def _commits(
    name: str,
    commits: tuple[TableCommit, ...],
    records: Mapping[str, ReleaseRecord],
    manifests: Mapping[str, Manifest],
) -> Iterator[Finding]:
    for commit in commits:
        if commit.kind is CommitKind.foreign:
            what = f"{name}: version {commit.version} ({commit.operation}, {commit.at:%Y-%m-%d %H:%M}) is no release"
            yield Finding(Gravity.warning, what, "find out who writes to the published table: only releases may")
        elif commit.kind is CommitKind.release and commit.release not in records:
            what = f"release {commit.release} is in the Delta log of {name}, but not in the ledger"
            yield Finding(Gravity.error, what, _RECONCILE)
        if commit.kind is CommitKind.release:
            stored = manifests.get(commit.release)
            if stored is not None and stored.hash != commit.manifest:
                what = f"the manifest of release {commit.release} on disk is not the one that was committed"
                yield Finding(Gravity.error, what, "restore _releases/ from a backup; do not roll back from this one")


def _manifests(
    table: PublishedTable, manifests: Mapping[str, Manifest], records: Mapping[str, ReleaseRecord]
) -> Iterator[Finding]:
    for release, record in records.items():
        if release not in manifests and record.state is ReleaseState.finalized:
            what = f"release {release} has no manifest beside its table"
            yield Finding(Gravity.warning, what, "restore _releases/ from a backup; the ledger still has it")
    for release in manifests:
        if release not in records and table.committed(release) is not None:
            what = f"release {release} has a manifest and a commit, but the ledger does not know it"
            yield Finding(Gravity.error, what, _RECONCILE)
