"""The metrics of a dataset as metadata of its releases: numbers, which Dagster draws over time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.orchestration.report_links import Metadata
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.report.metrics import DatasetMetrics


def release_figures(
    application: Application, outcomes: Iterable[Released | AlreadyReleased], log: logging.Logger
) -> Mapping[DatasetDay, Metadata]:
    """The metrics of every dataset right after its release, for the newest day of that release.

    One point per release: they speak of the whole dataset, and say nothing of single days. But duplicates and mismatches of
    a live release are those of its own days: it is not to read the evidence of a whole history every day. None for a
    release that an earlier run has made.

    Whatever goes wrong is logged as a warning: no release fails because nobody can measure it.
    """
    try:
        return {
            (name, max(days)): figures(application.metrics.of(name, days if unit.live else None))
            for outcome in outcomes
            if isinstance(outcome, Released)
            for unit in (application.ledger.unit(outcome.unit),)
            for name, days in outcome.days.items()
            if days
        }
    except Exception as error:  # noqa: BLE001  # see above
        log.warning(f"the metrics could not be taken ({error!r}); try: backfill metrics")
        return {}


def figures(found: DatasetMetrics) -> Metadata:
    """The metrics of a dataset as metadata; figures that there are none of yet lack."""
    mark, seconds = found.watermark, found.seconds_per_partition
    numbers = {
        "duplicate_keys_per_1000_rows": found.duplicate_keys_per_1000_rows,
        "mismatches": found.mismatches,
        "watermark_lag_days": mark.lag_days,
        "watermark_lag_hours": mark.lag_hours,
        "seconds_per_partition_p50": seconds.p50 if seconds else None,
        "seconds_per_partition_p95": seconds.p95 if seconds else None,
    }
    told: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)
        for name, value in numbers.items()
        if value is not None
    }
    return told if mark.newest is None else told | {"watermark": dg.MetadataValue.text(mark.newest.isoformat())}
