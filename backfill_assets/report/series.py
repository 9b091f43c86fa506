"""Metrics day by day: old, new and expected values, and the change so far."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from functools import cached_property
from typing import Final

from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.expected_change import ROUNDING, Change, Contract
from backfill_assets.core.measured import ROW_COUNT, Figures
from backfill_assets.core.release import (
    DataFile,
    DaySwap,
    Manifest,
    ReleaseKind,
    ReleaseState,
    layout_digest,
    restorable_until,
)
from backfill_assets.core.unit import ReleaseRecord, Unit
from backfill_assets.dataset.checks import CHANGE, band_of, metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.contents import effective
from backfill_assets.ledger.open import Ledger
from backfill_assets.pipeline.judge_rows import promises_of

MOST_POINTS: Final = 2_500
"""With more days, a chart shows weekly means."""
_SHOWN: Final = Decimal("1e-6")
_LARGE: Final = Decimal(10) ** 12
"""From here on decimals mean nothing, and rounding to them would overflow."""


@dataclass(frozen=True)
class MetricChange:
    """How far a metric has moved over `days` days, and what was promised for them, each with its source.

    `range` is None if no day had anything to compare with. Its edges are rounded outwards, to 0.0001 %.
    """

    dataset: str
    metric: str
    days: int
    range: Change | None
    promised: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """A metric on one day. Days outside of the unit, `inside` false, have only their published figure, as `old`.

    `source` is the figure of what the day was built from; `low` and `high` are the band that was expected, None if
    any value is allowed; `change` is relative (-0.5 is -50 %), None if nothing can be compared; `passed` is the verdict
    of the metric's check; `live` says that the live pipeline has published the day since the unit was opened.
    """

    day: dt.date
    old: Decimal | None
    new: Decimal | None = None
    source: Decimal | None = None
    low: Decimal | None = None
    high: Decimal | None = None
    change: Decimal | None = None
    passed: bool | None = None
    inside: bool = True
    live: bool = False


@dataclass(frozen=True)
class Series:
    """A metric of a dataset over the days of a unit and its neighbours, in order, with its change over all of them.

    `adds_up` says that figures of several days may be added, as those of sums and counts of rows may.
    """

    dataset: str
    metric: str
    change: MetricChange | None
    points: tuple[Point, ...]
    adds_up: bool = False


class DayState(StrEnum):
    """How one day of a unit stands, the best first."""

    published = "published"
    passed = "passed"
    warned = "passed with warnings"
    rewritten = "rewritten since"
    rolled_back = "rolled back"
    missing = "not built yet"
    stale = "stale"
    failed = "failed"


def metric_changes(evidence: Iterable[DayEvidence]) -> tuple[MetricChange, ...]:
    """The change of each metric that was checked, over all days with evidence; in the order of the checks."""
    moved: dict[tuple[str, str], list[Decimal]] = {}
    promised: dict[tuple[str, str], dict[str, None]] = {}
    for one in evidence:
        for verdict in one.verdicts:
            metric = verdict.check.removeprefix(CHANGE)
            if metric == verdict.check or metric not in one.measured.shadow.metrics:
                continue
            key = (one.dataset, metric)
            found, said = moved.setdefault(key, []), promised.setdefault(key, {})
            change = relative(one.measured.published.metrics.get(metric), one.measured.shadow.metrics[metric])
            if change is not None:
                found.append(change)
                said[f"{verdict.expected} ({verdict.note})" if verdict.note else verdict.expected] = None
    return tuple(
        MetricChange(dataset, metric, len(found), _range(found), tuple(promised[dataset, metric]))
        for (dataset, metric), found in moved.items()
    )


def relative(old: Decimal | None, new: Decimal | None) -> Decimal | None:
    """The relative change of a figure (-0.5 is -50 %); None if there is nothing to compare."""
    if old is None or new is None or not old.is_finite() or not new.is_finite() or not old:
        return None
    # Rounding differences between sums of floating-point numbers are no change.
    return _rounded((new - old) / old, ROUNDING, ROUND_HALF_EVEN)


def _range(found: list[Decimal]) -> Change | None:
    if not found:
        return None
    return Change(_rounded(min(found), _SHOWN, ROUND_FLOOR), _rounded(max(found), _SHOWN, ROUND_CEILING))


def _rounded(value: Decimal, step: Decimal, how: str) -> Decimal:
    return value.quantize(step, how) if abs(value) < _LARGE else value


@dataclass(frozen=True)
class NeighbouringDays:
    """The days around a unit's days: published figures of other days, and days that live runs have published since."""

    figures: Mapping[dt.date, Figures]
    live: frozenset[dt.date]


