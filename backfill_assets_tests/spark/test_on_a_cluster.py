"""Sources and warehouse in a bucket, and Spark on a standalone cluster of two workers: all of it of this test's own."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from backfill_assets.application import Application
from backfill_assets.settings import Settings
from backfill_assets_tests.harness.objects import object_store
from backfill_assets_tests.harness.without_dagster import built, publish
from backfill_assets_tests.spark.test_on_a_store import DATASETS, NAME, deliver, published, say
from tools.cluster import Cluster, connect, standalone, worker

DAYS = tuple(dt.date(2024, 3, number) for number in range(1, 5))


def executors(cluster: Cluster) -> list[psutil.Process]:
    """The executors, which are processes of the workers."""
    own = str(cluster.folder.scratch)
    found = [one for one in psutil.process_iter(["cmdline"]) if any("Executor" in w for w in one.info["cmdline"] or ())]
    return [one for one in found if any(own in word for word in one.info["cmdline"]) or own in one.cwd()]


def test_days_are_published_corrected_taken_back_and_proven(tmp_path: Path) -> None:
    shutil.copytree(DATASETS / NAME, tmp_path / "datasets" / NAME)
    with ExitStack() as running:
        store = running.enter_context(object_store(tmp_path / "objects"))
        patch = running.enter_context(pytest.MonkeyPatch.context())
        environ = {
            **store.environ,
            "BACKFILL_ASSETS_STATE": str(tmp_path / "state"),
            "BACKFILL_ASSETS_DATASETS": str(tmp_path / "datasets"),
            "BACKFILL_ASSETS_WAREHOUSE": f"{store.url}/ware/house",
            "BACKFILL_ASSETS_SOURCES": f"{store.url}/delivered",
            "BACKFILL_ASSETS_SPARK_MEMORY": "1g",
        }
        for name, value in environ.items():
            patch.setenv(name, value)
        # `make test` sets spark.testing there, with which a worker asks for a checkout of Spark.
        patch.delenv("JAVA_TOOL_OPTIONS", raising=False)
        cluster = running.enter_context(standalone(tmp_path / "cluster", os.environ))
        for number in range(2):
            running.enter_context(worker(cluster, number, 1, "1g", os.environ))
        url = running.enter_context(connect(cluster, Settings.from_env(os.environ), tmp_path / "connect", "600m"))
        patch.setenv("BACKFILL_ASSETS_SPARK_URL", url)
        application = Application.from_env()
        _work_on(application, cluster)
        application.ledger.close()


def _work_on(application: Application, cluster: Cluster) -> None:
    for day in DAYS:
        deliver(application, day, day.day, 10 * day.day)
    with application.session("first") as spark:
        publish(application, spark, NAME, DAYS)
        assert len(executors(cluster)) == 2
    first = {day: [day.day, 10 * day.day] for day in DAYS}
    assert published(application) == first

    deliver(application, DAYS[1], 7)
    with application.session("correction") as spark:
        unit = built(application, spark, NAME, DAYS[1:2], {"row_count": "any", "amount": "any"})
        release = application.publisher.release(unit.id).release
    assert published(application) == first | {DAYS[1]: [7]}
    say("rollback", release, "--reason", "not yet")
    assert published(application) == first
    assert "certificate" in say("prove", NAME, "--partitions", f"{DAYS[0]}..{DAYS[-1]}")
    assert json.loads(say("doctor", "--json")) == []
