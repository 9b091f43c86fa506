"""The Dagster UI as a person uses it: by the text of its links, buttons and tabs."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Locator, Page, Response, expect

from backfill_assets.core.layers import Layer

# The list of partitions shows a day's state only by the colour of the dot behind it.
_DOTS = """
names => Object.fromEntries(names.flatMap(name => {
  const dot = name.nextElementSibling;
  const colour = dot && (dot.getAttribute("style") || "").match(/--color-accent-(\\w+)/);
  return colour ? [[name.dataset.tooltip, colour[1]]] : [];
}))
"""

# The table of a backfill's assets is made of plain boxes: a row is the first one around the name with four figures.
_ROW = """
name => { let row = name; while (!/(\\n\\d+){4}$/.test(row.innerText)) row = row.parentElement; return row.innerText; }
"""


class Ui:
    """One browser page on the webserver; every station of a journey leaves a screenshot."""

    def __init__(self, page: Page, url: str, screenshots: Path) -> None:
        self.page = page
        self.url = url
        self._screenshots = screenshots

    def station(self, name: str) -> None:
        """Save what the page shows now as `<name>.png`."""
        self.page.screenshot(path=self._screenshots / f"{name}.png", animations="disabled")

    def select_group(self, dataset: str) -> None:
        """Go to the catalog, show only the dataset's group, and tick all of its assets."""
        self._show_group(dataset)
        expect(self.page.get_by_role("checkbox")).to_have_count(5)
        self.page.locator("label").filter(has=self.page.get_by_role("checkbox")).first.click()

    def open_lineage(self, dataset: str) -> None:
        """Show the dataset's group in the lineage."""
        self._go_to("Lineage")
        self._filter(dataset)
        for layer in Layer:
            expect(self.page.locator("foreignObject").get_by_text(layer.value, exact=True)).to_be_visible()

    def open_launch_dialog(self, days: Sequence[dt.date]) -> Locator:
        """Click *Materialize selected* and type the range of days; returns the dialog."""
        self.page.get_by_role("button", name="Materialize selected (4)").click()
        dialog = self.page.get_by_role("dialog").filter(has_text="Launch runs to materialize 4 assets")
        self._choose_range(dialog, days)
        expect(dialog.get_by_text(f"{len(days)} partitions", exact=True)).to_be_visible()
        return dialog

    def preview(self, dialog: Locator, name: str) -> str:
        """Open the dialog's preview, save it as a station, close it; returns its text."""
        dialog.get_by_role("button", name="Preview").click()
        preview = self.page.get_by_role("dialog").filter(has_text="Backfill preview")
        expect(preview).to_contain_text("partitions per run")
        self.station(name)
        text = preview.inner_text()
        preview.get_by_role("button", name="OK").click()
        expect(preview).to_be_hidden()
        return text

    def launch(self, dialog: Locator) -> str:
        """Click *Launch backfill*; returns the id of the backfill, as the page receives it."""
        # The notice that names the backfill disappears after a few seconds: too soon to rely on.
        with self.page.expect_response(_launches_a_backfill) as answer:
            dialog.get_by_role("button", name="Launch backfill").click()
        expect(dialog).to_be_hidden()
        launched = answer.value.json()["data"]["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def open_backfill(self, backfill: str) -> None:
        """Find the backfill in the list of all runs and open it."""
        self._go_to("Runs")
        self.page.get_by_role("tab", name="Backfills").click()
        self.page.get_by_role("link", name=backfill).click()
        expect(self.page.get_by_text("Partition selection")).to_be_visible()

    def rest(self) -> None:
        """Leave the UI for an empty page: a page that shows running work redraws all the time."""
        self.page.goto("about:blank")

    def end_of_backfill(self, backfill: str) -> str:
        """Open the page of a backfill that is over, and wait until it says so; returns how it ended."""
        self.open_backfill(backfill)
        status = self.page.get_by_text("Status", exact=True).locator("xpath=..")
        expect(status).to_have_text(re.compile("Failed|Completed|Success|Succeeded|Canceled"))
        return status.inner_text().removeprefix("Status").strip()

    def open_tab(self, tab: str) -> None:
        """Open a tab of the page."""
        self.page.get_by_role("tab", name=tab).click()

    def progress(self, layer: str, dataset: str) -> list[int]:
        """The backfill's figures for an asset: targeted, in progress, succeeded, failed."""
        row: str = self.page.get_by_role("link", name=f"{dataset} / {layer}").evaluate(_ROW)
        return [int(n) for n in row.split()[-4:]]

    def open_asset(self, layer: str, dataset: str, tab: str) -> None:
        """Open an asset from the catalog at one of its tabs."""
        self._show_group(dataset)
        self.page.get_by_role("link", name=f"{dataset} / {layer}").click()
        self.open_tab(tab)

    def open_check(self, check: str) -> None:
        """Open the partitions of a check, from the list of an asset's checks."""
        self.page.get_by_text(check, exact=True).first.click()
        self.page.get_by_role("tab", name="Partitions").last.click()

    def choose_days(self, days: Sequence[dt.date]) -> None:
        """Narrow the list of partitions to a range of days."""
        self._choose_range(self.page.locator("body"), days)
        expect(self.page.get_by_text(f"{len(days)} Partitions Selected", exact=True)).to_be_visible()

    def expect_count(self, state: str, count: int) -> None:
        """Wait until the page counts that many partitions of the range in a state."""
        expect(self.page.get_by_text(f"{state} ({count})", exact=True)).to_be_visible()

    def dots(self) -> dict[dt.date, str]:
        """The colours of the days in the list of partitions: green, red, gray …."""
        found: dict[str, str] = self.page.locator("[data-tooltip]").evaluate_all(_DOTS)
        return {dt.date.fromisoformat(day): colour for day, colour in sorted(found.items())}

    def metadata(self) -> dict[str, str]:
        """The metadata table of the selection, without tables inside of it."""
        rows = (row.get_by_role("cell").all_inner_texts() for row in self.page.get_by_role("row").all())
        return {cells[0]: cells[1] for cells in rows if len(cells) == 2}

    def days_in_state(self, state: str) -> list[dt.date]:
        """The days that stay in the list when only one state is ticked."""
        boxes = self.page.locator("label").filter(has=self.page.get_by_role("checkbox"))
        for box in boxes.all():
            wanted = box.inner_text().startswith(f"{state} (")
            if box.get_by_role("checkbox").is_checked() != wanted:
                box.click()
        return list(self.dots())

    def _go_to(self, place: str) -> None:
        if not self.page.url.startswith(self.url):  # loading it takes seconds, following a link in it does not
            self.page.goto(self.url)
        # Its accessible name begins with that of its icon.
        self.page.get_by_role("navigation").get_by_role("link", name=re.compile(f"{place}$")).click()

    def _show_group(self, dataset: str) -> None:
        self._go_to("Catalog")
        self._filter(dataset)
        # The page draws only as many assets as fit into the window.
        expect(self.page.get_by_role("link", name=f"{dataset} / ")).to_have_count(4)

    def _filter(self, dataset: str) -> None:
        self.page.get_by_role("textbox", name="Search and filter assets").focus()
        self.page.keyboard.type(f"group:{dataset}")
        self.page.keyboard.press("Enter")

    def _choose_range(self, inside: Locator, days: Sequence[dt.date]) -> None:
        box = inside.get_by_placeholder("ex: ")
        box.fill(f"[{days[0]}...{days[-1]}]")
        box.press("Tab")


def _launches_a_backfill(response: Response) -> bool:
    return "launchPartitionBackfill" in (response.request.post_data or "")
