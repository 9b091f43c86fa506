"""Series: each metric of each day as it was, as it would be, and between which figures it was expected."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import ROW_COUNT, Figures
from backfill_assets.dataset.check_list import band_of, metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.domain.metric_changes import ENDING, MetricChange, metric_changes, relative


@dataclass(frozen=True)
class Point:
    """A metric on one day. Days outside of the unit, `inside` false, have only what is published of them, as `old`.

    `source` is the figure of what the day was built from; `low` and `high` are the band that was expected, none where
    anything goes; `change` is relative (-0.5 is -50 %), none where there is nothing to compare; `passed` is the verdict of
    the metric's check; `live` says that the live pipeline has published the day since the unit was opened.
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
    """A metric of a dataset over the days of a unit and its neighbours, in order, with how far it has moved in all.

    `adds_up` says that figures of several days may be added, as those of sums and counts of rows may.
    """

    dataset: str
    metric: str
    change: MetricChange | None
    points: tuple[Point, ...]
    adds_up: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What is around a unit's days: published figures of other days, and the days that live runs have published since."""

    figures: Mapping[dt.date, Figures]
    live: frozenset[dt.date]


NOWHERE = Surroundings({}, frozenset())
"""Nothing is known of other days."""


def series_of(
    dataset: Dataset, evidence: Mapping[dt.date, DayEvidence], contract: Contract, around: Surroundings = NOWHERE
) -> tuple[Series, ...]:
    """The series of every metric of a dataset, in the order of its metrics; `contract` is what was promised of it."""
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
    around: Surroundings,
) -> Iterator[Point]:
    for day, figures in around.figures.items():
        if day not in evidence and metric in figures:
            yield Point(day, figures[metric], inside=False, live=day in around.live)
    for day, one in evidence.items():
        measured = one.measured
        old = measured.published.metrics.get(metric) if measured.published.rows else None
        new = measured.shadow.metrics.get(metric)
        band = band_of(metric, dataset, day, contract).change.edges(old)
        source = measured.staging.metrics.get(metric) if dataset.source else measured.upstream.totals.get(metric)
        passed = next((v.passed for v in one.verdicts if v.check == metric + ENDING), None)
        low, high = band or (None, None)
        yield Point(day, old, new, source, low, high, relative(old, new), passed, live=day in around.live)


def moved(series: Sequence[Series]) -> tuple[Series, ...]:
    """The series with a day on which something changed."""
    return tuple(one for one in series if any(point.change or _came_or_went(point) for point in one.points))


def _came_or_went(point: Point) -> bool:
    return point.inside and (point.old is None) is not (point.new is None)
