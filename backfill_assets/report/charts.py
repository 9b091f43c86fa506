"""Charts of a review as Vega-Lite specifications; colours are variables of the page, so that they follow light and dark."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import altair as alt

from backfill_assets.campaign.state import Action, JournalEntry
from backfill_assets.core.days import ONE_DAY, format_days
from backfill_assets.core.measured import Seam
from backfill_assets.core.unit import Attempt
from backfill_assets.report.facts import ReviewedDay
from backfill_assets.report.review import Review
from backfill_assets.report.series import DayState, Point, Series, relative, thinned

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
"""What Altair makes."""
Spec = Mapping[str, Any]
"""A Vega-Lite specification as plain JSON values."""
Rows = Sequence[Mapping[str, object]]
"""What a chart draws, as plain JSON values in short names: there may be thousands of them."""

_SAME: Final = 1e-9
"""Percentage points below which two changes differ only in the rounding of their sums."""
_BINS: Final = 40
_HEIGHT: Final = 220
_CELL: Final = 11
_WEEK: Final = 7
_MONTHS: Final = "['Jan','Feb','Mar','Apr','May','Jun','Jul','Aug','Sep','Oct','Nov','Dec']"
_MONTH_WEEKS: Final = [0, 4, 9, 13, 17, 22, 26, 30, 35, 39, 44, 48]

_STATES: Final[Mapping[DayState, tuple[str, str]]] = {
    DayState.published: ("var(--published)", ""),
    DayState.passed: ("var(--good)", ""),
    DayState.warned: ("var(--warn)", "!"),
    DayState.rewritten: ("var(--live)", "w"),
    DayState.rolled_back: ("var(--old)", "r"),
    DayState.missing: ("var(--missing)", "·"),
    DayState.stale: ("var(--stale)", "~"),
    DayState.failed: ("var(--bad)", "✕"),
}
"""Colour and sign of each state: the sign distinguishes them without the colour."""


def finished(chart: Chart, rows: Mapping[str, Rows]) -> Spec:
    """The specification of a chart over named rows, in the page's own colours and as wide as the page lets it be."""
    spec: dict[str, Any] = chart.properties(width="container").to_dict()
    # It contains an address, and the page must not look as if it needed a network.
    spec.pop("$schema", None)
    # Not through Altair, which would check each row, and repeat all of them in every layer.
    spec["datasets"] = rows
    return spec | {"autosize": {"type": "fit-x", "contains": "padding"}, "background": "transparent", "config": _CONFIG}


def over(name: str) -> alt.Chart:
    """A chart over rows with this name."""
    return alt.Chart(alt.NamedData(name=name))


def charts_of(review: Review, drawn: Sequence[Series]) -> Mapping[str, Spec]:
    """All charts of a review by their names in its template; `drawn` are the metrics that have charts."""
    charts: dict[str, Spec | None] = {}
    for number, series in enumerate(drawn):
        charts[f"metric-{number}"] = metric_chart(series, review.seams)
        charts[f"change-{number}"] = change_chart(series)
        charts[f"spread-{number}"] = spread_chart(series)
    for number, name in enumerate(review.datasets):
        charts[f"calendar-{number}"] = calendar_chart([day for day in review.days if day.dataset == name])
    charts["timeline"] = timeline_chart(review.batches, review.journal)
    return {name: chart for name, chart in charts.items() if chart is not None}


def metric_chart(series: Series, seams: Sequence[Seam]) -> Spec:
    """A metric over time: old, new, and the expected band; range, seams, live and failed days are marked."""
    points = [_row(point) for point in thinned(series.points)]
    inside = [point.day for point in series.points if point.inside]
    marks: dict[str, Rows] = {
        # From midnight of the first day to that after the last.
        "range": [{"a": str(inside[0]), "b": str(inside[-1] + ONE_DAY)}] if inside else [],
        "seam": [
            {"d": str(s.day)}
            for s in seams
            if s.introduced and (s.dataset, s.metric) == (series.dataset, series.metric)
        ],
        "live": [row for row in points if row.get("k") == "live"],
        "failed": [row for row in points if row.get("k") == "failed"],
    }
    base = over("points").encode(x=_DAYS)
    lines = [
        base.mark_area(color="var(--band)", opacity=0.6).encode(y=alt.Y("l:Q"), y2="h:Q"),
        base.mark_line(color="var(--old)", strokeDash=[4, 3], strokeWidth=1.4).encode(y=_FIGURE),
        base.mark_line(color="var(--new)", strokeWidth=1.6).encode(y=alt.Y("n:Q")),
    ]
    # A mark without a row would make the axes warn that they have no extent.
    drawn = [mark for name, parts in _MARKS.items() if marks[name] for mark in parts]
    hover = base.mark_point(opacity=0, size=60).encode(y=alt.Y("v:Q"), tooltip=_TIPS)
    return finished(alt.layer(*_RANGE, *lines, *drawn, hover).properties(height=_HEIGHT), {"points": points, **marks})