def series_of(
    dataset: Dataset, evidence: Mapping[dt.date, DayEvidence], contract: Contract, around: NeighbouringDays
) -> tuple[Series, ...]:
    """The series of every metric of a dataset, in the order of its metrics; `contract` is what was promised for it."""
    measured = {day: one for day, one in sorted(evidence.items()) if one.verdicts}
    changes = {change.metric: change for change in metric_changes(measured.values())}
    return tuple(
        Series(
            dataset.name,
            metric,
            changes.get(metric),
            tuple(sorted(_points(metric, dataset, measured, contract, around), key=lambda point: point.day)),
            metric == ROW_COUNT or (metric in dataset.measures and dataset.measures[metric].sum),
        )
        for metric in metric_names(dataset)
    )


def _points(
    metric: str,
    dataset: Dataset,
    evidence: Mapping[dt.date, DayEvidence],
    contract: Contract,
    around: NeighbouringDays,
) -> Iterator[Point]:
    for day, figures in around.figures.items():
        if day not in evidence and metric in figures:
            yield Point(day, figures[metric], inside=False, live=day in around.live)
    for day, one in evidence.items():
        measured = one.measured
        old = measured.published.metrics.get(metric) if measured.published.rows else None
        new = measured.shadow.metrics.get(metric)
        promised = promises_of(dataset, day, contract, one.compared).contract
        band = band_of(metric, dataset, day, promised).change.edges(old)
        source = measured.staging.metrics.get(metric) if dataset.source else measured.upstream.totals.get(metric)
        passed = next((v.passed for v in one.verdicts if v.check == CHANGE + metric), None)
        low, high = band or (None, None)
        yield Point(day, old, new, source, low, high, relative(old, new), passed, live=day in around.live)


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """The points of a chart: all of them, or if there are too many, the mean of each week."""
    if len(points) <= MOST_POINTS:
        return points
    weeks: dict[tuple[bool, dt.date], list[Point]] = {}
    for point in points:
        weeks.setdefault((point.inside, point.day - dt.timedelta(days=point.day.weekday())), []).append(point)
    return [_mean(monday, some) for (_, monday), some in weeks.items()]


def _mean(monday: dt.date, some: Sequence[Point]) -> Point:
    names = ("old", "new", "source", "low", "high", "change")
    means = {name: _mean_of([getattr(point, name) for point in some]) for name in names}
    passed = None if all(point.passed is None for point in some) else all(point.passed is not False for point in some)
    live = any(point.live for point in some)
    return Point(max(monday, some[0].day), **means, passed=passed, inside=some[0].inside, live=live)


def _mean_of(values: Sequence[Decimal | None]) -> Decimal | None:
    found = [value for value in values if value is not None and value.is_finite()]
    return sum(found, Decimal(0)) / len(found) if found else None


CONTEXT: Final = dt.timedelta(days=60)
"""How far before and after a unit's days its neighbours are shown: enough steps to know a usual one."""


