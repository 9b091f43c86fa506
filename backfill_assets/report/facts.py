"""The parts of a review that come straight from records: days, rows, golden sources, releases, effort."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Final

from backfill_assets.campaign.estimate import Price
from backfill_assets.campaign.plan import Estimate
from backfill_assets.campaign.state import Campaign
from backfill_assets.core.certificate import Certificate, standing_certificates
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.measured import DayComparison, GoldenCounts, RowChange, RowCounts, Seam
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import Attempt, AttemptState, ReleaseRecord, Unit
from backfill_assets.evidence.readiness import DayFault
from backfill_assets.pipeline.seams import places, seams
from backfill_assets.report.causes import Reach
from backfill_assets.report.concerns import Concern, Level
from backfill_assets.report.records import (
    Agreement,
    DayState,
    Effort,
    GoldenDay,
    Largest,
    Made,
    Proof,
    ReviewedDay,
    ReviewSubject,
    RowTotals,
    Series,
)

MOST_CHANGES: Final = 100
"""So many of the largest changes of each measure are listed."""
_Known = Mapping[DatasetDay, DayEvidence]
_Place = tuple[str, str, dt.date]


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
        # Its name alone: reports are sent around, and a folder tells of somebody's machine.
        file=Path(campaign.file).name if campaign is not None else "",
    )


@dataclass(frozen=True)
class UnitDays:
    """How the days of a unit stand: faults while it is open; afterwards what became of its days; and live days."""

    unit: Unit
    faults: Sequence[DayFault]
    changed: Mapping[DatasetDay, DayState]
    live: frozenset[DatasetDay]


def day_states(standing: UnitDays, evidence: _Known) -> tuple[ReviewedDay, ...]:
    """Every day of a unit, in order."""
    why: dict[DatasetDay, list[DayFault]] = defaultdict(list)
    for fault in standing.faults:
        why[fault.dataset, fault.day].append(fault)
    return tuple(_day(key, evidence.get(key), why[key], standing) for key in standing.unit.days)


def _day(key: DatasetDay, evidence: DayEvidence | None, faults: Sequence[DayFault], standing: UnitDays) -> ReviewedDay:
    verdicts = evidence.verdicts if evidence is not None else ()
    return ReviewedDay(
        *key,
        state=standing.changed.get(key) or _state(evidence, {fault.fault.state for fault in faults}),
        passed=sum(verdict.passed for verdict in verdicts),
        checks=len(verdicts),
        evidence=evidence.hash if evidence is not None else "",
        why=tuple(fault.words for fault in faults),
        live=key in standing.live,
    )


def _state(evidence: DayEvidence | None, faults: set[str]) -> DayState:
    if evidence is None or "missing" in faults:
        return DayState.missing
    if not evidence.passed:
        return DayState.failed
    if faults:
        return DayState.stale
    return DayState.passed if all(verdict.passed for verdict in evidence.verdicts) else DayState.warned


def row_totals(evidence: _Known) -> tuple[RowTotals, ...]:
    """What happened to the rows, over all days of each dataset that were compared."""
    found: dict[str, list[RowCounts]] = defaultdict(list)
    for (name, _), one in sorted(evidence.items()):
        if one.compared is not None and one.compared.rows is not None:
            found[name].append(one.compared.rows)
    return tuple(RowTotals(name, len(counts), _total(counts)) for name, counts in found.items())


def _total(counts: Sequence[RowCounts]) -> RowCounts:
    columns, beyond = Counter[str](), Counter[str]()
    for one in counts:
        columns.update(one.columns)
        beyond.update(one.beyond)
    names = ("added", "removed", "changed", "unchanged", "explained_added", "explained_removed")
    totals = {name: sum(getattr(one, name) for one in counts) for name in names}
    return RowCounts(columns=dict(columns), beyond=dict(beyond), **totals)


def current(comparisons: Mapping[DatasetDay, DayComparison], evidence: _Known) -> tuple[DayComparison, ...]:
    """The comparisons of the rows that the evidence speaks of."""
    return tuple(c for key, c in sorted(comparisons.items()) if key in evidence and evidence[key].attempt == c.attempt)


def largest_changes(comparisons: Iterable[DayComparison]) -> tuple[Largest, ...]:
    """The largest changes of each measure over all days, those first that are no number."""
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


def proofs_of(certificates: Sequence[Certificate], evidence: _Known) -> tuple[Proof, ...]:
    """Of the certificates of a unit, newest first, that of each dataset that counts for its evidence."""
    found = standing_certificates(certificates, evidence).values()
    return tuple(Proof(one, one.hash, one.passed) for one in found)


def judged_seams(evidence: _Known) -> Mapping[_Place, Seam]:
    """The steps that the checks of the days have judged, by dataset, metric and day; of several, those judged last."""
    by_attempt = sorted(evidence.values(), key=lambda one: one.attempt)
    judged = (seam for one in by_attempt if one.compared is not None for seam in one.compared.seams)
    return {place_of(seam): seam for seam in judged}


def place_of(seam: Seam) -> _Place:
    """What tells one step from another."""
    return seam.dataset, seam.metric, seam.day


def all_seams(series: Iterable[Series], judged: Mapping[_Place, Seam]) -> tuple[Seam, ...]:
    """The steps of every metric at the edges of the unit's days, and at month boundaries within them.

    Those that no check could judge, because a neighbour had not been built yet, are told from the series.
    """
    old, new = _figures_by_day(), _figures_by_day()
    inside: dict[str, set[dt.date]] = defaultdict(set)
    for one in series:
        for point in one.points:
            old[one.dataset][point.day][one.metric] = point.old
            new[one.dataset][point.day][one.metric] = point.new if point.inside else point.old
            inside[one.dataset] |= {point.day} if point.inside else set()
    told = (seam for name, days in inside.items() for seam in seams(name, old[name], new[name], places(days)))
    found = {**{place_of(seam): seam for seam in told}, **judged}
    return tuple(found[place] for place in sorted(found))


def _figures_by_day() -> dict[str, dict[dt.date, dict[str, Decimal | None]]]:
    return defaultdict(lambda: defaultdict(dict))


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


def effort_of(campaign: Campaign | None, attempts: Sequence[Attempt], now: dt.datetime, price: Price | None) -> Effort:
    """What was estimated against what it took: batches and rows as the plan counts them, seconds and bytes over all layers."""
    done = [a for a in attempts if a.state is AttemptState.done and a.layer == "shadow"]
    seconds = sum(attempt.spent(now).total_seconds() for attempt in attempts)
    rows, read = sum(a.rows for a in done), sum(a.bytes_read for a in attempts)
    actual = Estimate(rows, read, len(done), round(seconds, 1), price.of(seconds) if price is not None else "")
    waited = sum(a.waited.total_seconds() for a in attempts)
    return Effort(campaign.plan.estimate if campaign is not None else None, actual, waited)


def made_releases(records: Sequence[ReleaseRecord]) -> tuple[Made, ...]:
    """The releases of a unit that are true, newest first."""
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
    """Days whose files a release has changed although they are not its own, or would."""
    return tuple(
        Concern(
            Level.structural, reach.dataset, "blast_radius", day, reach.words, "only files of its own days", blocks=True
        )
        for reach in reaches
        if reach.held is False
        for day in reach.altered
    )
