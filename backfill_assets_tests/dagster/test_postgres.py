"""Dagster's storage and the ledger on Postgres, set up as docs/postgres.md says, through a native backfill and back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster_postgres import PostgresRunStorage
from sqlalchemy import create_engine, inspect

from backfill_assets.core.days import day_range
from backfill_assets.core.errors import LedgerError
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.ledger.open import open_ledger
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.lab import Lab, amounts, started
from backfill_assets_tests.dagster.on_postgres import CONFIG, DAGSTER, LEDGER, documented_urls
from backfill_assets_tests.harness.clocks import FixedClock

DATASET = "tickets_on_postgres"
DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 4))


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with documented_urls() as variables:
        yield variables


@pytest.fixture
def lab(urls: dict[str, str], spark_server: SparkServer, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, spark_server.folder.root.parent, CONFIG, urls)
    lab.set_up({DATASET: "tickets"})
    with started(lab):
        yield lab


def tables(url: str) -> set[str]:
    engine = create_engine(url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found


def test_a_native_backfill_is_published_and_rolled_back_with_everything_on_postgres(
    lab: Lab, urls: dict[str, str]
) -> None:
    for day in DAYS:
        lab.deliver(DATASET, day, [(1, 10), (2, 20)])
    before = lab.version(DATASET)
    backfill = lab.launch(DATASET, DAYS)
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    assert len(lab.runs(backfill)) == 2
    assert lab.version(DATASET) == max(before, 0) + 1  # the very first release creates the table in version 0
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 30)
    assert lab.materialized("published", DATASET) == {str(day) for day in DAYS}
    ledger = lab.application.ledger
    (release,) = ledger.releases(DATASET)
    assert (release.state, release.version) == (ReleaseState.finalized, lab.version(DATASET))

    back = lab.backfill("rollback", release.manifest.release, "--reason", "only a test")
    assert back.returncode == 0, back.stderr
    assert amounts(lab, DATASET, DAYS) == {}
    assert [r.manifest.kind for r in ledger.releases(DATASET)] == [ReleaseKind.rollback, ReleaseKind.publish]
    assert lab.findings() == []

    assert {"units", "releases", "evidence"} <= tables(urls[LEDGER])
    assert {"runs", "event_logs", "bulk_actions", "jobs"} <= tables(urls[DAGSTER])
    assert not tables(urls[LEDGER]) & tables(urls[DAGSTER]) - {"alembic_version"}
    assert list((lab.root / "state").rglob("*.db")) == []


def test_a_ledger_in_dagsters_database_is_refused(urls: dict[str, str]) -> None:
    PostgresRunStorage(urls[DAGSTER]).dispose()
    with pytest.raises(LedgerError, match="use another ledger"):
        open_ledger(urls[DAGSTER], FixedClock())