def change_chart(series: Series) -> Spec | None:
    """The relative change of each day in percent, and the expected band; None if no day can be compared."""
    rows = [_relative(point) for point in thinned(series.points) if point.inside]
    if not any("c" in row for row in rows):
        return None
    failed = [row for row in rows if row.get("k") == "failed"]
    base = over("points").encode(x=_DAYS)
    layers = [
        base.mark_area(color="var(--band)", opacity=0.6).encode(y=alt.Y("l:Q"), y2="h:Q"),
        base.mark_line(color="var(--new)", strokeWidth=1.4).encode(
            y=alt.Y("c:Q", title=None, axis=alt.Axis(format="+~r"))
        ),
        base.mark_point(opacity=0, size=60).encode(y=alt.Y("c:Q"), tooltip=_CHANGE_TIPS),
    ]
    if failed:
        cross = over("failed").mark_point(shape="cross", filled=True, color="var(--bad)", size=70, angle=45, opacity=1)
        layers.append(cross.encode(x=_DAYS, y=alt.Y("c:Q"), tooltip=_CHANGE_TIPS))
    return finished(alt.layer(*layers).properties(height=130), {"points": rows, "failed": failed})


def spread_chart(series: Series) -> Spec | None:
    """How the days' relative changes are spread, in percent; None if they are all the same, which the table shows."""
    found = [(float(point.change) * 100, point.passed) for point in series.points if point.change is not None]
    low, high = min((value for value, _ in found), default=0.0), max((value for value, _ in found), default=0.0)
    if high - low < _SAME:
        return None
    step = (high - low) / _BINS
    counts = Counter(
        (min(int((value - low) / step), _BINS - 1), "outside of the band" if passed is False else "within the band")
        for value, passed in found
    )
    rows = [
        {"a": low + b * step, "b": low + (b + 1) * step, "c": count, "z": 0, "k": k} for (b, k), count in counts.items()
    ]
    # Rectangles, because a bar between two values of x would lie on its side.
    chart = over("bins").mark_rect(stroke="var(--paper)", strokeWidth=0.5).encode(
        x=alt.X("a:Q", title="change in percent", scale=alt.Scale(zero=False), axis=alt.Axis(format="+~r")),
        x2="b:Q",
        # One day among hundreds must be visible.
        y=alt.Y("c:Q", title="days", scale=alt.Scale(type="symlog"), axis=alt.Axis(values=[0, 1, 10, 100, 1000])),
        y2="z:Q",
        color=alt.Color("k:N", title=None, scale=_BAND_COLOURS, legend=alt.Legend(orient="top", columnPadding=24)),
        tooltip=[
            alt.Tooltip("a:Q", title="from %", format="+.4~r"), alt.Tooltip("b:Q", title="to %", format="+.4~r"),
            alt.Tooltip("c:Q", title="days"), alt.Tooltip("k:N", title="verdict"),
        ],
    )  # fmt: skip
    return finished(chart.properties(height=110), {"bins": rows})


def calendar_chart(days: Sequence[ReviewedDay]) -> Spec:
    """A calendar of one dataset, year below year: a column per week, a cell per day, coloured and signed by state."""
    years = sorted({day.day.year for day in days})
    states = [state for state in DayState if any(day.state is state for day in days)]
    order = [f"{year} {weekday}" for year in years for weekday in range(_WEEK + 1)]
    colours = alt.Scale(domain=[s.value for s in states], range=[_STATES[s][0] for s in states])
    weeks = alt.X(
        "w:O", title=None, scale=alt.Scale(domain=list(range(54)), paddingInner=0.12),
        axis=alt.Axis(
            values=_MONTH_WEEKS, labelExpr=f"{_MONTHS}[indexof({_MONTH_WEEKS}, datum.value)]", labelAngle=0, ticks=False,
            domain=False, orient="top", labelAlign="left", labelOverlap=True,
        ),
    )  # fmt: skip
    rows_of_year = alt.Y(
        "r:O", title=None, sort=order, scale=alt.Scale(domain=order, paddingInner=0.12),
        axis=alt.Axis(labelExpr="slice(datum.value, 5) == '0' ? slice(datum.value, 0, 4) : ''", ticks=False, domain=False),
    )  # fmt: skip
    base = over("days").encode(x=weeks, y=rows_of_year)
    tip = [alt.Tooltip("d:N", title="day"), alt.Tooltip("s:N", title="state"), alt.Tooltip("c:N", title="checks")]
    legend = alt.Legend(orient="bottom", columns=3)
    cells = base.mark_rect().encode(color=alt.Color("s:N", title=None, scale=colours, legend=legend), tooltip=tip)
    signs = (
        over("signs")
        .mark_text(fontSize=9, color="var(--paper)")
        .encode(x=weeks, y=rows_of_year, text="g:N", tooltip=tip)
    )
    rows = [_cell(day) for day in days]
    signed = [row for row in rows if "g" in row]
    return finished(
        alt.layer(cells, *([signs] if signed else [])).properties(height=len(order) * _CELL),
        {"days": rows, "signs": signed},
    )


