"""Charts of a review as Vega-Lite specifications; colours are variables of the page, so that they follow light and dark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import altair as alt

from backfill_assets.domain.review import DayState, ReviewedDay
from backfill_assets.domain.seams import Seam
from backfill_assets.domain.series import Point, Series

Spec = Mapping[str, Any]
"""A Vega-Lite specification as plain JSON values."""

MOST_POINTS: Final = 2_500
"""Of more days a chart shows means over weeks."""
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
    DayState.failed: ("var(--bad)", "×"),
}
"""Colour and sign of each state: the sign tells them apart without the colour."""


def finished(chart: alt.Chart | alt.LayerChart) -> Spec:
    """The specification of a chart, in the page's own type and colours and as wide as the page lets it be."""
    spec: dict[str, Any] = chart.properties(width="container").to_dict()
    # It names an address, and nothing may look as if the page needed a network.
    spec.pop("$schema", None)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec["background"] = "transparent"
    spec["config"] = _CONFIG
    return spec


def metric_chart(series: Series, seams: Sequence[Seam]) -> Spec:
    """A metric over time: as it was, as it would be, the expected band; range, seams, live and failed days marked."""
    points = thinned(series.points)
    rows = [_row(point) for point in points]
    inside = [point.day for point in series.points if point.inside]
    # From midnight of the first day to that after the last.
    edges = [{"a": str(inside[0]), "b": str(inside[-1] + dt.timedelta(days=1))}] if inside else []
    marks = [{"d": str(s.day), "k": "seam"} for s in seams if s.introduced and s.metric == series.metric]
    x = alt.X("d:T", title=None, scale=alt.Scale(type="utc"), axis=alt.Axis(labelOverlap=True, tickCount=8))
    tip = [
        alt.Tooltip("d:T", title="day", format="%Y-%m-%d"),
        alt.Tooltip("o:Q", title="old", format=",.6~g"),
        alt.Tooltip("n:Q", title="new", format=",.6~g"),
        alt.Tooltip("l:Q", title="expected from", format=",.6~g"),
        alt.Tooltip("h:Q", title="to", format=",.6~g"),
    ]
    y = alt.Y("o:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(format="~s"))
    base = alt.Chart(alt.Data(values=rows))
    layers = [
        alt.Chart(alt.Data(values=edges)).mark_rect(color="var(--range)").encode(x=alt.X("a:T"), x2="b:T"),
        base.mark_area(color="var(--band)", opacity=0.55).encode(x=x, y=alt.Y("l:Q"), y2="h:Q"),
        base.mark_line(color="var(--old)", strokeDash=[4, 3], strokeWidth=1.4).encode(x=x, y=y),
        base.mark_line(color="var(--new)", strokeWidth=1.6).encode(x=x, y=alt.Y("n:Q")),
        alt.Chart(alt.Data(values=marks)).mark_rule(color="var(--bad)", strokeWidth=1.5, strokeDash=[2, 2]).encode(x=alt.X("d:T")),
        alt.Chart(alt.Data(values=marks))
        .mark_point(shape="triangle-down", filled=True, color="var(--bad)", size=90)
        .encode(x=alt.X("d:T"), y=alt.value(4)),
        base.transform_filter("datum.k == 'live'")
        .mark_point(shape="diamond", filled=True, color="var(--live)", size=70)
        .encode(x=x, y=alt.Y("v:Q"), tooltip=tip),
        base.transform_filter("datum.k == 'failed'")
        .mark_point(shape="cross", filled=True, color="var(--bad)", size=70, angle=45)
        .encode(x=x, y=alt.Y("v:Q"), tooltip=tip),
        base.mark_point(opacity=0, size=60).encode(x=x, y=alt.Y("v:Q"), tooltip=tip),
    ]
    return finished(alt.layer(*layers).properties(height=_HEIGHT))


def change_chart(series: Series) -> Spec | None:
    """How the days' relative changes are spread, in percent; none where no day has anything to compare with."""
    found = [(float(point.change) * 100, point.passed) for point in series.points if point.change is not None]
    if not found or all(value == 0 for value, _ in found):
        return None
    low, high = min(value for value, _ in found), max(value for value, _ in found)
    step = (high - low) / _BINS or max(abs(high), 1.0) / _BINS
    counts: dict[tuple[int, str], int] = {}
    for value, passed in found:
        key = (min(int((value - low) / step), _BINS - 1), "outside of the band" if passed is False else "within the band")
        counts[key] = counts.get(key, 0) + 1
    rows = [{"a": low + b * step, "b": low + (b + 1) * step, "c": count, "k": kind} for (b, kind), count in counts.items()]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(stroke="var(--paper)", strokeWidth=0.5)
        .encode(
            x=alt.X("a:Q", title="change in percent", scale=alt.Scale(zero=False), axis=alt.Axis(format="+~r")),
            x2="b:Q",
            y=alt.Y("c:Q", title="days", stack=True),
            color=alt.Color("k:N", title=None, scale=_BAND_COLOURS, legend=alt.Legend(orient="top")),
            tooltip=[
                alt.Tooltip("a:Q", title="from %", format="+.4~r"),
                alt.Tooltip("b:Q", title="to %", format="+.4~r"),
                alt.Tooltip("c:Q", title="days"),
                alt.Tooltip("k:N", title="verdict"),
            ],
        )
        .properties(height=140)
    )
    return finished(chart)


