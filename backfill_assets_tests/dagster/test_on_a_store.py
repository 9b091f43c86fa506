"""An installation whose files and tables lie in a bucket: a native backfill, a downstream asset that reads it, and back."""

from __future__ import annotations

import csv
import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.core.days import day_range
from backfill_assets_tests.dagster.lab import Lab, started_alone
from backfill_assets_tests.harness.objects import ObjectStore, object_store
from benchmarks.installation import MODULE
from demo.sources import SHIPPED, land_flights

NAME = "flights"
DAYS = day_range(dt.date(2013, 3, 1), dt.date(2013, 3, 3))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environ.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("on a store")
    variables = {
        **store.environ,
        "BACKFILL_ASSETS_WAREHOUSE": f"{store.url}/ware/house",
        "BACKFILL_ASSETS_SOURCES": f"{store.url}/delivered",
        "BACKFILL_ASSETS_SPARK_MEMORY": "1g",
    }
    made = Lab(root, root / "state", variables=variables)
    made.set_up({})
    shutil.copytree(SHIPPED / NAME, made.datasets / NAME)
    with started_alone(made):
        yield made


def delivered(lab: Lab, folder: Path) -> int:
    """Put the departures of the days into the bucket; returns how many there are."""
    report = land_flights(folder, DAYS[0], DAYS[-1])
    for file in sorted(folder.rglob("*.csv")):
        there = lab.application.settings.sources / file.relative_to(folder).as_posix()
        there.write(file.read_text(encoding="utf-8"))
    return report.rows


def departures(lab: Lab) -> int:
    """Make the report of the month as CI would, in a process of its own, and add its departures up."""
    report = ("--select", "consumers/carrier_report", "--partition", f"{DAYS[0]:%Y-%m}")
    made = lab.run("dagster", "asset", "materialize", *MODULE, *report)
    assert made.returncode == 0, (made.stdout + made.stderr)[-3000:]
    file = lab.root / "state" / "carrier_report" / f"{DAYS[0]:%Y-%m}.csv"
    with file.open(encoding="utf-8", newline="") as text:
        return sum(int(row["departures"]) for row in csv.DictReader(text))


def test_a_native_backfill_and_an_asset_behind_it_read_and_write_the_bucket(
    lab: Lab, store: ObjectStore, tmp_path: Path
) -> None:
    rows = delivered(lab, tmp_path / "delivered")
    backfill = lab.launch(NAME, DAYS)
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    assert lab.materialized("published", NAME) == {str(day) for day in DAYS}
    assert departures(lab) == rows > 0

    (release,) = lab.application.ledger.releases(NAME)
    back = lab.backfill("rollback", release.manifest.release, "--reason", "only a test")
    assert back.returncode == 0, back.stderr
    assert departures(lab) == 0
    assert lab.findings() == []
    assert (store.folder / "lake" / "ware" / "house" / "published" / NAME / "_delta_log").is_dir()
    assert not (lab.root / "state" / "warehouse").exists()
