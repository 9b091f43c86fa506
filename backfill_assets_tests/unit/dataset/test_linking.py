"""Datasets that name each other: the datasets of a folder that fit are loaded, the others are refused with the reason."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from backfill_assets.core.days import day_range
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Catalog
from backfill_assets_tests.harness.dataset_folders import YAML, write_dataset

JAN = day_range(dt.date(2024, 1, 1), dt.date(2024, 1, 5))
TOTALS = """\
name: totals
partition_column: trip_date
start: 2024-01-01
key: [trip_date]
columns:
  trip_date: {type: date}
  fare: {type: "decimal(38, 2)"}
upstream:
  trips: {}
"""


def derived(root: Path, yaml: str = TOTALS, name: str = "totals", upstream: str = "trips") -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "dataset.yaml").write_text(yaml.replace("totals", name).replace("trips", upstream), encoding="utf-8")
    (folder / "fact.sql").write_text(
        f"SELECT trip_date, sum(fare) AS fare FROM {upstream} GROUP BY trip_date\n", encoding="utf-8"
    )
    return folder


def problems(catalog: Catalog) -> str:
    return "\n".join(str(problem) for problem in catalog.problems)


def test_a_dataset_may_be_built_from_another_alone(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    derived(tmp_path)
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    assert catalog.groups == (("trips", "totals"),)
    assert catalog.datasets["totals"].staging is None
    assert catalog.downstream_of(["trips"]) == ("totals",)


def test_a_check_refers_to_columns_that_its_upstream_has(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    known = "checks: {references: {known: {reference: trips, columns: [fare], to: [fare]}}}\n"
    folder = derived(tmp_path, TOTALS + known)
    assert problems(load_folder(tmp_path)) == ""
    file = folder / "dataset.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("to: [fare]", "to: [fares]"), encoding="utf-8")
    assert "checks.references.known: trips has no column 'fares'; it has trip" in problems(load_folder(tmp_path))


def test_a_faulty_dataset_takes_with_it_what_is_built_from_it_and_nothing_else(tmp_path: Path) -> None:
    write_dataset(tmp_path, yaml=YAML.replace("type: long", "type: longer"))
    write_dataset(tmp_path, "rides", YAML.replace("name: trips", "name: rides"))
    derived(tmp_path)
    derived(tmp_path, name="monthly", upstream="totals")
    catalog = load_folder(tmp_path)
    assert set(catalog.datasets) == {"rides"}
    assert "upstream 'trips' is not loaded" in problems(catalog)
    assert "upstream 'totals' is not loaded" in problems(catalog)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("key:", "chunk_days: 7\nkey:", "chunk_days is 7, but 31 in trips"),
        ("key:", "time_zone: Europe/Berlin\nkey:", "time_zone is Europe/Berlin, but UTC in trips"),
        ("key:", "publication: approval\nkey:", "publication is approval, but auto in trips"),
        ("key:", "end: 2024-12-31\nkey:", "end is 2024-12-31, but not set in trips"),
        (
            "key:",
            "live: {catch_up: {days_per_run: 7}}\nkey:",
            "live.catch_up is 7 days per run, oldest first, but not set in trips",
        ),
    ],
)
def test_datasets_that_are_released_together_must_agree(tmp_path: Path, old: str, new: str, problem: str) -> None:
    write_dataset(tmp_path)
    folder = derived(tmp_path, TOTALS.replace(old, new))
    catalog = load_folder(tmp_path)
    assert set(catalog.datasets) == {"trips"}
    assert f"{folder / 'dataset.yaml'}: {problem}" in problems(catalog)


@pytest.mark.parametrize(("start", "first"), [("2024-01-03", "2024-01-01"), ("2024-01-01", "2024-01-01")])
def test_datasets_that_are_released_together_may_begin_on_different_days(
    tmp_path: Path, start: str, first: str
) -> None:
    write_dataset(tmp_path)
    derived(tmp_path, TOTALS.replace("2024-01-01", start).replace("trips: {}", "trips: {lookback_days: 3}"))
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    totals = catalog.dataset("totals").dataset
    assert {str(catalog.first_partitions[name]) for name in ("trips", "totals")} == {first}
    # The upstream has days before it, and they are read.
    assert totals.upstream_days("trips", (JAN[3],)) == JAN[0:4]
    assert totals.upstream_days("trips", (JAN[2],)) == JAN[0:3]
    assert [str(day) for day in totals.from_start(JAN)] == [str(day) for day in JAN if str(day) >= start]


def test_days_before_an_upstream_begins_read_nothing_of_it(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_dataset(tmp_path, "rides", YAML.replace("name: trips", "name: rides").replace("2024-01-01", "2024-01-03"))
    folder = derived(tmp_path, TOTALS.replace("trips: {}", "trips: {}\n  rides: {lookback_days: 3}"))
    (folder / "fact.sql").write_text("SELECT trip_date, fare FROM trips JOIN rides USING (trip_date)", encoding="utf-8")
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    totals = catalog.dataset("totals").dataset
    assert totals.upstream_days("rides", JAN[:2]) == ()
    assert totals.upstream_days("rides", JAN[1:4]) == JAN[2:4]
    assert [list(totals.upstream_on(day)) for day in JAN[1:3]] == [["trips"], ["trips", "rides"]]


def test_a_dataset_without_a_source_does_not_begin_before_all_that_it_is_built_from(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    folder = derived(tmp_path, TOTALS.replace("2024-01-01", "2023-12-31"))
    found = f"{folder / 'dataset.yaml'}: start 2023-12-31: it is built only from upstream, which begins on 2024-01-01"
    assert found in problems(load_folder(tmp_path))


def test_nothing_live_is_built_from_a_draft(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    derived(tmp_path, f"{TOTALS}state: draft\n")
    monthly = derived(tmp_path, name="monthly", upstream="totals")
    catalog = load_folder(tmp_path)
    assert f"{monthly / 'dataset.yaml'}: upstream totals is a draft" in problems(catalog)
    file = monthly / "dataset.yaml"
    file.write_text(f"{file.read_text(encoding='utf-8')}state: draft\n", encoding="utf-8")
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    assert (catalog.groups, catalog.live_groups) == ((("trips", "totals", "monthly"),), (("trips",),))
    assert (catalog.downstream_of(["trips"]), catalog.live_downstream_of(["trips"])) == (("totals", "monthly"), ())


def test_a_draft_joins_no_groups_that_are_live(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_dataset(tmp_path, "rides", YAML.replace("name: trips", "name: rides"))
    folder = derived(tmp_path, TOTALS.replace("trips: {}", "trips: {}\n  rides: {}") + "state: draft\n")
    (folder / "fact.sql").write_text("SELECT trip_date, fare FROM trips JOIN rides USING (trip_date)", encoding="utf-8")
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    assert catalog.live_groups == (("rides",), ("trips",))


def test_a_group_lags_by_as_many_days_as_a_member_or_an_upstream_looks_ahead(tmp_path: Path) -> None:
    write_dataset(tmp_path, "trips", f"{YAML}lookahead_days: 2\n")
    derived(tmp_path)
    derived(tmp_path, f"{TOTALS}state: draft\n", "monthly")
    write_dataset(tmp_path, "rides", YAML.replace("name: trips", "name: rides"))
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    assert {name: one.dataset.lag_days for name, one in catalog.datasets.items()} == {
        "trips": 2,
        "totals": 2,
        "monthly": 2,
        "rides": 0,
    }


def test_provisional_days_hold_no_group_back_and_nothing_is_built_from_them(tmp_path: Path) -> None:
    described = f"{YAML}lookahead_days: 2\nprovisional: {{may_change: [fare]}}\n"
    write_dataset(tmp_path, "trips", described)
    catalog = load_folder(tmp_path)
    assert problems(catalog) == ""
    assert catalog.datasets["trips"].dataset.lag_days == 0
    derived(tmp_path)
    assert "upstream trips publishes provisional days" in problems(load_folder(tmp_path))


def test_a_circle_is_refused_with_all_its_members(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    derived(tmp_path, name="egg", upstream="hen")
    derived(tmp_path, name="hen", upstream="egg")
    catalog = load_folder(tmp_path)
    assert set(catalog.datasets) == {"trips"}
    assert {problem.dataset for problem in catalog.problems} == {"egg", "hen"}
    assert "form a cycle" in problems(catalog)
