"""The report as a person sees it: in a wide and a narrow window, in dark mode, with the keyboard, on paper; without network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from backfill_assets.core.unit import UnitState
from backfill_assets.report.page import Reports
from backfill_assets_tests.ui.conftest import QUIET, SCREENSHOTS
from backfill_assets_tests.unit.report.sample import Wish, sample_review

WISHES = {
    "ready": Wish(days=547),
    "not_ready": Wish(days=547, wrong=(10, 11, 300), unbooked=(12,)),
    "seam": Wish(days=547, seam_from=212),
    "published": Wish(days=90, state=UnitState.published),
    "long": Wish(days=2000, wrong=tuple(range(0, 2000, 9))),
}
_TALL = 900
_ALL_DRAWN = """
() => [...document.querySelectorAll("[data-chart]")].filter(e => !e.closest("details:not([open])"))
  .every(e => e.dataset.drawn === "yes" && e.querySelector("svg"))
"""
_TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
_LINES = """
place => [...place.querySelectorAll("svg path")].filter(path => path.getBBox().width > 100).length
"""


@dataclass
class Watched:
    """A page, and everything that went wrong in it or was requested from a network."""

    page: Page
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chrome(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield running
        running.close()


class Pages(dict[str, Path]):
    """A report for each wish, written on demand."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        self[name] = Reports(self._folder).write(sample_review(WISHES[name]), self._folder / name)
        return self[name]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.mktemp("reports"))


def opened(chrome: Browser, page: Path, width: int, scheme: str = "light") -> Watched:
    """The page in a browser without network, with every visible chart drawn."""
    context = chrome.new_context(
        viewport={"width": width, "height": _TALL},
        color_scheme=scheme,  # type: ignore[arg-type]
        offline=True,
    )
    found = Watched(context.new_page())
    found.page.on("console", lambda message: found.faults.append(message.text))
    found.page.on("pageerror", lambda error: found.faults.append(str(error)))
    found.page.on("request", lambda request: found.asked.append(request.url))
    found.page.goto(page.as_uri())
    found.page.wait_for_function(_ALL_DRAWN)
    return found


@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "light"), (1280, "dark")])
def test_it_opens_without_network_draws_its_charts_and_fits_the_window(
    chrome: Browser, pages: Pages, name: str, width: int, scheme: str
) -> None:
    seen = opened(chrome, pages[name], width, scheme)
    assert seen.faults == []
    assert seen.asked == [pages[name].as_uri()]
    assert seen.page.evaluate(_TOO_WIDE) == 0
    expect(seen.page.locator("#verdict")).to_be_in_viewport()
    seen.page.screenshot(path=SCREENSHOTS / f"report_{name}_{width}_{scheme}.png", full_page=True)
    seen.page.context.close()


def test_lines_band_cells_and_batches_are_drawn(chrome: Browser, pages: Pages) -> None:
    seen = opened(chrome, pages["not_ready"], 1280)
    # At least old, new and the band.
    assert seen.page.locator("[data-chart=chart-metric-0]").evaluate(_LINES) >= 3
    cells = seen.page.locator("[data-chart=chart-calendar-0] .mark-rect path")
    assert cells.count() >= 547
    assert seen.page.locator("[data-chart=chart-timeline] .mark-rect path").count() >= 17
    seen.page.context.close()


def test_a_folded_part_draws_its_charts_when_it_is_opened(chrome: Browser, pages: Pages) -> None:
    seen = opened(chrome, pages["not_ready"], 1280)
    part = seen.page.locator("details.metric").first
    expect(part.locator("svg")).to_have_count(0)
    part.locator("summary").first.click()
    seen.page.wait_for_function(_ALL_DRAWN)
    assert part.locator("svg").count() >= 1
    assert seen.faults == []
    seen.page.context.close()


def test_the_keyboard_alone_reaches_content_parts_and_commands(chrome: Browser, pages: Pages) -> None:
    seen = opened(chrome, pages["ready"], 1280)
    page = seen.page
    page.keyboard.press("Tab")
    skip = page.get_by_text("Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.reload()
    reached = []
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.textContent.trim()"))
        if reached[-1] == "review.json":
            break
    assert {"Concerns", "Metrics", "Blast radius", "What to do", "The same as a table, by month", "copy"} <= set(
        reached
    )
    page.get_by_role("link", name="What to do").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What to do")).to_be_in_viewport()
    summary = page.locator("summary", has_text="All dimensions")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="of the change")).to_be_visible()
    page.context.close()


def test_it_prints_completely_and_in_light_colours(chrome: Browser, pages: Pages, tmp_path: Path) -> None:
    seen = opened(chrome, pages["not_ready"], 1280, "dark")
    seen.page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    seen.page.wait_for_function(_ALL_DRAWN)
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate("() => getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    expect(seen.page.get_by_role("navigation")).to_be_hidden()
    pdf = seen.page.pdf(path=SCREENSHOTS / "report.pdf", format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    pages_printed = len(re.findall(rb"/Type\s*/Page[^s]", pdf))
    assert 3 < pages_printed < 60
    seen.page.context.close()