def _row(point: Point) -> dict[str, object]:
    """A point in short names, so that two thousand of them stay small; what cannot be drawn is left out."""
    figures = {"o": point.old, "n": point.new, "x": _delta(point), "s": point.source, "l": point.low, "h": point.high}
    figures["v"] = point.old if point.new is None else point.new
    drawn = {name: float(f"{value:.7g}") for name, value in figures.items() if value is not None and value.is_finite()}
    kind = "failed" if point.passed is False else "live" if point.live else ""
    return {"d": str(point.day), **drawn, **({"k": kind} if kind else {})}


def _delta(point: Point) -> Decimal | None:
    both = [value for value in (point.old, point.new) if value is not None and value.is_finite()]
    return both[1] - both[0] if len(both) == 2 else None  # noqa: PLR2004  # an old figure and a new one


def _relative(point: Point) -> dict[str, object]:
    """A point's change and band relative to what was there before, in percent."""
    figures = {"c": point.change, "l": relative(point.old, point.low), "h": relative(point.old, point.high)}
    drawn = {name: round(float(value) * 100, 6) for name, value in figures.items() if value is not None}
    return {"d": str(point.day), **drawn, **({"k": "failed"} if point.passed is False else {})}


def _cell(day: ReviewedDay) -> dict[str, object]:
    first = dt.date(day.day.year, 1, 1)
    week = ((day.day - first).days + first.weekday()) // _WEEK
    row = f"{day.day.year} {day.day.weekday()}"
    checks = f"{day.passed} of {day.checks} passed" if day.checks else "none yet"
    sign = _STATES[day.state][1]
    return {"d": str(day.day), "w": week, "r": row, "s": day.state.value, "c": checks, **({"g": sign} if sign else {})}


_DAYS: Final = alt.X("d:T", title=None, scale=alt.Scale(type="utc"), axis=alt.Axis(labelOverlap=True, tickCount=8))
_FIGURE: Final = alt.Y("o:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(format="~s"))
_TIPS: Final = [
    alt.Tooltip("d:T", title="day", format="%Y-%m-%d"),
    alt.Tooltip("o:Q", title="old", format=",.6~g"),
    alt.Tooltip("n:Q", title="new", format=",.6~g"),
    alt.Tooltip("x:Q", title="delta", format="+,.6~g"),
    alt.Tooltip("s:Q", title="source", format=",.6~g"),
    alt.Tooltip("l:Q", title="expected from", format=",.6~g"),
    alt.Tooltip("h:Q", title="to", format=",.6~g"),
]
_CHANGE_TIPS: Final = [
    alt.Tooltip("d:T", title="day", format="%Y-%m-%d"),
    alt.Tooltip("c:Q", title="change %", format="+.4~r"),
    alt.Tooltip("l:Q", title="expected from %", format="+.4~r"),
    alt.Tooltip("h:Q", title="to %", format="+.4~r"),
]
_RANGE: Final = [over("range").mark_rect(color="var(--range)").encode(x=alt.X("a:T"), x2="b:T")]
_MARKS: Final[Mapping[str, Sequence[alt.Chart]]] = {
    "seam": (
        over("seam").mark_rule(color="var(--bad)", strokeWidth=1.5, strokeDash=[2, 2]).encode(x=alt.X("d:T")),
        over("seam")
        .mark_point(shape="triangle-down", filled=True, color="var(--bad)", size=90, opacity=1)
        .encode(x=alt.X("d:T"), y=alt.value(4)),
    ),
    "live": (
        over("live")
        .mark_point(shape="diamond", filled=True, color="var(--live)", size=80, opacity=1)
        .encode(x=alt.X("d:T"), y=alt.Y("v:Q"), tooltip=_TIPS),
    ),
    "failed": (
        over("failed")
        .mark_point(shape="cross", filled=True, color="var(--bad)", size=70, angle=45, opacity=1)
        .encode(x=alt.X("d:T"), y=alt.Y("v:Q"), tooltip=_TIPS),
    ),
}
_BAND_COLOURS: Final = alt.Scale(domain=["within the band", "outside of the band"], range=["var(--new)", "var(--bad)"])
_CONFIG: Final[Mapping[str, Any]] = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)", "titleColor": "var(--ink)", "gridColor": "var(--line)", "domainColor": "var(--line)",
        "tickColor": "var(--line)", "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 11},
}  # fmt: skip

_SHOWN_ACTIONS: Final = frozenset(
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
    """Batches as bars, in lanes of their own if they overlap; waits as open bars before them; None without a batch."""
    if not batches:
        return None
    bars = _bars(batches)
    events = [{"t": _text(e.at), "e": e.action.value, "w": e.reason} for e in journal if e.action in _SHOWN_ACTIONS]
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
            took = f"{batch.waited.total_seconds():.0f} s waiting for the gate"
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
