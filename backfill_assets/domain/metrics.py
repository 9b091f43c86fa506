"""Metrics: how datasets and campaigns do, in figures, computed from what the ledger keeps."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass


@dataclass(frozen=True)
class Watermark:
    """How far a dataset is published.

    `newest` is the newest published day, `gap_free` the last one before the first gap, counted from the first published
    day; both are none while nothing is published. `due` is the newest day that should be there, none before the first
    one is. `lag_days` counts the days from `newest` to `due`, `lag_hours` since when the day after `newest` is due; both are
    0 where nothing is late, and none while nothing is published.
    """

    newest: dt.date | None
    gap_free: dt.date | None
    due: dt.date | None
    lag_days: int | None
    lag_hours: float | None


@dataclass(frozen=True)
class SecondsPerPartition:
    """How long a backfill takes per partition, waiting not counted: nearest-rank percentiles over `partitions`."""

    p50: float
    p95: float
    partitions: int


@dataclass(frozen=True)
class RollbackWindow:
    """A release that can still be rolled back, the days that still show it, and until when."""

    release: str
    days: tuple[dt.date, ...]
    until: dt.datetime


@dataclass(frozen=True)
class LastSuccess:
    """The newest publication of a dataset, when it was committed, and how many hours ago that was."""

    release: str
    at: dt.datetime
    hours_ago: float


@dataclass(frozen=True)
class DatasetMetrics:
    """How a dataset does.

    `days`, `rows`, `duplicate_keys`, `golden_mismatches` and `failed_checks` are of what is published now and was measured
    by this project: rows that a golden source does not agree on, and failed verdicts of other checks that do not block.
    `open_units` are what people call them by.
    """

    dataset: str
    days: int
    rows: int
    duplicate_keys: int
    golden_mismatches: int
    failed_checks: int
    watermark: Watermark
    seconds_per_partition: SecondsPerPartition | None
    last_success: LastSuccess | None
    rollback_windows: tuple[RollbackWindow, ...]
    open_units: tuple[str, ...]
    duplicate_keys_per_1000_rows: float | None
    mismatches: int


@dataclass(frozen=True)
class CampaignMetrics:
    """How a campaign does, as the ledger knows it.

    `days_done` and `days_total` count (dataset, day). `batches_left` is what its days that are not done make at its present
    batch size, 0 for a campaign that is over. `waiting_since` is when a run of it gave up before the gate for the first
    time since its last batch, for `waiting_for`; none unless it waits now. `waited_hours` adds up the waits of its batches,
    `gave_up` counts the runs that ended before a shut gate.
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
