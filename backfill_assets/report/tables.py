"""The tables of a report, and how values are written."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Generic, TypeVar

from markupsafe import Markup, escape

from backfill_assets.campaign.plan import shown_bytes
from backfill_assets.core.canonical import plain
from backfill_assets.core.days import format_days
from backfill_assets.core.measured import RowChange, Seam
from backfill_assets.dataset.checks import Level
from backfill_assets.report.facts import ReviewedDay
from backfill_assets.report.judgement import is_percentile
from backfill_assets.report.review import Review
from backfill_assets.report.series import DayState, Point, Series

_Row = TypeVar("_Row")
MOST: Final = 100
"""How many rows of a list are on the page."""
_GOOD: Final = frozenset({DayState.published, DayState.passed})


@dataclass(frozen=True)
class Listed(Generic[_Row]):
    """The first rows of a list, and how many more there are."""

    rows: tuple[_Row, ...]
    more: int


def listed(rows: Iterable[_Row], most: int = MOST) -> Listed[_Row]:
    """The first rows of a list."""
    found = tuple(rows)
    return Listed(found[:most], max(len(found) - most, 0))


@dataclass(frozen=True)
class LevelRow:
    """The result of a level: what was checked, and on how many days something was found that blocks, or that warns."""

    level: str
    looked_at: str
    blocking: int
    warnings: int


@dataclass(frozen=True)
class Sums:
    """Figures of several days added up, each None if unknown; `source` also if it is not known for every day."""

    old: Decimal | None = None
    new: Decimal | None = None
    source: Decimal | None = None

    @property
    def delta(self) -> Decimal | None:
        """The new sum minus the old one; None if one of them is None or not finite."""
        if self.old is None or self.new is None or not self.old.is_finite() or not self.new.is_finite():
            return None
        return self.new - self.old


@dataclass(frozen=True)
class MetricRow:
    """A metric over all days: on `outside` of them it left the band, on `apart` it changed from nothing or to nothing.

    `sums` are empty for metrics that cannot be added up.
    """

    series: Series
    outside: int
    apart: int
    sums: Sums

    @property
    def moved(self) -> bool:
        """Whether any day changes."""
        change = self.series.change
        return self.apart > 0 or (
            change is not None and change.range is not None and bool(change.range.low or change.range.high)
        )


@dataclass(frozen=True)
class MonthRow:
    """A month of a metric: days, the lowest and highest relative change, days outside of the band, and sums as above."""

    month: str
    days: int
    low: Decimal | None
    high: Decimal | None
    outside: int
    sums: Sums


@dataclass(frozen=True)
class StateRow:
    """The days of a dataset in one state, and how many they are."""

    dataset: str
    state: str
    count: int
    days: tuple[dt.date, ...]


def levels_of(review: Review) -> tuple[LevelRow, ...]:
    """All levels in order, including those at which nothing was found."""
    rows = []
    for level in Level:
        found = [f for f in review.concerns if f.level is level]
        blocking = len({(f.dataset, f.day) for f in found if f.blocks})
        warnings = len({(f.dataset, f.day) for f in found if not f.blocks})
        rows.append(LevelRow(level.value, _looked_at(review, level), blocking, warnings))
    return tuple(rows)


def _looked_at(review: Review, level: Level) -> str:
    checked = sum(1 for day in review.days if day.checks)
    match level:
        case Level.structural:
            return (
                f"keys, required fields, deliveries, references, rules and files of {checked:,} days" if checked else ""
            )
        case Level.aggregate:
            metrics = len(review.series)
            return f"{metrics} metrics of {checked:,} days, {len(review.seams):,} steps between days" if checked else ""
        case Level.row:
            counts = [(row.days, row.counts.differing + row.counts.unchanged) for row in review.rows]
            return f"{sum(n for _, n in counts):,} rows of {sum(d for d, _ in counts):,} days" if counts else ""
        case Level.golden:
            days = sum(one.days for one in review.golden)
            return (
                f"{', '.join(sorted({one.golden for one in review.golden}))} on {days:,} days" if review.golden else ""
            )
        case Level.certificate:
            days = sum(len(proof.certificate.days) for proof in review.certificates)
            return f"{days:,} of {len(review.days):,} days computed again" if review.certificates else ""


def metrics_of(series: Sequence[Series]) -> tuple[MetricRow, ...]:
    """Every metric, first those that left their band, then those that moved; percentiles after sums and counts."""
    rows = [_metric(one) for one in series]
    return tuple(sorted(rows, key=lambda row: (not row.outside, not row.moved, is_percentile(row.series.metric))))


def months_of(series: Series) -> tuple[MonthRow, ...]:
    """A metric month by month: the chart as a table."""
    months: dict[str, list[Point]] = {}
    for point in series.points:
        if point.inside:
            months.setdefault(f"{point.day:%Y-%m}", []).append(point)
    return tuple(_month(month, points, series) for month, points in months.items())


def states_of(days: Sequence[ReviewedDay]) -> tuple[StateRow, ...]:
    """How many days are in which state, by dataset; what needs attention comes first."""
    grouped: dict[tuple[str, DayState], list[dt.date]] = {}
    for day in days:
        grouped.setdefault((day.dataset, day.state), []).append(day.day)
    order = list(DayState)
    keys = sorted(grouped, key=lambda key: (key[0], -order.index(key[1])))
    return tuple(
        StateRow(name, state.value, len(grouped[name, state]), tuple(grouped[name, state])) for name, state in keys
    )


def notable_days(days: Sequence[ReviewedDay]) -> tuple[ReviewedDay, ...]:
    """The days that are not simply good, or that live runs have published."""
    return tuple(day for day in days if day.state not in _GOOD or day.live)


def largest_steps(seams: Sequence[Seam]) -> tuple[Seam, ...]:
    """Steps by how unusual they are now, the most unusual first."""
    return tuple(sorted(seams, key=lambda seam: -abs(seam.new_score or 0.0)))


def _metric(series: Series) -> MetricRow:
    inside = [point for point in series.points if point.inside]
    outside = sum(point.passed is False for point in inside)
    apart = sum(point.change is None and (point.old or 0) != (point.new or 0) for point in inside)
    return MetricRow(series, outside, apart, _sums(inside, series))


def _month(month: str, points: Sequence[Point], series: Series) -> MonthRow:
    changes = [point.change for point in points if point.change is not None]
    outside = sum(point.passed is False for point in points)
    low, high = min(changes, default=None), max(changes, default=None)
    return MonthRow(month, len(points), low, high, outside, _sums(points, series))


def _sums(points: Sequence[Point], series: Series) -> Sums:
    if not series.adds_up:
        return Sums()
    # A sum over some of the days would look like that of all.
    complete = all(point.source is not None for point in points if point.new is not None)
    source = _sum([point.source for point in points]) if complete else None
    return Sums(_sum([point.old for point in points]), _sum([point.new for point in points]), source)


def _sum(values: Sequence[Decimal | None]) -> Decimal | None:
    found = [value for value in values if value is not None]
    if not all(value.is_finite() for value in found):
        return Decimal("NaN")
    return sum(found, Decimal(0)) if found else None


NOTHING: Final = "—"
_WHOLE: Final = 1000


def figure(value: Decimal | float | None) -> str:
    """A number with thousands separated, large ones without digits after the point."""
    if value is None:
        return NOTHING
    number = Decimal(value)
    if not number.is_finite():
        return str(number)
    if number == number.to_integral_value() or abs(number) >= _WHOLE:
        return f"{number:,.0f}"
    return f"{number:,.4g}"


def signed(value: Decimal | None) -> str:
    """A number with its sign."""
    text = figure(value)
    return f"+{text}" if value is not None and value > 0 else text


def percent(value: Decimal | float | None) -> str:
    """A fraction as a percentage with its sign: 0.0123 is `+1.23 %`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 %"
    return f"{Decimal(value) * 100:+.2f} %" if Decimal(value).is_finite() else str(value)


