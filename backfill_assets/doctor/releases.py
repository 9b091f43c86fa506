"""Examines published tables: whether ledger, Delta log, manifests and files agree on every release."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backfill_assets.core.days import format_days
from backfill_assets.core.release import (
    CommitKind,
    DataFile,
    Manifest,
    ReleaseKind,
    ReleaseState,
    TableCommit,
    foreign_commits,
    restorable_until,
    shadow_of,
)
from backfill_assets.core.unit import Lock, ReleaseRecord, UnitState
from backfill_assets.delta.opening import LOG, commit_name
from backfill_assets.delta.reading import SEALED
from backfill_assets.delta.stored_tables import StoredTable
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.findings import RECONCILE, RESTORE_MANIFESTS, Finding, Repair, RepairKind
from backfill_assets.ledger.open import Ledger
from backfill_assets.release.finish import last_swaps, taken_back, unit_or_none


@dataclass(frozen=True)
class PublishedExam:
    """Examines one dataset at one moment; `busy` is the lock of the process that is releasing it now."""

    name: str
    ledger: Ledger
    table: PublishedTable
    now: dt.datetime
    stored: StoredTable
    busy: Lock | None = None

    def findings(self) -> Iterator[Finding]:
        """What does not agree."""
        for record in self._records.values():
            yield from self._release(record)
        yield from self._commits_findings()
        yield from self._manifest_findings()
        yield from self._contents()
        yield from self._files()
        yield from self._unsealed()

    @cached_property
    def _records(self) -> Mapping[str, ReleaseRecord]:
        return {r.manifest.release: r for r in self.ledger.releases(self.name)}

    @cached_property
    def _commits(self) -> Sequence[TableCommit]:
        # Before an adopted table was adopted, it may have been that of another warehouse.
        baselines = (r for r in self._true if r.manifest.kind is ReleaseKind.baseline)
        since = min((r.version or 0 for r in baselines), default=0)
        return [commit for commit in self.table.history() if commit.version >= since]

    @cached_property
    def _hashes(self) -> Mapping[str, str]:
        return {c.release: c.manifest for c in self._commits if c.kind is CommitKind.release}

    @cached_property
    def _manifests(self) -> Mapping[str, Manifest]:
        # If one cannot be read, none are compared: that finding comes first.
        return {} if self.stored.manifests else {m.release: m for m in self.table.manifests()}

    @cached_property
    def _active(self) -> Mapping[dt.date, tuple[DataFile, ...]]:
        return self.table.active()

    @cached_property
    def _true(self) -> Sequence[ReleaseRecord]:
        return [r for r in self._records.values() if r.state is ReleaseState.finalized]

    def _repair(self, kind: RepairKind, record: ReleaseRecord) -> Repair:
        return Repair(kind, record.manifest.release, self.name, record.manifest.unit)

    def _release(self, record: ReleaseRecord) -> Iterator[Finding]:
        release = record.manifest.release
        if record.state is ReleaseState.intent and self.busy:
            what = f"release {release} is being made by {self.busy.holder}"
            yield Finding.info(
                what, f"run backfill doctor again later: a dead holder loses its lock at {self.busy.until:%H:%M:%S} UTC"
            )
        elif record.state is ReleaseState.intent:
            what = f"release {release} is intended and not finished"
            yield Finding.warning(what, RECONCILE, Repair(RepairKind.reconcile))
        elif self._committed_anyway(record):
            what = f"release {release} was given up in the ledger, but is in the Delta log of its table"
            yield Finding.error(what, RECONCILE, Repair(RepairKind.reconcile))
        elif record.state is ReleaseState.finalized and not self._committed(release):
            what = f"release {release} is finalized in the ledger, but not in the Delta log of its table"
            remedy = "the table was replaced or restored from a backup; restore the ledger of the same time"
            # Only if a repair itself took it out of the log, and nothing was committed after it.
            lost = record.version in self.stored.set_aside and self.table.version() == (record.version or 0) - 1
            yield Finding.error(what, remedy, self._repair(RepairKind.commit, record) if lost else None)

    def _committed_anyway(self, record: ReleaseRecord) -> bool:
        return record.state is ReleaseState.abandoned and record.manifest.release in self._hashes

    def _committed(self, release: str) -> bool:
        return release in self._hashes or release in self._committed_before

    @cached_property
    def _committed_before(self) -> Mapping[str, int]:
        """The finalized releases whose commits have left the log, which keeps their transactions; in a long history, nearly all."""
        names = (record.manifest.release for record in self._true)
        return self.table.committed_among([name for name in names if name not in self._hashes])

    @cached_property
    def _foreign(self) -> Sequence[TableCommit]:
        return foreign_commits(self._commits)

    def _commits_findings(self) -> Iterator[Finding]:
        for commit in self._foreign:
            what = (
                f"{self.name}: version {commit.version} ({commit.operation}, {commit.at:%Y-%m-%d %H:%M}) is no release"
            )
            remedy = "find out who writes to the published table: only releases may"
            if self.table.adopted:
                accept = f"{remedy}; no release is made before you accept it: backfill adopt {self.name} --again"
                yield Finding.error(what, accept)
            else:
                yield Finding.warning(what, remedy)
        for commit in self._commits:
            if commit.kind is CommitKind.release and commit.release not in self._records:
                what = f"release {commit.release} is in the Delta log of {self.name}, but not in the ledger"
                known = self._manifests.get(commit.release)
                repair = Repair(RepairKind.reconcile) if known is not None and known.hash == commit.manifest else None
                yield Finding.error(what, RECONCILE if repair else f"{RESTORE_MANIFESTS}, then {RECONCILE}", repair)
            record = self._records.get(commit.release)
            if record is not None and record.manifest.hash != commit.manifest:
                what = f"the manifest of release {commit.release} in the ledger is not the one that was committed"
                yield Finding.error(
                    what, "restore the ledger from a backup; the release cannot be rolled back by this manifest"
                )
            stored = self._manifests.get(commit.release)
            if stored is not None and stored.hash != commit.manifest:
                what = f"the manifest of release {commit.release} on disk is not the one that was committed"
                yield Finding.error(what, f"{RESTORE_MANIFESTS}; do not roll back from this one")

    def _manifest_findings(self) -> Iterator[Finding]:
        for release in self.stored.manifests:
            what = f"the manifest of release {release} of {self.name} cannot be read"
            yield Finding.error(what, RESTORE_MANIFESTS, self._manifest_repair(self._records.get(release)))
        if self.stored.manifests:
            return
        for record in self._true:
            if record.manifest.release not in self._manifests:
                what = f"release {record.manifest.release} has no manifest beside its table"
                yield Finding.warning(
                    what, f"{RESTORE_MANIFESTS}; the ledger still has it", self._manifest_repair(record)
                )
        for release in self._manifests.keys() - self._records.keys() - self._hashes.keys():
            if self.table.committed(release) is not None:
                what = f"release {release} has a manifest and a commit, but the ledger does not know it"
                yield Finding.error(what, RECONCILE, Repair(RepairKind.reconcile))

    def _manifest_repair(self, record: ReleaseRecord | None) -> Repair | None:
        """Write the ledger's manifest again if it is the committed one, or if the log no longer says which one was."""
        if record is None:
            return None
        own = record.manifest.hash
        return (
            self._repair(RepairKind.manifest, record) if self._hashes.get(record.manifest.release, own) == own else None
        )

    def _contents(self) -> Iterator[Finding]:
        """Whether readers see the files of each day's last release; foreign commits are findings of their own."""
        oldest = min((c.version for c in self._commits), default=0)
        unsettled = any(r.state is ReleaseState.intent or self._committed_anyway(r) for r in self._records.values())
        if unsettled or self.busy or self._foreign:
            return
        differing = [
            (day, record.manifest.release)
            for day, (record, swap) in sorted(last_swaps(self._true).items())
            if (record.version or 0) >= oldest
            and {f.identity for f in swap.add} != {f.identity for f in self._active.get(day, ())}
        ]
        if differing:
            days, releases = [day for day, _ in differing], sorted({release for _, release in differing})
            what = f"{self.name} {format_days(days)}: readers see other files than {', '.join(releases[:3])} brought"
            yield Finding.error(
                what, "the log was cut or replaced: restore it from a backup, or publish these days again"
            )

    def _files(self) -> Iterator[Finding]:
        lost = self.table.missing_files(f for files in self._active.values() for f in files)
        if lost:
            days = format_days(f.day for f in lost)
            what = f"{self.name} {days}: {len(lost)} files that readers see are gone or have another size, first {lost[0].path}"
            yield Finding.error(what, "restore them from a backup, or build and publish these days again")
        for record in self._true:
            gone = self.table.missing_files(record.manifest.removed) if self._restorable(record) else ()
            if gone:
                days = format_days(f.day for f in gone)
                what = f"release {record.manifest.release} cannot be rolled back for {days}: files are gone"
                yield Finding.warning(what, "restore them from a backup, or roll back other days only")

    def _restorable(self, record: ReleaseRecord) -> bool:
        if record.manifest.kind is not ReleaseKind.publish or record.since is None:
            return False
        return self.now < restorable_until(record.since, self.table.keep_for)

    def _unsealed(self) -> Iterator[Finding]:
        """Shadows whose files readers see and that an engine could still open as tables."""
        undone = taken_back(self._records.values())
        published = [
            r for r in self._true if r.manifest.kind is ReleaseKind.publish and r.manifest.release not in undone
        ]
        if self.busy or not published:
            return
        sizes: dict[str, dict[str, int]] = defaultdict(dict)
        for file in self.table.stored_files():
            *above, name = file.path.split("/", 4)
            sizes["/".join(above)][name] = file.size
        for record in published:
            for folder in sorted({shadow_of(f.path) for f in record.manifest.added}):
                log, sealed = sizes.get(f"{folder}/{LOG}", {}), sizes.get(f"{folder}/{SEALED}", {})
                # A log of a late writer has other commits than the sealed one; in a bucket a seal may have been cut off.
                if not log or (commit_name(0) in sealed and not log.items() <= sealed.items()):
                    continue
                unit = unit_or_none(self.ledger, record.manifest.unit)
                if unit is None or unit.state is not UnitState.open:
                    what = (
                        f"the shadow {folder} of {self.name} is published, but still a table that could be written to"
                    )
                    repair = Repair(RepairKind.seal, folder, self.name, record.manifest.unit)
                    yield Finding.info(what, "publish its unit again, which seals it", repair)