def calendar_chart(days: Sequence[ReviewedDay]) -> Spec:
    """A calendar of one dataset: a year below the other, a column per week, a cell per day, coloured and signed by state."""
    rows = [_cell(day) for day in days]
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
    base = alt.Chart(alt.Data(values=rows)).encode(x=weeks, y=rows_of_year)
    tip = [alt.Tooltip("d:N", title="day"), alt.Tooltip("s:N", title="state"), alt.Tooltip("c:N", title="checks")]
    legend = alt.Legend(orient="bottom", columns=3)
    cells = base.mark_rect().encode(color=alt.Color("s:N", title=None, scale=colours, legend=legend), tooltip=tip)
    signs = base.mark_text(fontSize=9, color="var(--paper)").encode(text="g:N", tooltip=tip)
    return finished(alt.layer(cells, signs).properties(height=len(order) * _CELL))


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """The points of a chart: all of them, or where there are too many, the mean of each week."""
    if len(points) <= MOST_POINTS:
        return points
    weeks: dict[tuple[bool, dt.date], list[Point]] = {}
    for point in points:
        weeks.setdefault((point.inside, point.day - dt.timedelta(days=point.day.weekday())), []).append(point)
    return [_mean(monday, some) for (_, monday), some in weeks.items()]


def _mean(monday: dt.date, some: Sequence[Point]) -> Point:
    means = {name: _mean_of([getattr(point, name) for point in some]) for name in ("old", "new", "low", "high")}
    passed = None if all(point.passed is None for point in some) else all(point.passed is not False for point in some)
    live = any(point.live for point in some)
    return Point(max(monday, some[0].day), **means, passed=passed, inside=some[0].inside, live=live)


def _mean_of(values: Sequence[Decimal | None]) -> Decimal | None:
    found = [value for value in values if value is not None and value.is_finite()]
    return sum(found, Decimal(0)) / len(found) if found else None


def _row(point: Point) -> dict[str, object]:
    """A point in short names, so that two thousand of them stay small; what cannot be drawn is left out."""
    figures = {"o": point.old, "n": point.new, "l": point.low, "h": point.high}
    figures["v"] = point.old if point.new is None else point.new
    drawn = {name: float(f"{value:.7g}") for name, value in figures.items() if value is not None and value.is_finite()}
    kind = "failed" if point.passed is False else "live" if point.live else ""
    return {"d": str(point.day), **drawn, **({"k": kind} if kind else {})}


def _cell(day: ReviewedDay) -> dict[str, object]:
    first = dt.date(day.day.year, 1, 1)
    week = ((day.day - first).days + first.weekday()) // _WEEK
    row = f"{day.day.year} {day.day.weekday()}"
    checks = f"{day.passed} of {day.checks} passed" if day.checks else "none yet"
    sign = _STATES[day.state][1]
    return {"d": str(day.day), "w": week, "r": row, "s": day.state.value, "c": checks, **({"g": sign} if sign else {})}


_BAND_COLOURS: Final = alt.Scale(
    domain=["within the band", "outside of the band"], range=["var(--new)", "var(--bad)"]
)
_CONFIG: Final[Mapping[str, Any]] = {
    "font": "inherit",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)", "titleColor": "var(--ink)", "gridColor": "var(--line)", "domainColor": "var(--line)",
        "tickColor": "var(--line)", "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 11},
}  # fmt: skip
