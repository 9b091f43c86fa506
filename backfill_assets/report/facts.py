"""The parts of a review that come straight from records: days, rows, golden sources, releases, effort."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Final

from backfill_assets.campaign.plan import Estimate, Price
from backfill_assets.campaign.state import Campaign
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import DayComparison, GoldenCounts, RowChange, RowCounts, Seam
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import Attempt, AttemptState, ReleaseRecord, Unit
from backfill_assets.dataset.checks import Level
from backfill_assets.evidence.readiness import DayBlocker
from backfill_assets.pipeline.seams import places, seams
from backfill_assets.report.causes import Reach
from backfill_assets.report.concerns import Concern
from backfill_assets.report.series import DayState, Series

MOST_CHANGES: Final = 100
"""How many of the largest changes of each measure are listed."""
_Known = Mapping[DatasetDay, DayEvidence]
_Place = tuple[str, str, dt.date]


@dataclass(frozen=True)
class ReviewSubject:
    """What was asked for, by whom and why.

    `specification` holds the fields of a campaign's file as JSON values, `file` is its name without a folder; both are
    empty for a launch without one. `contract` is what was promised as launches state it. `targets` are days by dataset.
    """

    campaign: str
    opened_by: str
    opened_at: dt.datetime
    by: str
    targets: Mapping[str, tuple[dt.date, ...]]
    contract: tuple[Mapping[str, object], ...]
    specification: Mapping[str, object]
    file: str = ""


def subject_of(unit: Unit, campaign: Campaign | None) -> ReviewSubject:
    """What was asked for."""
    return ReviewSubject(
        campaign=unit.campaign,
        opened_by=unit.opened_by,
        opened_at=unit.opened_at,
        by=unit.by,
        targets=unit.targets,
        contract=tuple(unit.contract.to_plain()),
        specification=campaign.specification.to_plain() if campaign is not None else {},
        # Its name alone: reports are shared, and a folder reveals paths of a machine.
        file=Path(campaign.file).name if campaign is not None else "",
    )


@dataclass(frozen=True)
class ReviewedDay:
    """One day of one dataset: its state and why, how many checks passed of how many, and the hash of its evidence."""

    dataset: str
    day: dt.date
    state: DayState
    passed: int
    checks: int
    evidence: str
    why: tuple[str, ...] = ()
    live: bool = False


def day_states(
    unit: Unit,
    evidence: _Known,
    blockers: Sequence[DayBlocker],
    changed: Mapping[DatasetDay, DayState],
    live: frozenset[DatasetDay],
) -> tuple[ReviewedDay, ...]:
    """Every day of a unit, in order; `changed` is what became of days once they were published."""
    why: dict[DatasetDay, list[DayBlocker]] = defaultdict(list)
    for blocker in blockers:
        why[blocker.dataset, blocker.day].append(blocker)
    found = []
    for key in unit.days:
        one = evidence.get(key)
        verdicts = one.verdicts if one is not None else ()
        found.append(
            ReviewedDay(
                *key,
                state=changed.get(key) or _state(one, {blocker.reason.state for blocker in why[key]}),
                passed=sum(verdict.passed for verdict in verdicts),
                checks=len(verdicts),
                evidence=one.hash if one is not None else "",
                why=tuple(blocker.words for blocker in why[key]),
                live=key in live,
            )
        )
    return tuple(found)


def _state(evidence: DayEvidence | None, states: set[str]) -> DayState:
    if evidence is None or "missing" in states:
        return DayState.missing
    if not evidence.passed:
        return DayState.failed
    if states:
        return DayState.stale
    return DayState.passed if all(verdict.passed for verdict in evidence.verdicts) else DayState.warned


@dataclass(frozen=True)
class RowTotals:
    """What happened to the rows of a dataset, over the `days` that were compared row by row."""

    dataset: str
    days: int
    counts: RowCounts


def row_totals(evidence: _Known) -> tuple[RowTotals, ...]:
    """What happened to the rows, over all days of each dataset that were compared."""
    found: dict[str, list[RowCounts]] = defaultdict(list)
    for (name, _), one in sorted(evidence.items()):
        if one.compared is not None and one.compared.rows is not None:
            found[name].append(one.compared.rows)
    return tuple(RowTotals(name, len(counts), _total(counts)) for name, counts in found.items())


def _total(counts: Sequence[RowCounts]) -> RowCounts:
    columns, beyond, parts = Counter[str](), Counter[str](), Counter[str]()
    for one in counts:
        columns.update(one.columns)
        beyond.update(one.beyond)
        parts.update(one.parts)
    names = ("added", "removed", "changed", "unchanged", "explained_added", "explained_removed")
    totals = {name: sum(getattr(one, name) for one in counts) for name in names}
    return RowCounts(columns=dict(columns), beyond=dict(beyond), parts=dict(parts), **totals)


@dataclass(frozen=True)
class Largest:
    """The largest changes of a measure of a dataset, up to a hundred, the largest first."""

    dataset: str
    measure: str
    changes: tuple[RowChange, ...]


def largest_changes(comparisons: Iterable[DayComparison]) -> tuple[Largest, ...]:
    """The largest changes of each measure over all days; changes that are not a number come first."""
    found: dict[tuple[str, str], list[RowChange]] = defaultdict(list)
    for comparison in comparisons:
        for change in comparison.largest:
            found[comparison.dataset, change.measure].append(change)
    return tuple(
        Largest(name, measure, tuple(sorted(changes, key=_by_size)[:MOST_CHANGES]))
        for (name, measure), changes in sorted(found.items())
    )


def _by_size(change: RowChange) -> tuple[bool, Decimal, dt.date]:
    number = not change.delta.is_nan()
    return number, -abs(change.delta) if number else Decimal(0), change.day


def judged_seams(evidence: _Known) -> Mapping[_Place, Seam]:
    """The steps that the checks of the days have judged, by dataset, metric and day; of several, those judged last."""
    by_attempt = sorted(evidence.values(), key=lambda one: one.attempt)
    judged = (seam for one in by_attempt if one.compared is not None for seam in one.compared.seams)
    return {place_of(seam): seam for seam in judged}


def place_of(seam: Seam) -> _Place:
    """What distinguishes one step from another."""
    return seam.dataset, seam.metric, seam.day


def all_seams(series: Iterable[Series], judged: Mapping[_Place, Seam]) -> tuple[Seam, ...]:
    """The steps of every metric at the edges of the unit's days, and at month boundaries within them.

    Those that no check could judge, because a neighbour had not been built yet, come from the series.
    """
    old, new = _figures_by_day(), _figures_by_day()
    inside: dict[str, set[dt.date]] = defaultdict(set)
    for one in series:
        for point in one.points:
            old[one.dataset][point.day][one.metric] = point.old
            new[one.dataset][point.day][one.metric] = point.new if point.inside else point.old
            inside[one.dataset] |= {point.day} if point.inside else set()
    computed = (seam for name, days in inside.items() for seam in seams(name, old[name], new[name], places(days)))
    found = {**{place_of(seam): seam for seam in computed}, **judged}
    return tuple(found[place] for place in sorted(found))


def _figures_by_day() -> dict[str, dict[dt.date, dict[str, Decimal | None]]]:
    return defaultdict(lambda: defaultdict(dict))


@dataclass(frozen=True)
class GoldenDay:
    """A day on which a dataset and a golden source do not agree, and by how many rows."""

    day: dt.date
    counts: GoldenCounts


@dataclass(frozen=True)
class Agreement:
    """How a dataset and a golden source agree over the `days` that were compared, and the days on which they do not."""

    dataset: str
    golden: str
    days: int
    counts: GoldenCounts
    mismatches: tuple[GoldenDay, ...]


def agreements(evidence: _Known) -> tuple[Agreement, ...]:
    """How each dataset agrees with each of its golden sources."""
    found: dict[tuple[str, str], list[GoldenDay]] = defaultdict(list)
    for (name, day), one in sorted(evidence.items()):
        for golden, counts in (one.compared.golden if one.compared is not None else {}).items():
            found[name, golden].append(GoldenDay(day, counts))
    return tuple(
        Agreement(name, golden, len(days), _together(days), tuple(day for day in days if day.counts.mismatches))
        for (name, golden), days in found.items()
    )


def _together(days: Sequence[GoldenDay]) -> GoldenCounts:
    names = (field.name for field in fields(GoldenCounts))
    return GoldenCounts(**{name: sum(getattr(day.counts, name) for day in days) for name in names})


@dataclass(frozen=True)
class Effort:
    """The estimate (None without a plan) and the actual effort; `waited` are seconds at closed gates."""

    estimate: Estimate | None
    actual: Estimate
    waited: float


def effort_of(campaign: Campaign | None, attempts: Sequence[Attempt], now: dt.datetime, price: Price | None) -> Effort:
    """Estimated and actual effort: batches and rows as the plan counts them, seconds and bytes over all layers."""
    done = [a for a in attempts if a.state is AttemptState.done and a.layer == Layer.shadow]
    seconds = sum(attempt.spent(now).total_seconds() for attempt in attempts)
    rows, read = sum(a.rows for a in done), sum(a.bytes_read for a in attempts)
    actual = Estimate(rows, read, len(done), round(seconds, 1), price.of(seconds) if price is not None else "")
    waited = sum(a.waited.total_seconds() for a in attempts)
    return Effort(campaign.plan.estimate if campaign is not None else None, actual, waited)


@dataclass(frozen=True)
class Made:
    """A finalized release of the unit: who made it when and why, and for a rollback, what it undid."""

    release: str
    kind: str
    dataset: str
    at: dt.datetime
    by: str
    version: int | None
    days: int
    reason: str
    approved_by: str
    undoes: str
    evidence: str


def made_releases(records: Sequence[ReleaseRecord]) -> tuple[Made, ...]:
    """The finalized releases of a unit, newest first."""
    return tuple(
        Made(
            m.release, m.kind.value, m.dataset, record.committed_at or m.created_at, m.by, record.version, len(m.days),
            m.reason, m.approved_by, m.undoes, m.evidence,
        )
        for record in records
        for m in (record.manifest,)
        if record.state is ReleaseState.finalized
    )  # fmt: skip


def of_reaches(reaches: Iterable[Reach]) -> tuple[Concern, ...]:
    """Days whose files a release has changed although it must not, or would change."""
    return tuple(
        Concern(
            Level.structural, reach.dataset, "blast_radius", day, reach.words, "only files of its own days", blocks=True
        )
        for reach in reaches
        if reach.held is False
        for day in reach.altered
    )