@dataclass(frozen=True)
class PublishedBeside:
    """What readers see of one dataset now, in and around a unit's days; only reads."""

    ledger: Ledger
    table: PublishedTable
    dataset: str
    unit: Unit

    @cached_property
    def files(self) -> Mapping[dt.date, tuple[DataFile, ...]]:
        """The files of every day."""
        return self.table.active()

    @cached_property
    def records(self) -> Sequence[ReleaseRecord]:
        """The finalized releases of the dataset, newest first."""
        return self.ledger.releases(self.dataset, states={ReleaseState.finalized})

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {record.manifest.release: record.number for record in self.records}

    @cached_property
    def standing(self) -> Mapping[dt.date, Manifest]:
        """The publication of each day that has not been rolled back; see `effective`."""
        return effective(self.records)

    def undoable(self, now: dt.datetime) -> frozenset[str]:
        """The publications of the unit that a rollback could undo, at least for some of their days."""
        standing, kept = {manifest.release for manifest in self.standing.values()}, self.table.keep_for
        return frozenset(
            record.manifest.release
            for record in self.records
            if record.manifest.release in standing
            and record.manifest.unit == self.unit.id
            and record.since is not None
            and now <= restorable_until(record.since, kept)
        )

    @cached_property
    def origins(self) -> Mapping[dt.date, tuple[Manifest, DaySwap]]:
        """The publication that each day shows, and what it did to the day; days with other content are left out."""
        swaps = {m.release: {swap.day: swap for swap in m.days} for m in self.standing.values()}
        found = {day: (manifest, swaps[manifest.release][day]) for day, manifest in self.standing.items()}
        return {
            day: (manifest, swap)
            for day, (manifest, swap) in found.items()
            if layout_digest(swap.add) == layout_digest(self.files.get(day, ()))
        }

    @cached_property
    def live(self) -> frozenset[dt.date]:
        """The days that live runs have published since the unit was opened."""
        units = {one.id for one in self.ledger.units(self.dataset) if one.live and one.opened_at >= self.unit.opened_at}
        units.discard(self.unit.id)
        return frozenset(day for day, (manifest, _) in self.origins.items() if manifest.unit in units)

    def around(self) -> NeighbouringDays:
        """The published figures of the days around the unit's own, and in the gaps between them."""
        own = frozenset(self.unit.targets[self.dataset])
        first, last = min(own) - CONTEXT, max(own) + CONTEXT
        days = [day for day in self.files if first <= day <= last and day not in own]
        return NeighbouringDays(self._figures(days), self.live)

    def became(self) -> Mapping[DatasetDay, DayState]:
        """What readers see of each of the unit's days after it was published."""
        undone: dict[dt.date, int] = {}
        for record in reversed(self.records):
            manifest = record.manifest
            if manifest.kind is ReleaseKind.rollback and manifest.unit == self.unit.id:
                undone |= {swap.day: record.number for swap in manifest.days}
        return {(self.dataset, day): self._became(day, undone.get(day)) for day in self.unit.targets[self.dataset]}

    def _became(self, day: dt.date, undone: int | None) -> DayState:
        manifest, _ = self.origins.get(day, (None, None))
        if manifest is not None and manifest.unit == self.unit.id:
            return DayState.published
        # What a rollback restored is older than the rollback; a day without a file shows no release.
        untouched = self._numbers[manifest.release] < undone if manifest and undone else not self.files.get(day)
        return DayState.rolled_back if undone is not None and untouched else DayState.rewritten

    def _figures(self, days: Collection[dt.date]) -> Mapping[dt.date, Figures]:
        """What was measured when each day was published; only the number of rows if that is unknown."""
        by_unit: dict[str, list[dt.date]] = defaultdict(list)
        for day in days:
            if day in self.origins:
                by_unit[self.origins[day][0].unit].append(day)
        found: dict[dt.date, Figures] = {}
        for unit, some in by_unit.items():
            for (_, day), evidence in self.ledger.evidence(unit, self.dataset, some).items():
                if evidence.hash == self.origins[day][1].evidence:
                    found[day] = evidence.measured.shadow.metrics
        for day in days:
            rows = [file.rows for file in self.files[day]]
            if day not in found and None not in rows:
                found[day] = {ROW_COUNT: Decimal(sum(row for row in rows if row is not None))}
        return found
