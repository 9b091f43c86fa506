"""Metrics of datasets and campaigns."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.campaign.approval import Roles
from backfill_assets.campaign.state import WORKING, Action, Campaign, CampaignState, JournalEntry, state_of
from backfill_assets.control.approve import approved
from backfill_assets.control.conductor import STEPS
from backfill_assets.core.canonical import plain
from backfill_assets.core.days import ONE_DAY, runs_of_days
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import Manifest, ReleaseState, restorable_until
from backfill_assets.core.unit import (
    IDENTICAL_FILES,
    Attempt,
    AttemptState,
    DayFindings,
    ReleaseRecord,
    Unit,
    UnitState,
)
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.contents import effective
from backfill_assets.evidence.gaps import gaps_of
from backfill_assets.warehouse import OnWarehouse

_HOUR: Final = 3600.0
_BUILT: Final = Layer.shadow
"""The layer whose batches are timed: plain launches count no others, and its batches include the checks."""
_OVER: Final = frozenset(
    {
        CampaignState.published, CampaignState.rolled_back, CampaignState.discarded, CampaignState.closed,
        CampaignState.cleaned,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Watermark:
    """How far a dataset is published.

    `newest` is the newest published day, `gap_free` the last one before the first gap, counted from the first published
    day; both are None while nothing is published. `due` is the newest day that should be published, None before the
    first. `lag_days` counts the days from `newest` to `due`, `lag_hours` the hours since the day after `newest` is due;
    both are 0 if nothing is late, None while nothing is published. `gaps` are the first and last day of each run of
    days that `gaps_of` names.
    """

    newest: dt.date | None
    gap_free: dt.date | None
    due: dt.date | None
    lag_days: int | None
    lag_hours: float | None
    gaps: tuple[tuple[dt.date, dt.date], ...] = ()


@dataclass(frozen=True)
class SecondsPerPartition:
    """How long a backfill takes per partition, waiting not counted: nearest-rank percentiles over `partitions`."""

    p50: float
    p95: float
    partitions: int


@dataclass(frozen=True)
class RollbackWindow:
    """A release that can still be rolled back, how many days still show it, from the `first` to the `last`, and until when."""

    release: str
    days: int
    first: dt.date
    last: dt.date
    until: dt.datetime


@dataclass(frozen=True)
class LastSuccess:
    """The newest publication of a dataset, when it was committed, and how many hours ago that was."""

    release: str
    at: dt.datetime
    hours_ago: float


@dataclass(frozen=True)
class DatasetMetrics:
    """The metrics of a dataset.

    `published` counts the published days. `rows`, `duplicate_keys`, `golden_mismatches` and `failed_checks` are of days
    that a release of this project brought, as checked: rows that do not agree with a golden source, and failed verdicts
    of other checks, which did not block. `doubled_days` counts days with a file that was delivered and counted twice.
    `open_units` are the open units as people call them.
    """

    dataset: str
    published: int
    rows: int
    duplicate_keys: int
    golden_mismatches: int
    failed_checks: int
    watermark: Watermark
    seconds_per_partition: SecondsPerPartition | None
    last_success: LastSuccess | None
    rollback_windows: tuple[RollbackWindow, ...]
    open_units: tuple[str, ...]
    doubled_days: int = 0

    @property
    def duplicate_keys_per_1000_rows(self) -> float | None:
        """None if no published row was measured."""
        return self.duplicate_keys * 1000 / self.rows if self.rows else None

    @property
    def mismatches(self) -> int:
        """Golden mismatches plus failed checks: all that reviewers accepted, or could not see."""
        return self.golden_mismatches + self.failed_checks


@dataclass(frozen=True)
class CampaignMetrics:
    """The metrics of a campaign, from the ledger.

    `days_done` and `days_total` count (dataset, day). `batches_left` is the number of batches for its remaining days at
    the current batch size, 0 for a campaign that is over. `waiting_since` is when a run of it first gave up at the gate
    since its last batch, because of `waiting_for`; None unless it waits now. `waited_hours` adds up the waits of its
    batches, `gave_up` counts the runs that ended at a closed gate.
    """

    campaign: str
    state: str
    datasets: tuple[str, ...]
    days_done: int
    days_total: int
    batches_left: int
    waiting_since: dt.datetime | None
    waiting_for: str
    waited_hours: float
    gave_up: int


@dataclass(frozen=True)
class Metrics:
    """Everything at one moment: datasets by name, campaigns newest first."""

    at: dt.datetime
    datasets: tuple[DatasetMetrics, ...]
    campaigns: tuple[CampaignMetrics, ...]

    def to_plain(self) -> dict[str, object]:
        """The same as plain JSON values, computed figures included, for programs and pages."""
        derived = ("duplicate_keys_per_1000_rows", "mismatches")
        datasets = [{**vars(one), **{name: getattr(one, name) for name in derived}} for one in self.datasets]
        return {"at": plain(self.at), "datasets": plain(datasets), "campaigns": plain(self.campaigns)}


@dataclass(frozen=True)
class Published:
    """What the metrics of a dataset are computed from.

    `days` are the published ones, `standing` the release that each of them shows, if any, `findings` those of its
    evidence. `records` are all finalized releases of the dataset; `units` its units with their attempts.
    """

    dataset: Dataset
    days: Collection[dt.date]
    standing: Mapping[dt.date, Manifest]
    findings: Mapping[dt.date, DayFindings]
    records: Sequence[ReleaseRecord]
    units: Sequence[Unit]
    attempts: Iterable[Attempt]


def dataset_metrics(published: Published, now: dt.datetime) -> DatasetMetrics:
    """The metrics of one dataset at an aware moment."""
    findings = published.findings.values()
    return DatasetMetrics(
        dataset=published.dataset.name,
        published=len(set(published.days)),
        rows=sum(f.rows for f in findings),
        duplicate_keys=sum(f.duplicate_keys for f in findings),
        golden_mismatches=sum(f.golden_mismatches for f in findings),
        failed_checks=sum(len(f.tolerated) for f in findings),
        watermark=watermark(published.dataset, published.days, now),
        seconds_per_partition=seconds_per_partition(published.dataset.name, published.units, published.attempts),
        last_success=_last_success(published, now),
        rollback_windows=_rollback_windows(published, now),
        open_units=tuple(unit.handle for unit in published.units if unit.state is UnitState.open),
        doubled_days=sum(IDENTICAL_FILES in f.tolerated for f in findings),
    )


def watermark(dataset: Dataset, days: Collection[dt.date], now: dt.datetime) -> Watermark:
    """How far these published days reach, and how far they should at an aware moment, by the dataset's calendar."""
    newest_day = dataset.newest_to_launch(now)
    due = newest_day if newest_day >= dataset.start and not dataset.is_draft else None
    if not days:
        return Watermark(None, None, due, None, None)
    newest, (_, gap_free) = max(days), runs_of_days(days)[0]
    gaps = tuple(runs_of_days(gaps_of(dataset, days, now)))
    if due is None or newest >= due:
        return Watermark(newest, gap_free, due, 0, 0.0, gaps)
    # A day becomes a partition when it is over, and as many days earlier as the offset says; it is due when its window is over.
    offset = min(0, dataset.end_offset) if dataset.lag_days else dataset.end_offset
    ahead = min(dataset.lag_days, ((dataset.end or dt.date.max) - newest).days - 1)
    since = dt.datetime.combine(newest + (2 - offset + ahead) * ONE_DAY, dt.time(), dataset.zone)
    return Watermark(newest, gap_free, due, (due - newest).days, _hours(now - since.astimezone(dt.UTC)), gaps)


