"""Postgres, with the ledger and Dagster's storage on it, is killed under a worker of a living installation; one command ends it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.domain.days import day_range
from backfill_assets.domain.release import ReleaseState
from backfill_assets.lakehouse.engine.server import SparkServer
from backfill_assets_tests.dagster.gates import HOLD_VARIABLE, let_go, reached, shut
from backfill_assets_tests.dagster.lab import ROOT, Lab, content, started, wait_for
from backfill_assets_tests.dagster.on_postgres import CONFIG, LEDGER, documented_urls
from backfill_assets_tests.told import Told
from backfill_assets_tests.unit.ledger.postgres import Killable

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

DATASET = "tickets_postgres_deaths"
DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 3))


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with documented_urls() as variables:
        yield variables


@pytest.fixture(scope="module")
def lab(urls: dict[str, str], spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation with everything on Postgres and the run limits as shipped, whose workers have gates."""
    root = tmp_path_factory.mktemp("postgres_deaths")
    gates = {HOLD_VARIABLE: str(root / "gates"), "PYTHONPATH": str(ROOT)}
    made = Lab(root, spark_server.folder.root.parent, CONFIG, {**urls, **gates})
    made.module = ("-m", "backfill_assets_tests.dagster.held_definitions")
    made.set_up(renamed=("tickets", DATASET), run_limits={})
    (root / "gates").mkdir()
    with started(made):
        yield made


def test_postgres_is_killed_under_a_worker_that_commits(lab: Lab, urls: dict[str, str], told: Told) -> None:
    for day in DAYS:
        lab.deliver(DATASET, day, [(1, 10), (2, 20)])
    gate = shut(lab.root / "gates", "commit.1")
    backfill = lab.launch(DATASET, DAYS)
    pid = reached(gate)
    unit, server = lab.unit(backfill).handle, Killable(urls[LEDGER])
    server.kill()
    try:
        let_go(gate)
        # The commit needs no ledger; what comes after it does.
        wait_for(lambda: readers_see(lab) == dict.fromkeys(DAYS, 30), "the commit of the worker", 60)
    finally:
        server.start()
    published = lab.run("backfill", "publish", unit)
    assert published.returncode == 0, published.stderr
    told.injected(f"kill -9 of Postgres with ledger and runs on it before the Delta commit of the worker {pid}")
    told.found(f"the days were committed without it; after `backfill publish`: {assert_once(lab)}")


def readers_see(lab: Lab) -> dict[dt.date, int]:
    """Sum of the published amounts per day, from the files alone: an application would ask the ledger."""
    table = DeltaTable(Path(lab.environ["BACKFILL_ASSETS_WAREHOUSE"]) / "published" / DATASET)
    return {day: sum(rows.values()) for day, rows in content(table).items()}


def assert_once(lab: Lab) -> str:
    """Readers see the model's content, each day was released exactly once, and the doctor finds nothing; in words."""
    assert readers_see(lab) == dict.fromkeys(DAYS, 30)
    (release,) = lab.application.ledger.releases(DATASET)
    assert (release.state, release.version) == (ReleaseState.finalized, lab.version(DATASET))
    assert [swap.day for swap in release.manifest.days] == list(DAYS)
    assert lab.materialized("published", DATASET) == {str(day) for day in DAYS}
    wait_for(lambda: lab.application.doctor.examine() == (), "the doctor to find nothing", 60)
    return f"one release of {len(DAYS)} days; the doctor: nothing"
