"""Writes reviews into the folder of reports: a page and its JSON per unit, and the index of all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final
from urllib.parse import quote

from backfill_assets.core.errors import LayoutError
from backfill_assets.domain.metrics import Metrics
from backfill_assets.domain.review import Review, review_as_json
from backfill_assets.reports.page import render_index, render_review
from backfill_assets.storage.layout import JSON, UNFINISHED

PAGE: Final = "index.html"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Reports:
    """The folder of reports; `url` is the address under which somebody serves it, empty if nobody does."""

    folder: Path
    url: str = ""

    def write(self, review: Review, folder: Path | None = None) -> Path:
        """Write the page of a review and the same as JSON beside it; the path of the page.

        They lie in a folder of the unit, unless another one is named; both are there whole or not at all.

        Raises:
            LayoutError: the folder cannot be written to.
        """
        home = folder or self.folder / _plain(review.unit)
        page, text = render_review(review), review_as_json(review)
        _write(home / JSON, text)
        return _write(home / PAGE, page)

    def written_since(self, review: Review) -> Path | None:
        """The page of the unit, if one was written after all of its releases; none otherwise."""
        page = self.folder / _plain(review.unit) / PAGE
        newest = max((made.at.timestamp() for made in review.releases), default=0.0)
        return page if page.is_file() and page.stat().st_mtime > newest else None

    def write_index(self, metrics: Metrics, units: Mapping[str, str], folder: Path | None = None) -> Path:
        """Write the page of all datasets and campaigns, and the same as JSON; the path of the page.

        `units` says by campaign, release and unit which unit's report is about it; those without a report have no link.

        Raises:
            LayoutError: the folder cannot be written to.
        """
        home = folder or self.folder
        links = dict(self._links(units, home))
        _write(home / "metrics.json", json.dumps(metrics.to_plain(), ensure_ascii=False))
        return _write(home / PAGE, render_index(metrics, links))

    def address(self, page: Path) -> str:
        """The address of a page below the served folder; empty if nobody serves it."""
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
        # A private file until here: whoever serves the folder has to be able to read it.
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise LayoutError(f"the report cannot be written to {path}: {error}; name another folder with --out") from error
    return path