def share(value: float) -> str:
    """A part of one as a percentage: 0.97 is `97 %`."""
    return f"{value * 100:.0f} %" if value in {0, 1} or 0.01 <= value <= 0.99 else f"{value * 100:.2f} %"  # noqa: PLR2004  # between, whole percents say enough


def moment(value: dt.datetime | None) -> str:
    """A moment in UTC."""
    return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC" if value is not None else NOTHING


def lasting(seconds: float) -> str:
    """A duration: `1:02:03`."""
    return str(dt.timedelta(seconds=round(seconds)))


def days(value: Iterable[dt.date]) -> str:
    """Days in ranges."""
    return format_days(value, most=4)


def text(value: object) -> str:
    """A plain JSON value for people: a text without quotes, nothing as a dash, everything else as JSON."""
    match plain(value):
        case None | "":
            return NOTHING
        case list() | dict() as found if not found:
            return NOTHING
        case str() as found:
            return found
        case dict() as found:
            return ", ".join(f"{name}: {text(one)}" for name, one in found.items())
        case list() as found:
            return ", ".join(text(one) for one in found)
        case found:
            return json.dumps(found)


def score(value: float | None) -> str:
    """A robust z-score; beyond a thousand its size means nothing."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if abs(value) < _WHOLE else f"{'>' if value > 0 else '< -'}{_WHOLE:,}"


def key_of(change: RowChange) -> str:
    """The key of a changed row without its day, which is shown next to it."""
    return text({column: value for column, value in change.key.items() if value != str(change.day)})


def name(value: object) -> Markup:
    """A name that may break after its underscores, since a narrow window has no room for long ones."""
    return Markup(str(escape(value)).replace("_", "_<wbr>"))  # noqa: S704  # escaped just here


FILTERS: Final = {
    "figure": figure, "signed": signed, "percent": percent, "share": share, "moment": moment, "lasting": lasting,
    "size": shown_bytes, "days": days, "text": text, "name": name, "key_of": key_of, "score": score,
}  # fmt: skip
