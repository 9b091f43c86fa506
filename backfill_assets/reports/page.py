"""A review as one self-contained HTML page: no network, readable on a phone, with the keyboard, and on paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import altair as alt
import jinja2
import vl_convert

from backfill_assets.domain.metrics import Metrics
from backfill_assets.domain.review import Outcome, Review
from backfill_assets.reports import tables, words
from backfill_assets.reports.charts import Spec, calendar_chart, change_chart, metric_chart, spread_chart
from backfill_assets.reports.timeline import timeline_chart

MOST_CHARTS: Final = 12
"""So many metrics are drawn: those that need a look first."""
OPEN_CHARTS: Final = 3
"""So many of them are seen at once; the others unfold."""

_SIGNS: Final[Mapping[Outcome, tuple[str, str]]] = {
    Outcome.ready: ("good", "✓"),
    Outcome.warning: ("warn", "!"),
    Outcome.not_ready: ("bad", "✕"),
    Outcome.published: ("good", "✓"),
    Outcome.rolled_back: ("plain", "↶"),
    Outcome.given_up: ("plain", "○"),
}


def render_review(review: Review) -> str:
    """The page of a review; its charts are drawn by scripts that are part of it."""
    charts: dict[str, Spec] = {}
    drawn = [row.series for row in tables.metrics_of(review.series)[:MOST_CHARTS] if row.moved or row.outside]
    for number, series in enumerate(drawn):
        charts[f"metric-{number}"] = metric_chart(series, review.seams)
        for name, made in (("change", change_chart(series)), ("spread", spread_chart(series))):
            if made is not None:
                charts[f"{name}-{number}"] = made
    names = sorted({day.dataset for day in review.days})
    for number, name in enumerate(names):
        charts[f"calendar-{number}"] = calendar_chart([day for day in review.days if day.dataset == name])
    if (timeline := timeline_chart(review.batches, review.journal)) is not None:
        charts["timeline"] = timeline
    css, sign = _SIGNS[review.judgement.outcome]
    return _page(
        "review.html",
        charts,
        {
            "review": review,
            "css": css,
            "sign": sign,
            "drawn": drawn,
            "names": names,
            "several": len(names) > 1,
            "open_charts": OPEN_CHARTS,
        },
    )


def render_index(metrics: Metrics, reports: Mapping[str, str]) -> str:
    """The page of all datasets and campaigns; `reports` holds links to reviews by campaign, unit and release."""
    return _page("index.html", {}, {"metrics": metrics, "reports": reports})


def _page(template: str, charts: Mapping[str, Spec], values: Mapping[str, Any]) -> str:
    scripts = (_bundle(), _own_script()) if charts else ()
    # With their hashes in the page's policy no other script can run, whatever somebody managed to write into it.
    hashes = [f"'sha256-{_digest(script)}'" for script in scripts]
    # Vega compiles its expressions. A page without scripts allows none, and `'none'` may have nothing beside it.
    sources = " ".join([*hashes, "'unsafe-eval'"]) if hashes else "'none'"
    page = _environment().get_template(template)
    return page.render(**values, charts=charts, scripts=scripts, script_sources=sources, most=tables.MOST)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    made.filters |= words.FILTERS
    made.globals |= {table.__name__: table for table in _TABLES}
    return made


@cache
def _bundle() -> str:
    """The scripts that draw the charts: Vega, of the version that the charts are written for."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    made = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # its stub knows no default
    # A page knows no other line ends, and the hash is that of what the page says.
    return made.replace("\r", "").replace("</script", "<\\/script")


def _own_script() -> str:
    return (_TEMPLATES / "charts.js").read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_TEMPLATES: Final = Path(__file__).parent / "templates"
_TABLES: Final = (
    tables.listed, tables.levels_of, tables.checks_of, tables.metrics_of, tables.months_of, tables.states_of,
    tables.notable_days, tables.largest_steps,
)  # fmt: skip
