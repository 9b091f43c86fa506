"""Measurements: the figures of one day on each side, from which verdicts are made without touching data again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from backfill_assets.domain.checks_config import PERCENTILES, ChangeConfig, Measure
from backfill_assets.domain.dataset import Dataset

ROW_COUNT = "row_count"
"""The one metric that every dataset has."""

Figures = Mapping[str, Decimal | None]
"""Figures by name; null where nothing could be summed (no row, or only nulls)."""


@dataclass(frozen=True)
class SourceDay:
    """What was delivered for a day that another one looks back at: its rows, and those unreadable or of another day."""

    day: dt.date
    rows: int
    bad_rows: int


@dataclass(frozen=True)
class SameContent:
    """Files with rows and with the same bytes under several names, and the delivery days that they came for."""

    paths: tuple[str, ...]
    days: tuple[dt.date, ...]


@dataclass(frozen=True)
class SourceState:
    """What was delivered for a business day.

    `deliveries`, their `rows`, and when the newest came (`delivered_at`) are of the day's own delivery day: a file of a later
    day, which `late_days` reads as well, does not stand in for one that is missing. `corrupt_rows` and `outside_rows` are of all
    `rows_read`, those of later days included. `faulty_before` are the days looked back at without a row, or with bad ones.
    `identical` are files of equal content among all that the day reads, and among those of the week before that equal one of
    the day's own; `aggregated` says that the staging model may have made one row of theirs. `gone` are the paths of those that
    were not among the sources any more: raw stands for them.
    """

    deliveries: int = 0
    rows: int = 0
    corrupt_rows: int = 0
    outside_rows: int = 0
    delivered_at: dt.datetime | None = None
    rows_read: int = 0
    faulty_before: tuple[SourceDay, ...] = ()
    identical: tuple[SameContent, ...] = ()
    aggregated: bool = False
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpstreamState:
    """What the upstreams hold for a day: their rows on the day itself, and the totals to compare with.

    `floating` names the totals that are floating-point numbers, in order of name. `absent` are, by upstream, the days that the
    day looks back at and that neither its unit holds nor readers see; a day that was released without a row is none of them.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    totals: Figures = field(default_factory=dict)
    floating: tuple[str, ...] = ()
    absent: Mapping[str, tuple[dt.date, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One side (shadow, published or staging) of one day.

    `metrics` are comparable between sides (see `metric_names`), `floating` names those of them that are floating-point numbers,
    in order of name; `counts` are rows that break a rule, by
    `duplicate_keys`, `nulls:<column>`, `rule:<name>`, `unmatched:<check>`, `checked:<check>`;
    `fingerprint` is an order-independent hash over the business columns, empty for no rows.
    """

    metrics: Figures = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    floating: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.metrics.get(ROW_COUNT) or 0)


NOTHING = Side(metrics={ROW_COUNT: Decimal(0)})
"""A side without a row."""


@dataclass(frozen=True)
class DayMeasurement:
    """All that was measured for one day."""

    day: dt.date
    shadow: Side
    published: Side
    staging: Side
    source: SourceState
    upstream: UpstreamState = UpstreamState()


def metric_names(dataset: Dataset) -> tuple[str, ...]:
    """The names of all metrics: `row_count`, and per measure `<measure>`, `distinct_<measure>`, `p50_<measure>`."""
    names = [ROW_COUNT]
    for name, measure in dataset.measures.items():
        names += [name] if measure.sum else []
        names += [f"distinct_{name}"] if measure.distinct else []
        names += [f"{p}_{name}" for p in PERCENTILES] if measure.percentiles else []
    return tuple(names)


def measure_of(metric: str, dataset: Dataset) -> str:
    """The measure that a metric such as `distinct_tail_number` or `p50_delay` belongs to."""
    if metric in dataset.measures and dataset.measures[metric].sum:
        return metric
    for prefix in ("distinct", *PERCENTILES):
        if metric.startswith(prefix + "_") and metric.removeprefix(prefix + "_") in dataset.measures:
            return metric.removeprefix(prefix + "_")
    return metric


def tolerance_of(metric: str, dataset: Dataset) -> Decimal:
    """How far a metric may move where no contract speaks of it, as a fraction."""
    config: ChangeConfig | Measure = dataset.checks.row_count
    if metric != ROW_COUNT:
        config = dataset.measures[measure_of(metric, dataset)]
    return config.tolerance