def seconds_per_partition(
    dataset: str, units: Iterable[Unit], attempts: Iterable[Attempt]
) -> SecondsPerPartition | None:
    """How long the backfills of a dataset took per partition, without live runs; None before the first has ended.

    A batch's time is spread evenly over its days. It begins when the batch is admitted, so waiting is not included.
    """
    backfills = {unit.id for unit in units if not unit.live}
    found = sorted(
        seconds
        for attempt in attempts
        if attempt.unit in backfills and (attempt.dataset, attempt.layer) == (dataset, _BUILT)
        if attempt.state is AttemptState.done and attempt.ended_at is not None
        for seconds in [(attempt.ended_at - attempt.started_at).total_seconds() / len(attempt.days)] * len(attempt.days)
    )
    return SecondsPerPartition(_rank(found, 50), _rank(found, 95), len(found)) if found else None


def campaign_metrics(
    campaign: Campaign, state: CampaignState, done: int, attempts: Sequence[Attempt], journal: Sequence[JournalEntry]
) -> CampaignMetrics:
    """The metrics of one campaign; `done` counts its finished (dataset, day), `journal` is in order."""
    plan, waits = campaign.plan, _waits_now(campaign, attempts, journal)
    total = sum(len(days) for days in plan.targets.values())
    left = 0 if state in _OVER else total - done
    return CampaignMetrics(
        campaign=campaign.id,
        state=state.value,
        datasets=tuple(plan.targets),
        days_done=done,
        days_total=total,
        batches_left=math.ceil(left / campaign.knobs.partitions_per_batch),
        waiting_since=waits[0].at if waits else None,
        waiting_for=waits[-1].reason if waits else "",
        waited_hours=_hours(sum((a.waited for a in attempts), dt.timedelta(0))),
        gave_up=sum(entry.action is Action.waits for entry in journal),
    )


def days_done(days: Iterable[DatasetDay], findings: Mapping[DatasetDay, DayFindings]) -> int:
    """How many of the (dataset, day) have passing evidence."""
    return sum(day in findings and findings[day].passed for day in days)


