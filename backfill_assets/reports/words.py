"""How values are written on a page: figures, percentages, sizes, moments, days."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from markupsafe import Markup, escape

from backfill_assets.campaign.plan import shown_bytes
from backfill_assets.core.canonical import plain
from backfill_assets.core.days import format_days
from backfill_assets.core.measured import RowChange

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


def size(value: int) -> str:
    """Bytes for people."""
    return shown_bytes(value)


def days(value: Iterable[dt.date]) -> str:
    """Days in ranges."""
    return format_days(value, most=4)


def text(value: object) -> str:
    """A plain JSON value as people would write it: a text bare, nothing as a dash, all else as JSON."""
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
    """A robust z-score; how large one beyond a thousand is says nothing."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if abs(value) < _WHOLE else f"{'>' if value > 0 else '< -'}{_WHOLE:,}"


def key_of(change: RowChange) -> str:
    """The key of a changed row without its day, which stands beside it."""
    return text({column: value for column, value in change.key.items() if value != str(change.day)})


def name(value: object) -> Markup:
    """A name that may break after its underscores, since a narrow window has no room for long ones."""
    return Markup(str(escape(value)).replace("_", "_<wbr>"))  # noqa: S704  # escaped just here


FILTERS: Final = {
    "figure": figure, "signed": signed, "percent": percent, "share": share, "moment": moment, "lasting": lasting,
    "size": size, "days": days, "text": text, "name": name, "key_of": key_of, "score": score,
}  # fmt: skip
