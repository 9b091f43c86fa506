"""A review as one HTML page that needs no network, and the folder of reports."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final
from urllib.parse import quote

import altair as alt
import jinja2
import vl_convert

from backfill_assets.core.errors import LayoutError
from backfill_assets.report import tables
from backfill_assets.report.charts import Spec, charts_of
from backfill_assets.report.concerns import checks_of
from backfill_assets.report.judgement import Outcome
from backfill_assets.report.metrics import Metrics
from backfill_assets.report.review import Review, review_as_json
from backfill_assets.storage.layout import JSON, UNFINISHED

MOST_CHARTS: Final = 12
"""How many metrics are drawn: those that need attention come first."""
OPEN_CHARTS: Final = 3
"""How many of them are open at first; the others are collapsed."""

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
    drawn = [row.series for row in tables.metrics_of(review.series)[:MOST_CHARTS] if row.moved or row.outside]
    css, sign = _SIGNS[review.judgement.outcome]
    return _page(
        "review.html",
        charts_of(review, drawn),
        {
            "review": review,
            "css": css,
            "sign": sign,
            "drawn": drawn,
            "names": review.datasets,
            "several": len(review.datasets) > 1,
            "open_charts": OPEN_CHARTS,
        },
    )


def _page(template: str, charts: Mapping[str, Spec], values: Mapping[str, Any]) -> str:
    scripts = (_bundle(), (_TEMPLATES / "charts.js").read_text(encoding="utf-8")) if charts else ()
    # With their hashes in the page's policy no other script can run, even if one was injected.
    hashes = [f"'sha256-{_digest(script)}'" for script in scripts]
    # Vega compiles its expressions. A page without scripts allows none, and `'none'` must stand alone.
    sources = " ".join([*hashes, "'unsafe-eval'"]) if hashes else "'none'"
    page = _environment().get_template(template)
    return page.render(**values, charts=charts, scripts=scripts, script_sources=sources, most=tables.MOST)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    made.filters |= tables.FILTERS
    made.globals |= {table.__name__: table for table in _TABLES}
    return made


@cache
def _bundle() -> str:
    """The scripts that draw the charts: Vega, in the version that the charts are written for."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    made = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # its stub has no default
    # A page has no other line ends, and the hash must match the text of the page.
    return made.replace("\r", "").replace("</script", "<\\/script")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_TEMPLATES: Final = Path(__file__).parent / "templates"
_TABLES: Final = (
    tables.listed, tables.levels_of, checks_of, tables.metrics_of, tables.months_of, tables.states_of,
    tables.notable_days, tables.largest_steps,
)  # fmt: skip

PAGE: Final = "index.html"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Reports:
    """The folder of reports; `url` is the address where it is served, empty if it is not."""

    folder: Path
    url: str = ""

    def write(self, review: Review, folder: Path | None = None) -> Path:
        """Write the page of a review and the same as JSON; returns the path of the page.

        Both go to the unit's folder by default; each file is written completely or not at all.

        Raises:
            LayoutError: the folder cannot be written to.
        """
        home = folder or self.folder / _plain(review.unit)
        page, text = render_review(review), review_as_json(review)
        _write(home / JSON, text)
        return _write(home / PAGE, page)

    def written_since(self, review: Review) -> Path | None:
        """The page of the unit if it was written after all of its releases; None otherwise."""
        page = self.folder / _plain(review.unit) / PAGE
        newest = max((made.at.timestamp() for made in review.releases), default=0.0)
        return page if page.is_file() and page.stat().st_mtime > newest else None

    def write_index(self, metrics: Metrics, units: Mapping[str, str], folder: Path | None = None) -> Path:
        """Write the page of all datasets and campaigns, and the same as JSON; returns the path of the page.

        `units` maps each campaign, release and unit to the unit whose report covers it; those without one get no link.

        Raises:
            LayoutError: the folder cannot be written to.
        """
        home = folder or self.folder
        links = dict(self._links(units, home))
        _write(home / "metrics.json", json.dumps(metrics.to_plain(), ensure_ascii=False))
        return _write(home / PAGE, _page("index.html", {}, {"metrics": metrics, "reports": links}))

    def address(self, page: Path) -> str:
        """The address of a page below the served folder; empty if it is not served."""
        if not self.url or not page.is_relative_to(self.folder):
            return ""
        return f"{self.url.rstrip('/')}/{quote(page.relative_to(self.folder).as_posix())}"

    def _links(self, units: Mapping[str, str], home: Path) -> Iterable[tuple[str, str]]:
        for name, unit in units.items():
            page = self.folder / unit / PAGE
            if _NAME.fullmatch(unit) and page.is_file():
                yield name, quote(Path(os.path.relpath(page, home)).as_posix())


def _plain(unit: str) -> str:
    if not _NAME.fullmatch(unit):
        raise LayoutError(f"unit {unit!r} cannot be the name of a folder; use letters, digits, _, . and - in ids")
    return unit


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=UNFINISHED, delete=False) as file:
            file.write(text)
        # The file is private until here, and the web server must be able to read it.
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise LayoutError(f"the report cannot be written to {path}: {error}; name another folder with --out") from error
    return path