def _waits_now(
    campaign: Campaign, attempts: Sequence[Attempt], journal: Sequence[JournalEntry]
) -> tuple[JournalEntry, ...]:
    """The notes of runs that gave up at the gate since the campaign's last batch; none if a batch is running."""
    if campaign.phase not in WORKING or any(a.state is AttemptState.running for a in attempts):
        return ()
    begun = [entry.at for entry in journal if entry.action in {Action.launched, Action.resumed}]
    last = max([*begun, *(a.started_at for a in attempts)], default=campaign.created_at)
    return tuple(entry for entry in journal if entry.action is Action.waits and entry.at >= last)


def _last_success(published: Published, now: dt.datetime) -> LastSuccess | None:
    standing = {manifest.release for manifest in published.standing.values()}
    for record in published.records:
        if record.since is not None and record.manifest.release in standing:
            return LastSuccess(record.manifest.release, record.since, _hours(max(now - record.since, dt.timedelta(0))))
    return None


def _rollback_windows(published: Published, now: dt.datetime) -> tuple[RollbackWindow, ...]:
    shown: dict[str, list[dt.date]] = {}
    for day, manifest in published.standing.items():
        shown.setdefault(manifest.release, []).append(day)
    keep_for = published.dataset.retention.keep_for
    found = [
        RollbackWindow(record.manifest.release, len(days), min(days), max(days), until)
        for record in published.records
        if record.since is not None and (days := shown.get(record.manifest.release))
        if (until := restorable_until(record.since, keep_for)) > now
    ]
    return tuple(sorted(found, key=lambda window: window.until, reverse=True))


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def _hours(span: dt.timedelta) -> float:
    return round(span.total_seconds() / _HOUR, 2)


@dataclass(frozen=True)
class MetricsNow(OnWarehouse):
    """Takes the metrics; only reads, and no data files.

    Does not check whether a campaign's days have become stale since they passed: `backfill status` does. `roles` say whose
    approvals count, if this process knows any.
    """

    roles: Roles | None = None

    def all(self) -> Metrics:
        """The metrics of every dataset and every campaign."""
        attempts = self.ledger.attempts()
        return Metrics(
            self.clock.now(),
            tuple(self._dataset(name, attempts) for name in sorted(self.definitions)),
            tuple(self._campaign(campaign, attempts) for campaign in self.ledger.campaigns()),
        )

    def of(self, dataset: str, days: Collection[dt.date] | None = None) -> DatasetMetrics:
        """The metrics of one dataset; checked rows, duplicate keys and mismatches only of `days`, if given."""
        return self._dataset(dataset, self.ledger.attempts(), days)

    def _dataset(
        self, name: str, attempts: Sequence[Attempt], looked_at: Collection[dt.date] | None = None
    ) -> DatasetMetrics:
        records = self.ledger.releases(name, states={ReleaseState.finalized})
        standing = effective(records)
        checked = standing.keys() if looked_at is None else standing.keys() & set(looked_at)
        published = Published(
            dataset=self.definitions[name],
            days={day for day, files in self.tables[name].active().items() if files} | standing.keys(),
            standing=standing,
            findings=self.ledger.findings(name, {day: standing[day].unit for day in checked}),
            records=records,
            units=self.ledger.units(name),
            attempts=attempts,
        )
        return dataset_metrics(published, self.clock.now())

    def _campaign(self, campaign: Campaign, attempts: Sequence[Attempt]) -> CampaignMetrics:
        unit = self.ledger.unit(campaign.unit) if campaign.unit else None
        journal, own = self.ledger.journal(campaign.id), [a for a in attempts if unit and a.unit == unit.id]
        days = [(name, day) for name, found in campaign.plan.targets.items() for day in found]
        published = unit is not None and unit.state is UnitState.published
        done = len(days) if published else days_done(days, self._findings(campaign, unit))
        steps = [entry.action for entry in journal if entry.action in STEPS]
        stale = steps[-1:] == [Action.stale]
        complete = done == len(days) and not stale
        # Only here is the complete evidence read: an approval is bound to its hash.
        seen = complete and unit is not None and unit.state is UnitState.open
        waiting = (
            approved(self.ledger, unit, self.ledger.evidence(unit.id), self.roles).unapproved if seen and unit else ()
        )
        state = state_of(campaign, unit, complete=complete, approved=not waiting, stale=stale)
        return campaign_metrics(campaign, state, done, own, journal)

    def _findings(self, campaign: Campaign, unit: Unit | None) -> Mapping[DatasetDay, DayFindings]:
        if unit is None:
            return {}
        return {
            (name, day): found
            for name, days in campaign.plan.targets.items()
            for day, found in self.ledger.findings(name, dict.fromkeys(days, unit.id)).items()
        }
