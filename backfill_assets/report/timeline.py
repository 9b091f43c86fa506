"""The chart of a unit's batches over time, with their waits before shut gates and what people did meanwhile."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

import altair as alt

from backfill_assets.campaign.state import Action, JournalEntry
from backfill_assets.core.days import format_days
from backfill_assets.core.unit import Attempt
from backfill_assets.report.charts import Spec, finished, over

_TOLD: Final = frozenset(
    {
        Action.launched,
        Action.waits,
        Action.paused,
        Action.resumed,
        Action.stopped,
        Action.validated,
        Action.approved,
        Action.published,
        Action.rolled_back,
    }
)
_LANE: Final = 22


def timeline_chart(batches: Sequence[Attempt], journal: Sequence[JournalEntry]) -> Spec | None:
    """Batches as bars, one lane for those that run at once; waits as open bars before them; none without a batch."""
    if not batches:
        return None
    bars = _bars(batches)
    events = [{"t": _text(e.at), "e": e.action.value, "w": e.reason} for e in journal if e.action in _TOLD]
    colours = alt.Scale(
        domain=["done", "running", "failed", "lost", "waited"],
        range=["var(--good)", "var(--new)", "var(--bad)", "var(--stale)", "transparent"],
    )
    tip = [alt.Tooltip(f"{key}:N", title=title) for key, title in _TIMELINE_TIPS.items()]
    x = alt.X(
        "a:T",
        title="UTC",
        scale=alt.Scale(type="utc"),
        axis=alt.Axis(format=_clock(batches), labelOverlap=True, tickCount=6),
    )
    lanes = alt.Y("l:O", title=None, axis=None)
    base = over("batches")
    layers = [
        base.mark_bar(stroke="var(--ink)", strokeWidth=0.6, cornerRadius=2).encode(
            x=x,
            x2="b:T",
            y=lanes,
            color=alt.Color("s:N", title=None, scale=colours, legend=alt.Legend(orient="bottom")),
            tooltip=tip,
        ),
        over("events")
        .mark_rule(color="var(--live)", strokeDash=[3, 3])
        .encode(x=alt.X("t:T"), tooltip=[alt.Tooltip("e:N", title="event"), alt.Tooltip("w:N", title="why")]),
        over("events")
        .mark_text(align="left", dx=3, dy=-2, fontSize=10, color="var(--ink)", baseline="top")
        .encode(x=alt.X("t:T"), y=alt.value(-12), text="e:N"),
    ]
    lanes_used = len({bar["l"] for bar in bars})
    chart = alt.layer(*(layers if events else layers[:1]))
    return finished(chart.properties(height=max(3, lanes_used) * _LANE), {"batches": bars, "events": events})


def _bars(batches: Sequence[Attempt]) -> list[dict[str, object]]:
    """A bar per batch, and one more per wait, in the first lane that is free when it begins."""
    free: list[dt.datetime] = []
    bars: list[dict[str, object]] = []
    for batch in sorted(batches, key=lambda b: b.started_at - b.waited):
        begin, end = batch.started_at - batch.waited, batch.ended_at or batch.lease_until
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        common = {
            "l": lane,
            "n": f"{batch.number}",
            "k": f"{batch.dataset}, {batch.layer}",
            "d": format_days(batch.days, most=2),
        }
        if batch.waited:
            took = f"{batch.waited.total_seconds():.0f} s before the gate"
            bars.append({**common, "a": _text(begin), "b": _text(batch.started_at), "s": "waited", "w": took})
        took = f"{(end - batch.started_at).total_seconds():.0f} s"
        bars.append({**common, "a": _text(batch.started_at), "b": _text(end), "s": batch.state.value, "w": took})
    return bars


def _clock(batches: Sequence[Attempt]) -> str:
    """How the time axis is labelled: with the day if there are several."""
    days = {moment.date() for batch in batches for moment in (batch.started_at, batch.ended_at or batch.lease_until)}
    return "%m-%d %H:%M" if len(days) > 1 else "%H:%M"


def _text(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_TIMELINE_TIPS: Final = {"n": "batch", "k": "of", "d": "days", "s": "state", "w": "took"}
