"""The scheduler's event log: does it show as published what the ledger released, and as started only who is at work?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backfill_assets.core.days import format_days
from backfill_assets.core.release import AHEAD, ReleaseKind, ReleaseState
from backfill_assets.core.unit import Attempt, AttemptState, ReleaseRecord
from backfill_assets.domain.health import Cure, Finding, Gravity, Mend, RunAtWork
from backfill_assets.domain.health_ports import EventLog
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.release.finish import is_rollback, taken_back

_TELLING = dt.timedelta(minutes=1)
"""How long whoever has released a unit may take until they have told of it."""
_NO_RELEASE = "a materialization that names no release"


@dataclass(frozen=True)
class EventsExam:
    """The event log beside the ledger, at one moment; runs that were started before `settled` are asked after."""

    ledger: Ledger
    events: EventLog
    now: dt.datetime
    settled: dt.datetime

    def of_runs(self) -> Iterator[Finding]:
        """Runs that show as started although their worker is dead."""
        for run in self._runs:
            yield from self._run(run, self._attempts.get(run.id, []))

    @cached_property
    def _runs(self) -> Sequence[RunAtWork]:
        return self.events.at_work()

    @cached_property
    def _attempts(self) -> Mapping[str, Sequence[Attempt]]:
        found: dict[str, list[Attempt]] = {run.id: [] for run in self._runs}
        for attempt in self.ledger.attempts() if found else ():
            if attempt.run in found:
                found[attempt.run].append(attempt)
        return found

    @cached_property
    def _at_work(self) -> frozenset[str]:
        """Units of which a run may be about to tell."""
        return frozenset(run.unit for run in self._runs) | {a.unit for own in self._attempts.values() for a in own}

    def of_published(self, name: str, *, busy: bool) -> Iterator[Finding]:
        """What the event log shows as published of a dataset, and what the ledger released; nothing while it is `busy`."""
        if busy:
            return
        records = self.ledger.releases(name)
        newest, told = _newest(records), self.events.told(name)
        lacking: dict[str, list[dt.date]] = {}
        for day, record in newest.items():
            if record.manifest.release not in _names(told.get(day, "")) and not self._telling(record):
                lacking.setdefault(record.manifest.release, []).append(day)
        manifests = {record.manifest.release: record.manifest for record in records}
        for release, days in sorted(lacking.items()):
            unit, kind = manifests[release].unit, manifests[release].kind
            what = f"release {release} of {name}: Dagster was not told of {format_days(days)}"
            cure = Cure(Mend.tell, release, name, unit, tuple(day.isoformat() for day in sorted(days)))
            # Publishing the unit of a rollback would undo the rollback.
            command = f"publish {unit}" if kind is ReleaseKind.publish else "doctor --repair"
            yield Finding(Gravity.warning, what, f"run: backfill {command}, which tells it again", cure)
        yield from _never_released(name, {day: release for day, release in told.items() if day not in newest})

    def _telling(self, record: ReleaseRecord) -> bool:
        return (
            record.manifest.unit in self._at_work
            or self.now - _TELLING < record.manifest.created_at <= self.now + AHEAD
        )

    def _run(self, run: RunAtWork, attempts: Sequence[Attempt]) -> Iterator[Finding]:
        last = attempts[-1] if attempts else None
        if last is not None and last.state is AttemptState.lost and not _alive(attempts):
            what = (
                f"run {run.id} shows as started, but the lease of its attempt {last.number} of {last.dataset} is lost"
            )
            yield Finding(
                Gravity.warning, what, "terminate it in Dagster", Cure(Mend.run, run.id, last.dataset, last.unit)
            )
        elif run.ended_process is not None and not self._overdue(attempts):
            what = f"run {run.id} shows as started, but its process {run.ended_process} is gone"
            yield Finding(Gravity.warning, what, "terminate it in Dagster", Cure(Mend.run, run.id, unit=run.unit))
        elif not _alive(attempts) and run.started_at < self.settled:
            what = f"run {run.id} shows as started since {run.started_at:%Y-%m-%d %H:%M} UTC, and holds no lease"
            yield Finding(Gravity.warning, what, "terminate it in Dagster if its process is gone")

    def _overdue(self, attempts: Sequence[Attempt]) -> bool:
        # It has a finding of its own, whose repair ends the run as well.
        return any(attempt.state is AttemptState.running and attempt.lease_until < self.now for attempt in attempts)


def _alive(attempts: Sequence[Attempt]) -> bool:
    # One that is past its lease is named as that.
    return any(attempt.state is AttemptState.running for attempt in attempts)


def _newest(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, ReleaseRecord]:
    """The last release of each day, be it a rollback: it decides what readers see, and Dagster is told of either."""
    undone = taken_back(records)
    newest: dict[dt.date, ReleaseRecord] = {}
    for record in sorted(records, key=lambda r: r.version or 0):
        manifest = record.manifest
        published = record.state is ReleaseState.finalized and manifest.kind is ReleaseKind.publish
        if is_rollback(record) or (published and manifest.release not in undone):
            newest |= {swap.day: record for swap in manifest.days}
    return newest


def _names(told: str) -> Sequence[str]:
    """The releases of all datasets that were released together."""
    return told.split(", ")


def _never_released(name: str, told: Mapping[dt.date, str]) -> Iterator[Finding]:
    by_release: dict[str, list[dt.date]] = {}
    for day, release in told.items():
        by_release.setdefault(release, []).append(day)
    for release, days in sorted(by_release.items()):
        said = f"release {release}" if release else _NO_RELEASE
        what = f"Dagster shows {name} {format_days(days)} as published by {said}, but the ledger has no such release"
        remedy = "if the ledger lost it: backfill reconcile; otherwise wipe the materializations of these partitions in Dagster"
        yield Finding(Gravity.warning, what, remedy)
