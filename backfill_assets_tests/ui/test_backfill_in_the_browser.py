"""What a person clicks and sees: a range of days with a duplicate key on one of them, step by step; then a good range."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from backfill_assets.core.days import day_range
from backfill_assets_tests.dagster.lab import Lab, amounts
from backfill_assets_tests.ui.pages import Ui

DAYS = day_range(dt.date(2024, 10, 1), dt.date(2024, 10, 6))
BAD = dt.date(2024, 10, 5)
GOOD_DAYS = day_range(dt.date(2024, 10, 11), dt.date(2024, 10, 14))


@dataclass(frozen=True)
class Launched:
    """The id of a backfill, and what the dialog promised for it."""

    faulty: str
    promise: str


@pytest.fixture(scope="module")
def launched(lab: Lab, ui: Ui) -> Launched:
    """The range with the duplicate key, launched by clicking; it may still be running."""
    for day in DAYS:
        lab.deliver("tickets", day, [(1, 10), (1, 11)] if day == BAD else [(1, 10), (2, 20)])
    ui.select_group("tickets")
    ui.station("01_assets_selected")
    dialog = ui.open_launch_dialog(DAYS)
    ui.station("02_range_chosen")
    promise = ui.preview(dialog, "03_preview")
    faulty = ui.launch(dialog)
    ui.station("04_launched")
    return Launched(faulty, promise)


def test_a_range_launched_by_clicking_runs_in_chunks_and_ends_failed_for_one_of_them(
    lab: Lab, ui: Ui, launched: Launched
) -> None:
    ui.open_backfill(launched.faulty)
    ui.station("05_backfill_under_way")
    ui.rest()
    lab.finished(launched.faulty)
    assert ui.end_of_backfill(launched.faulty) == "Failed"
    ui.station("06_backfill_failed")

    assert launched.promise.count("maximum of 3 partitions per run") == 4
    assert ui.progress("shadow", "tickets") == [6, 0, 6, 0]
    assert ui.progress("published", "tickets") == [6, 0, 0, 6]
    ui.open_tab("Runs")
    expect(ui.page.get_by_text("Failure", exact=True)).to_have_count(1)
    expect(ui.page.get_by_text("Success", exact=True)).to_have_count(1)
    ui.station("07_runs_of_the_backfill")


def test_the_heat_maps_show_every_shadow_and_nothing_published(lab: Lab, ui: Ui, launched: Launched) -> None:
    ui.open_asset("shadow", "tickets", "Partitions")
    ui.choose_days(DAYS)
    ui.expect_count("Materialized", 6)
    assert ui.dots() == dict.fromkeys(DAYS, "green")
    ui.station("08_heat_map_of_the_shadow")

    ui.open_asset("published", "tickets", "Partitions")
    ui.choose_days(DAYS)
    ui.expect_count("Materialized", 0)
    ui.expect_count("Failed", 3)
    assert [day for day, colour in ui.dots().items() if colour == "red"] == list(DAYS[3:])
    assert "green" not in ui.dots().values()
    ui.station("09_heat_map_of_published")
    assert amounts(lab, "tickets", DAYS) == {}


def test_the_failed_day_is_red_under_its_check_and_the_others_are_green(ui: Ui, launched: Launched) -> None:
    ui.open_asset("shadow", "tickets", "Checks")
    expect(ui.page.get_by_text("unique_key", exact=True).first).to_be_visible()
    ui.station("10_checks")
    ui.open_check("unique_key")
    ui.choose_days(DAYS)
    ui.expect_count("Failed", 1)
    ui.expect_count("Passed", 5)

    assert ui.dots() == {day: "red" if day == BAD else "green" for day in DAYS}
    ui.station("11_check_by_partition")
    assert ui.days_in_state("Failed") == [BAD]
    assert ui.days_in_state("Passed") == [day for day in DAYS if day != BAD]


def test_the_failed_day_shows_what_was_expected_and_found_with_a_sample(ui: Ui, launched: Launched) -> None:
    ui.open_asset("shadow", "tickets", "Checks")
    ui.open_check("unique_key")
    ui.choose_days(DAYS)
    ui.page.get_by_text(str(BAD), exact=True).first.click()
    expect(ui.page.get_by_text("expected no duplicate keys, found 1 duplicate key")).to_be_visible()
    ui.station("12_failed_day")

    rows = ui.metadata()
    assert rows["expected"] == "no duplicate keys"
    assert rows["found"] == "1 duplicate key"
    assert "tolerance" not in rows  # none is declared
    sample = ui.page.get_by_role("table").filter(has=ui.page.get_by_role("columnheader", name="ticket")).last
    assert sample.get_by_role("cell").all_inner_texts() == [str(BAD), "2", "1"]


def test_a_good_range_ends_green_and_its_days_are_published(lab: Lab, ui: Ui) -> None:
    for day in GOOD_DAYS:
        lab.deliver("tickets", day, [(1, 10), (2, 20)])
    ui.select_group("tickets")
    good = ui.launch(ui.open_launch_dialog(GOOD_DAYS))
    ui.rest()
    lab.finished(good)
    assert ui.end_of_backfill(good) == "Succeeded", lab.failures(good)
    assert ui.progress("published", "tickets") == [4, 0, 4, 0]
    ui.station("13_backfill_succeeded")

    ui.open_asset("published", "tickets", "Partitions")
    ui.choose_days(GOOD_DAYS)
    ui.expect_count("Materialized", 4)
    assert ui.dots() == dict.fromkeys(GOOD_DAYS, "green")
    ui.page.get_by_text(str(GOOD_DAYS[0]), exact=True).first.click()
    expect(ui.page.get_by_text(good)).to_be_visible()
    ui.station("14_published_day")
    assert amounts(lab, "tickets", GOOD_DAYS) == dict.fromkeys(GOOD_DAYS, 30)

    ui.open_lineage("tickets")
    ui.station("15_lineage")
