"""Examines attempts, units, locks, campaigns, clocks and the scheduler's log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from backfill_assets.campaign.state import Action, Campaign, JournalEntry
from backfill_assets.core.days import format_days
from backfill_assets.core.release import AHEAD, ReleaseKind, ReleaseState, is_ahead
from backfill_assets.core.unit import Attempt, AttemptState, ReleaseRecord, Unit, UnitState
from backfill_assets.doctor.findings import LEDGER_ALTERED, RECONCILE, EventLog, Finding, Repair, RepairKind, RunAtWork
from backfill_assets.ledger.open import Ledger
from backfill_assets.release.finish import is_rollback, last_swaps, taken_back


@dataclass(frozen=True)
class WorkExam:
    """Examines the ledger alone at one moment; units that were opened before `old` are reported."""

    ledger: Ledger
    now: dt.datetime
    old: dt.datetime

    def findings(self) -> Iterator[Finding]:
        """What does not agree."""
        yield from self._attempts()
        yield from self._locks()
        for unit in self._open:
            yield from self._unit(unit)
        for campaign in self._campaigns.values():
            yield from self._campaign(campaign)

    def forgotten(self, known: Collection[str]) -> Iterator[Finding]:
        """Open units whose launch is not among the `known` ones of the scheduler; see `launches`."""
        at_work = {attempt.unit for attempt in self.ledger.attempts(state=AttemptState.running)}
        for unit in self._open:
            if not _is_looked_after(unit) and launch_of(unit) not in known and unit.id not in at_work:
                what = f"unit {unit.id} claims its days, but its launch {launch_of(unit)} is no longer in Dagster"
                yield Finding.warning(what, _how_to_continue(unit))

    @property
    def launches(self) -> frozenset[str]:
        """The launches of all open units that nothing but their launch goes on with."""
        return frozenset(launch_of(unit) for unit in self._open if not _is_looked_after(unit))

    @cached_property
    def _open(self) -> tuple[Unit, ...]:
        return self.ledger.units(states={UnitState.open})

    @cached_property
    def _campaigns(self) -> Mapping[str, Campaign]:
        return {campaign.id: campaign for campaign in self.ledger.campaigns()}

    def _attempts(self) -> Iterator[Finding]:
        for attempt in self.ledger.attempts(state=AttemptState.running):
            if attempt.lease_until < self.now:
                what = (
                    f"attempt {attempt.number} of {attempt.dataset} {format_days(attempt.days)} (run {attempt.run}) "
                    "counts as running, but its lease is over"
                )
                repair = Repair(RepairKind.attempt, str(attempt.number), attempt.dataset, attempt.unit)
                yield Finding.warning(what, "end its run if it still shows, and launch the days again", repair)

    def _locks(self) -> Iterator[Finding]:
        for lock in self.ledger.locks():
            if lock.until < self.now:
                what = f"the lock {lock.name} is left by {lock.holder}, whose lease ended at {lock.until:%Y-%m-%d %H:%M:%S} UTC"
                remedy = "nothing: the next process that needs it takes it over"
                yield Finding.info(what, remedy, Repair(RepairKind.lock, lock.name))

    def _unit(self, unit: Unit) -> Iterator[Finding]:
        campaign = self._campaigns.get(unit.campaign)
        if unit.campaign and (campaign is None or campaign.unit != unit.id):
            what = f"unit {unit.id} claims its days for campaign {unit.campaign}, whose launch was not completed"
            remedy = f"complete it (backfill launch {unit.campaign}) or give it up (backfill discard {unit.id})"
            yield Finding.warning(what, remedy)
        elif unit.opened_at <= self.old:
            what = f"unit {unit.id} of {unit.by} has been open since {unit.opened_at:%Y-%m-%d} and claims its days"
            remedy = f"go on with it as backfill status {unit.id} says, or give it up (backfill discard {unit.id})"
            yield Finding.info(what, remedy)

    def _campaign(self, campaign: Campaign) -> Iterator[Finding]:
        if campaign.unit:
            journal = self.ledger.journal(campaign.id)
            yield from self._approvals(campaign, journal)
            yield from self._journalled(campaign, journal)

    def _approvals(self, campaign: Campaign, journal: Collection[JournalEntry]) -> Iterator[Finding]:
        given = {approval.at for approval in self.ledger.approvals(campaign.unit)}
        noted = {entry.at for entry in journal if entry.action is Action.approved}
        for at in sorted(given - noted):
            what = f"campaign {campaign.id} has an approval of {at:%Y-%m-%d %H:%M:%S} UTC that is not in its journal"
            yield Finding.error(what, LEDGER_ALTERED)
        for at in sorted(noted - given):
            what = f"the journal of campaign {campaign.id} names an approval at {at:%Y-%m-%d %H:%M:%S} UTC that does not exist"
            yield Finding.error(what, LEDGER_ALTERED)

    def _journalled(self, campaign: Campaign, journal: Collection[JournalEntry]) -> Iterator[Finding]:
        records = self.ledger.releases(unit=campaign.unit)
        # Also those of a table that was given back: they were made.
        true = {r.manifest.release for r in records if r.state in {ReleaseState.finalized, ReleaseState.returned}}
        noted = {release for entry in journal for release in entry.released}
        unsettled = {r.manifest.release for r in records if r.state is ReleaseState.intent}
        for release in sorted(_to_be_noted(records) - noted):
            what = f"release {release} is not in the journal of its campaign {campaign.id}"
            yield Finding.warning(what, RECONCILE, Repair(RepairKind.reconcile))
        for release in sorted(noted - true - unsettled):
            what = f"the journal of campaign {campaign.id} names release {release}, which the ledger has not finalized"
            yield Finding.error(what, LEDGER_ALTERED)


def _is_looked_after(unit: Unit) -> bool:
    """Whether a sensor launches what is missing in the unit."""
    return bool(unit.campaign) or unit.catches_up


def launch_of(unit: Unit) -> str:
    """The Dagster backfill or run that opened a unit."""
    return unit.opened_by.partition("/")[0]


def _to_be_noted(records: Collection[ReleaseRecord]) -> frozenset[str]:
    """Releases that belong in a journal: not those that were taken back before readers could notice."""
    undone = taken_back(records)
    return frozenset(
        r.manifest.release
        for r in records
        if r.state is ReleaseState.finalized
        and r.manifest.campaign
        and r.manifest.release not in undone
        and (r.manifest.kind is ReleaseKind.publish or is_rollback(r))
    )


def _how_to_continue(unit: Unit) -> str:
    return f"go on with it (backfill resume {unit.id}) or give it up (backfill discard {unit.id})"


_REPORT_TIME = dt.timedelta(minutes=1)
"""How long a process may take to report its release."""
_NO_RELEASE = "a materialization that names no release"


@dataclass(frozen=True)
class EventsExam:
    """Compares the event log with the ledger at one moment; runs that were started before `settled` are checked."""

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
        """Units whose release a run may be about to report."""
        return frozenset(run.unit for run in self._runs) | {a.unit for own in self._attempts.values() for a in own}

    def of_published(self, name: str, start: dt.date, *, busy: bool) -> Iterator[Finding]:
        """Compares what the event log shows as published with what the ledger released; nothing while `busy`.

        Days before `start` are passed by in launches of a group, and released by nothing.
        """
        if busy:
            return
        records = self.ledger.releases(name)
        newest, reported = _newest(records), self.events.reported(name)
        shown = {day: release for day, release in reported.items() if release or day >= start}
        missing: dict[str, list[dt.date]] = {}
        for day, record in newest.items():
            if record.manifest.release not in _names(shown.get(day, "")) and not self._reporting(record):
                missing.setdefault(record.manifest.release, []).append(day)
        manifests = {record.manifest.release: record.manifest for record in records}
        for release, days in sorted(missing.items()):
            unit, kind = manifests[release].unit, manifests[release].kind
            what = f"release {release} of {name} was not reported to Dagster for {format_days(days)}"
            repair = Repair(RepairKind.report, release, name, unit, tuple(day.isoformat() for day in sorted(days)))
            # Publishing the unit of a rollback would undo the rollback.
            command = f"publish {unit}" if kind is ReleaseKind.publish else "doctor --repair"
            yield Finding.warning(what, f"run: backfill {command}, which reports it again", repair)
        yield from _never_released(name, {day: release for day, release in shown.items() if day not in newest})

    def _reporting(self, record: ReleaseRecord) -> bool:
        return (
            record.manifest.unit in self._at_work
            or self.now - _REPORT_TIME < record.manifest.created_at <= self.now + AHEAD
        )

    def _run(self, run: RunAtWork, attempts: Sequence[Attempt]) -> Iterator[Finding]:
        last = attempts[-1] if attempts else None
        if last is not None and last.state is AttemptState.lost and not _alive(attempts):
            what = (
                f"run {run.id} shows as started, but the lease of its attempt {last.number} of {last.dataset} is lost"
            )
            yield Finding.warning(
                what, "terminate it in Dagster", Repair(RepairKind.run, run.id, last.dataset, last.unit)
            )
        elif run.ended_process is not None and not self._overdue(attempts):
            what = f"run {run.id} shows as started, but its process {run.ended_process} is gone"
            yield Finding.warning(what, "terminate it in Dagster", Repair(RepairKind.run, run.id, unit=run.unit))
        elif not _alive(attempts) and run.started_at < self.settled:
            what = f"run {run.id} shows as started since {run.started_at:%Y-%m-%d %H:%M} UTC, and holds no lease"
            yield Finding.warning(what, "terminate it in Dagster if its process is gone")

    def _overdue(self, attempts: Sequence[Attempt]) -> bool:
        # An overdue attempt is a separate finding, whose repair also ends the run.
        return any(attempt.state is AttemptState.running and attempt.lease_until < self.now for attempt in attempts)


def _alive(attempts: Sequence[Attempt]) -> bool:
    # An attempt past its lease is a separate finding.
    return any(attempt.state is AttemptState.running for attempt in attempts)


def _newest(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, ReleaseRecord]:
    """The last release or rollback of each day: it decides what readers see, and both are reported to Dagster."""
    undone = taken_back(records)
    brought = (r for r in records if r.manifest.kind is not ReleaseKind.rollback and r.manifest.release not in undone)
    last = last_swaps((*brought, *filter(is_rollback, records)))
    return {day: record for day, (record, _) in last.items()}


def _names(shown: str) -> Sequence[str]:
    """The releases of all datasets that were released together."""
    return shown.split(", ")


def _never_released(name: str, shown: Mapping[dt.date, str]) -> Iterator[Finding]:
    by_release: dict[str, list[dt.date]] = {}
    for day, release in shown.items():
        by_release.setdefault(release, []).append(day)
    for release, days in sorted(by_release.items()):
        said = f"release {release}" if release else _NO_RELEASE
        what = f"Dagster shows {name} {format_days(days)} as published by {said}, but the ledger has no such release"
        remedy = "if the ledger lost it: backfill reconcile; otherwise wipe the materializations of these partitions in Dagster"
        yield Finding.warning(what, remedy)


_WRONG: Final = "that clock was ahead, or the one of this host is behind"
_RIGHT: Final = "set both right"


@dataclass(frozen=True)
class _Dated:
    """A record with a time: its name for people, who wrote it, and the time."""

    name: str
    by: str
    at: dt.datetime


@dataclass(frozen=True)
class ClockExam:
    """Examines the times in the ledger at one moment: they decide rollback windows and leases, but no order."""

    ledger: Ledger
    datasets: Collection[str]
    now: dt.datetime

    def findings(self) -> Iterator[Finding]:
        """The times that lie in the future."""
        for name in self.datasets:
            yield from self._releases(name)
        running = self.ledger.attempts(state=AttemptState.running)
        yield from self._ahead(
            "attempts", (_Dated(f"{a.number} of {a.dataset}", a.worker, a.started_at) for a in running),
            "end their runs if they still show: their leases would last until then",
        )  # fmt: skip
        locks = (_Dated(lock.name, lock.holder, lock.until) for lock in self.ledger.locks())
        yield from self._ahead("locks", locks, "nothing else: the next process that needs one takes it over")
        for kind, dated in (("units", self._units()), ("holds", self._holds()), ("journal entries", self._entries())):
            yield from self._ahead(kind, dated, "nothing else: these times decide nothing")

    def _releases(self, name: str) -> Iterator[Finding]:
        ahead = [r for r in self.ledger.releases(name) if is_ahead(r.manifest.created_at, self.now)]
        true = [r for r in ahead if r.state is ReleaseState.finalized]
        if lasting := [r for r in true if r.corrected is None]:
            what = (
                f"{self._about(lasting)}: no later release shows when it was made, so its rollback window does not end"
            )
            yield Finding.warning(what, f"{_RIGHT}; the next release of any dataset is dated right and ends this")
        if ended := [r for r in true if r.corrected is not None]:
            what = f"{self._about(ended)}: counts as made by {ended[-1].since:%Y-%m-%d %H:%M} UTC, the time of the next release"
            yield Finding.info(what, "nothing: later releases are dated right")

    def _about(self, releases: Collection[ReleaseRecord]) -> str:
        oldest = [*releases][-1].manifest
        more = f" and {len(releases) - 1} more" if len(releases) > 1 else ""
        return (
            f"release {oldest.release} of {oldest.dataset}{more} by {oldest.by} is dated {oldest.created_at:%Y-%m-%d %H:%M} UTC, "
            f"in the future: {_WRONG}"
        )

    def _units(self) -> Iterator[_Dated]:
        return (_Dated(u.id, u.by, u.opened_at) for u in self.ledger.units(states={UnitState.open}))

    def _holds(self) -> Iterator[_Dated]:
        for name in self.datasets:
            yield from (_Dated(f"{name} {hold.target[1]}", hold.by, hold.since) for hold in self.ledger.holds(name))

    def _entries(self) -> Iterator[_Dated]:
        for campaign in self.ledger.campaigns():
            journal = self.ledger.journal(campaign.id)
            yield from (_Dated(f"{e.action.value} of {campaign.id}", e.by, e.at) for e in journal)

    def _ahead(self, kind: str, dated: Iterable[_Dated], remedy: str) -> Iterator[Finding]:
        if found := [one for one in dated if is_ahead(one.at, self.now)]:
            first = found[0]
            what = (
                f"{len(found)} {kind} lie in the future, first {first.name} by {first.by} at {first.at:%Y-%m-%d %H:%M} UTC: "
                f"{_WRONG}"
            )
            yield Finding.warning(what, f"{_RIGHT}; {remedy}")
