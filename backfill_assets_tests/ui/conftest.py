"""A real browser on the installation that the orchestration tests use; these tests have days of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Error, expect, sync_playwright

from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.lab import Lab, shared_lab
from backfill_assets_tests.engine import spark_server
from backfill_assets_tests.ui.pages import Ui

__all__ = ["QUIET", "SCREENSHOTS", "lab", "spark_server"]

_FOLDER = Path(__file__).parent
SCREENSHOTS = Path(os.environ.get("BACKFILL_ASSETS_TEST_ARTIFACTS") or _FOLDER.parents[1] / "test-artifacts") / "ui"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE = 120_000  # milliseconds that one step of a page may take on a busy machine


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; requested first, so nothing is started where there is none."""
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        pytest.skip("no browser: install chromium (Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="session")
def lab(chromium: str, spark_server: SparkServer) -> Lab:
    return shared_lab(spark_server.folder.root.parent)


# Not for the entire session: while Playwright runs, no other test of this process could run an event loop.
@pytest.fixture(scope="module")
def ui(chromium: str, lab: Lab) -> Iterator[Ui]:
    expect.set_options(timeout=_PATIENCE)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        page = running.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(_PATIENCE)
        yield Ui(page, lab.url, SCREENSHOTS)
        running.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    page = item.funcargs.get("ui")
    if report.failed and isinstance(page, Ui):
        with contextlib.suppress(Error):  # a dead browser must not hide why the test failed
            page.station(f"failed_{item.name}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.ui)
