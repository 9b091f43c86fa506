"""Work: attempts whose worker died, units that nobody launches any more, locks of the dead, campaigns and their journals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from backfill_assets.campaign.state import Action, Campaign, JournalEntry
from backfill_assets.campaigns.examining.releases import RECONCILE
from backfill_assets.core.days import format_days
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.core.unit import AttemptState, ReleaseRecord, Unit, UnitState
from backfill_assets.domain.health import Cure, Finding, Gravity, Mend
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.release.finish import is_rollback, taken_back

_RESTORE = "the ledger was altered: restore it from a backup, or find out who writes to it"
_TOLD = frozenset({Action.published, Action.rolled_back})


@dataclass(frozen=True)
class WorkExam:
    """The ledger alone, at one moment; a unit that was opened before `old` is mentioned."""

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
        """Open units whose launch is not among those that the scheduler knows; see `launches`."""
        at_work = {attempt.unit for attempt in self.ledger.attempts(state=AttemptState.running)}
        for unit in self._open:
            if not unit.campaign and launch_of(unit) not in known and unit.id not in at_work:
                what = f"unit {unit.id} claims its days, but its launch {launch_of(unit)} is no longer in Dagster"
                yield Finding(Gravity.warning, what, _go_on(unit))

    @property
    def launches(self) -> frozenset[str]:
        """The launches of all open units that no campaign has opened."""
        return frozenset(launch_of(unit) for unit in self._open if not unit.campaign)

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
                cure = Cure(Mend.attempt, str(attempt.number), attempt.dataset, attempt.unit)
                yield Finding(Gravity.warning, what, "end its run if it still shows, and launch the days again", cure)

    def _locks(self) -> Iterator[Finding]:
        for lock in self.ledger.locks():
            if lock.until < self.now:
                what = f"the lock {lock.name} is left by {lock.holder}, whose lease ended at {lock.until:%Y-%m-%d %H:%M:%S} UTC"
                remedy = "nothing: whoever needs it next takes it over"
                yield Finding(Gravity.info, what, remedy, Cure(Mend.lock, lock.name))

    def _unit(self, unit: Unit) -> Iterator[Finding]:
        campaign = self._campaigns.get(unit.campaign)
        if unit.campaign and (campaign is None or campaign.unit != unit.id):
            what = f"unit {unit.id} claims its days for campaign {unit.campaign}, whose launch was not completed"
            remedy = f"complete it (backfill launch {unit.campaign}) or give it up (backfill discard {unit.id})"
            yield Finding(Gravity.warning, what, remedy)
        elif unit.opened_at <= self.old:
            what = f"unit {unit.id} of {unit.by} has been open since {unit.opened_at:%Y-%m-%d} and claims its days"
            remedy = f"publish it (backfill publish {unit.id}) or give it up (backfill discard {unit.id})"
            yield Finding(Gravity.info, what, remedy)

    def _campaign(self, campaign: Campaign) -> Iterator[Finding]:
        if campaign.unit:
            journal = self.ledger.journal(campaign.id)
            yield from self._approvals(campaign, journal)
            yield from self._told(campaign, journal)

    def _approvals(self, campaign: Campaign, journal: Collection[JournalEntry]) -> Iterator[Finding]:
        given = {approval.at for approval in self.ledger.approvals(campaign.unit)}
        noted = {entry.at for entry in journal if entry.action is Action.approved}
        for at in sorted(given - noted):
            what = f"campaign {campaign.id} has an approval of {at:%Y-%m-%d %H:%M:%S} UTC that its journal does not tell of"
            yield Finding(Gravity.error, what, _RESTORE)
        for at in sorted(noted - given):
            what = f"the journal of campaign {campaign.id} tells of an approval at {at:%Y-%m-%d %H:%M:%S} UTC that is not there"
            yield Finding(Gravity.error, what, _RESTORE)

    def _told(self, campaign: Campaign, journal: Collection[JournalEntry]) -> Iterator[Finding]:
        records = self.ledger.releases(unit=campaign.unit)
        true = {r.manifest.release for r in records if r.state is ReleaseState.finalized}
        noted = {release for entry in journal if entry.action in _TOLD for release in _released(entry)}
        unsettled = {r.manifest.release for r in records if r.state is ReleaseState.intent}
        for release in sorted(_to_be_told(records) - noted):
            what = f"release {release} is not in the journal of its campaign {campaign.id}"
            yield Finding(Gravity.warning, what, RECONCILE, Cure(Mend.reconcile))
        for release in sorted(noted - true - unsettled):
            what = f"the journal of campaign {campaign.id} tells of release {release}, which the ledger does not have as true"
            yield Finding(Gravity.error, what, _RESTORE)


def launch_of(unit: Unit) -> str:
    """The Dagster backfill or run that opened a unit."""
    return unit.opened_by.partition("/")[0]


def _to_be_told(records: Collection[ReleaseRecord]) -> frozenset[str]:
    """Releases of which a journal tells: not what was taken back before anybody could notice."""
    undone = taken_back(records)
    return frozenset(
        r.manifest.release
        for r in records
        if r.state is ReleaseState.finalized
        and r.manifest.campaign
        and r.manifest.release not in undone
        and (r.manifest.kind is ReleaseKind.publish or is_rollback(r))
    )


def _released(entry: JournalEntry) -> Collection[str]:
    named = entry.detail.get("releases")
    return [str(name) for name in named.values()] if isinstance(named, Mapping) else []


def _go_on(unit: Unit) -> str:
    return f"go on with it (backfill resume {unit.id}) or give it up (backfill discard {unit.id})"
