"""The command that shows how datasets and campaigns do, in figures."""

from __future__ import annotations

from backfill_assets.application import Application
from backfill_assets.cli.output import as_json, say, table
from backfill_assets.cli.status import Json
from backfill_assets.core.days import day_range, format_days
from backfill_assets.core.text import number_of
from backfill_assets.report.metrics import CampaignMetrics, DatasetMetrics

_MOST_WINDOWS = 5
_OF_DATASETS = (
    "dataset", "published days", "watermark", "due", "lag", "duplicates per 1,000 rows", "mismatches",
    "s per partition p50 / p95", "last success (UTC)", "hours ago", "open units",
)  # fmt: skip
_OF_CAMPAIGNS = ("campaign", "state", "days", "batches left", "waits since (UTC)", "for", "hours waited")


def metrics(json: Json = False) -> None:
    """Show duplicates, durations, watermarks, mismatches and waits of all datasets and campaigns."""
    found = Application.from_env().metrics.all()
    if json:
        as_json(found.to_plain())
        return
    table(_OF_DATASETS, [_dataset(one) for one in found.datasets], "Datasets")
    table(_OF_CAMPAIGNS, [_campaign(one) for one in found.campaigns], "Campaigns")
    for one in found.datasets:
        if gaps := [day for first, last in one.watermark.gaps for day in day_range(first, last)]:
            say(f"{one.dataset}: {number_of(len(gaps), 'due day')} not published: {format_days(gaps, most=10)}")
        for window in one.rollback_windows[:_MOST_WINDOWS]:
            days = number_of(window.days, "day")
            say(f"{one.dataset}: {window.release} ({days}) can be rolled back until {window.until:%Y-%m-%d %H:%M} UTC")
        if more := one.rollback_windows[_MOST_WINDOWS:]:
            say(f"{one.dataset}: and {number_of(len(more), 'older release')}; see: backfill releases {one.dataset}")


def _dataset(found: DatasetMetrics) -> tuple[object, ...]:
    mark, seconds, success = found.watermark, found.seconds_per_partition, found.last_success
    newest = f"{mark.newest or '-'}" + (f" (without gaps: {mark.gap_free})" if mark.gap_free != mark.newest else "")
    lag = "-" if mark.lag_days is None else f"{number_of(mark.lag_days, 'day')}, {mark.lag_hours:,} h"
    duplicates, days = found.duplicate_keys_per_1000_rows, number_of(found.doubled_days, "day")
    return (
        found.dataset, f"{found.published:,}", newest, mark.due or "-", lag,
        ("-" if duplicates is None else f"{duplicates:.3f}") + (f" (files doubled: {days})" if found.doubled_days else ""),
        f"{found.mismatches:,}",
        f"{seconds.p50:.2f} / {seconds.p95:.2f}" if seconds else "-",
        f"{success.at:%Y-%m-%d %H:%M}" if success else "-", f"{success.hours_ago:,}" if success else "-",
        ", ".join(found.open_units) or "-",
    )  # fmt: skip


def _campaign(found: CampaignMetrics) -> tuple[object, ...]:
    return (
        found.campaign, found.state, f"{found.days_done:,} of {found.days_total:,}", f"{found.batches_left:,}",
        f"{found.waiting_since:%Y-%m-%d %H:%M}" if found.waiting_since else "-", found.waiting_for or "-",
        found.waited_hours,
    )  # fmt: skip
