"""The specification of the campaign's story: the arguments of `backfill new`, and what is completed in its draft by hand."""

from __future__ import annotations

import datetime as dt
from typing import Final
from zoneinfo import ZoneInfo

from backfill_assets.campaign.execution import parse_window
from backfill_assets.core.errors import BackfillError
from demo.campaign_models import DATASET

CAMPAIGN: Final = "tax-in-daily-sales-1995"
FIRST, LAST = dt.date(1995, 1, 1), dt.date(1996, 6, 30)
"""The days that are wrong: 547."""
APPROVER: Final = "finance-controller"
KEEP_FOR: Final = "keep_for: 30d"
TOO_LONG: Final = "keep_for: 90d"
"""A wish that daily_sales does not keep."""
BANDS: Final = {"net_revenue": "-6% to -1.2%", "margin": "-17% to -2%"}
"""The change that a correct correction brings on every day: the tax is 0 to 8 % of each line."""
_WINDOWS: Final = (("22:00-05:00", "07:00-09:30"), ("12:00-17:00", "17:30-19:00"))
_STORY: Final = dt.timedelta(hours=1)
_STEPS: Final = 12
_UTC: Final = ZoneInfo("UTC")


class StoryError(BackfillError):
    """Raised when the campaign's story goes wrong."""


def drafting() -> tuple[str, ...]:
    """The command that writes the draft."""
    expected = (part for metric, change in BANDS.items() for part in ("--expect", f"{metric}={change}"))
    return (
        "new", "--id", CAMPAIGN, "--dataset", DATASET, "--start", str(FIRST), "--end", str(LAST),
        "--owner", "sales-controlling", "--issue", "FIN-2841",
        "--change", "Net revenue was calculated with the tax in it",
        "--approver", APPROVER, *expected,
    )  # fmt: skip


def windows(now: dt.datetime) -> tuple[str, str]:
    """A publish window and a blackout window, both closed (UTC) for the hour from `now` on.

    The usual choice is the first pair, the night and the morning's dashboards; but the story has to show the refusal
    outside the window at any time of day.
    """
    moments = [now + step * _STORY / _STEPS for step in range(_STEPS + 1)]
    for pair in _WINDOWS:
        if not any(parse_window(text).contains(moment, _UTC) for text in pair for moment in moments):
            return pair
    raise AssertionError("unreachable: no time of day is within an hour of a window of each pair")


def completed(draft: str, now: dt.datetime) -> str:
    """The draft with what a person fills in: batches, windows, floor, budget, approval, and for how long to keep it.

    Raises:
        StoryError: the draft does not have the text that is to be completed.
    """
    publish, blackout = windows(now)
    for old, new in (
        ("partitions_per_batch: 7 ", "partitions_per_batch: 28 "),
        ("# min_progress: 1 batch per hour", "min_progress: 1 batch per hour"),
        ('# blackout_windows: ["07:00-09:30"]', f'blackout_windows: ["{blackout}"]'),
        ("# budget: {", "budget: {"),
        ("  # Metrics that are not named here", "  row_count_tolerance: 0\n  # Metrics that are not named here"),
        # One person plays all the parts here; a real campaign keeps `not_owner: true`.
        ("not_owner: true", "not_owner: false"),
        ('# publish_window: ["22:00-05:00"]', f'publish_window: ["{publish}"]'),
        (KEEP_FOR, TOO_LONG),
    ):
        draft = replaced(draft, old, new)
    return draft


def replaced(text: str, old: str, new: str) -> str:
    """The text with one part replaced.

    Raises:
        StoryError: the part is not in it exactly once.
    """
    if text.count(old) != 1:
        raise StoryError(
            f"{old!r} does not stand exactly once in the draft; `backfill new` was changed: adapt the story"
        )
    return text.replace(old, new)
