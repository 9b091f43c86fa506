"""Sources and warehouse in a bucket, and Spark on a standalone cluster of two workers: all of it of these tests' own."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import BackfillError, QueryTimeoutError, ServerLostError, StorageError
from backfill_assets.core.unit import AttemptState
from backfill_assets.settings import Settings
from backfill_assets.spark.workers import SEEN_FILE
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.owner import OWNER_FILE
from backfill_assets_tests.harness.objects import object_store
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.harness.without_dagster import built, publish
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.spark.test_on_a_store import DATASETS, NAME, deliver, published, say
from benchmarks.cluster import SparkCluster

NO_MOUNT = (
    "all workers see the warehouse, as none can have a mount of its own (by unshare: where users may make namespaces)"
)
DAYS = D1, D2, D3, D4 = tuple(dt.date(2024, 3, number) for number in range(1, 5))


@dataclass
class Site:
    """An installation, and the cluster that it works on."""

    cluster: SparkCluster
    application: Application

    def end_workers(self) -> None:
        """Take all workers away, with their executors."""
        self.cluster.end_workers()
        # A new worker is waited for by the number of those that the master knows.
        wait_for(lambda: self.cluster.workers() == 0, "the master to know it", 120)

    def at_work(self) -> bool:
        """Whether days are being built: they have landed."""
        return bool(self.application.ledger.attempts(state=AttemptState.running))

    def publish(self, days: Sequence[dt.date], tag: str) -> str:
        """Land, build and publish days; the refusal, or that it goes through."""
        try:
            with self.application.session(tag) as spark:
                publish(self.application, spark, NAME, days)
        except BackfillError as error:
            return f"{type(error).__name__}: {error}"
        return "it goes through"

    def while_it_works(self, days: Sequence[dt.date], fault: Callable[[], object]) -> str:
        """Let a fault happen again and again while days are published."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(self.publish, days, f"first {days[0]}")
            while not done.done():
                fault()
            return done.result()

    def assert_one_launch_is_enough(self, days: Sequence[dt.date]) -> None:
        """After a fault, the next launch publishes what is missing, and nothing is wrong."""
        if days[0] not in published(self.application):
            assert self.publish(days, f"again {days[0]}") == "it goes through"
        now = published(self.application)
        assert {day: now[day] for day in days} == {day: [day.day] for day in days}
        assert [str(one) for one in self.application.doctor.examine() if one.severity != "info"] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("on a cluster")
    shutil.copytree(DATASETS / NAME, root / "datasets" / NAME)
    with ExitStack() as running:
        store = running.enter_context(object_store(root / "objects"))
        patch = running.enter_context(pytest.MonkeyPatch.context())
        environ = {
            **store.environ,
            "BACKFILL_ASSETS_STATE": str(root / "state"),
            "BACKFILL_ASSETS_DATASETS": str(root / "datasets"),
            "BACKFILL_ASSETS_WAREHOUSE": f"{store.url}/ware/house",
            "BACKFILL_ASSETS_SOURCES": f"{store.url}/delivered",
            "BACKFILL_ASSETS_SPARK_MEMORY": "1g",
            # `make test` sets spark.testing there, with which a worker asks for a checkout of Spark.
            "JAVA_TOOL_OPTIONS": " ".join(
                word for word in os.environ.get("JAVA_TOOL_OPTIONS", "").split() if not word.startswith("-Dspark.")
            ),
        }
        for name, value in environ.items():
            patch.setenv(name, value)
        cluster = SparkCluster(root, "600m")
        running.callback(cluster.stop)
        patch.setenv("BACKFILL_ASSETS_SPARK_URL", cluster.start(Settings.from_env(os.environ), 2))
        made = Site(cluster, Application.from_env())
        yield made
        made.application.ledger.close()


def delivered(site: Site, month: int) -> tuple[dt.date, ...]:
    """The files of eight days of a month."""
    days = tuple(dt.date(2024, month, number) for number in range(1, 9))
    for day in days:
        deliver(site.application, day, day.day)
    return days


def test_days_are_published_corrected_taken_back_and_proven(site: Site) -> None:
    for day in DAYS:
        deliver(site.application, day, day.day, 10 * day.day)
    with site.application.session("first") as spark:
        publish(site.application, spark, NAME, DAYS)
        assert len(site.cluster.executors()) == 2
    first = {day: [day.day, 10 * day.day] for day in DAYS}
    assert published(site.application) == first

    deliver(site.application, D2, 7)
    with site.application.session("correction") as spark:
        unit = built(site.application, spark, NAME, (D2,), {"row_count": "any", "amount": "any"})
        release = site.application.publisher.release(unit.id).release
    assert published(site.application) == first | {D2: [7]}
    say("rollback", release, "--reason", "not yet")
    assert published(site.application) == first
    assert "certificate" in say("prove", NAME, "--partitions", f"{D1}..{D4}")
    assert json.loads(say("doctor", "--json")) == []


@pytest.mark.faults
def test_executors_that_are_killed_while_they_work_lose_nothing(site: Site, observed: Observed) -> None:
    days, killed = delivered(site, 4), set[int]()
    observed.injected("each executor of a cluster is killed once, while days are landed, staged and built")

    def kill() -> None:
        time.sleep(1)
        # The fourth failure of a task fails its job.
        for one in site.cluster.executors()[:1] if site.at_work() and len(killed) < 3 else ():
            killed.add(one.pid)
            one.kill()

    said = site.while_it_works(days, kill)
    observed.found(said)
    assert killed
    assert said == "it goes through"
    site.assert_one_launch_is_enough(days)


@pytest.mark.faults
def test_a_driver_that_is_killed_and_started_again_goes_on(site: Site, observed: Observed) -> None:
    days = delivered(site, 5)
    observed.injected(
        "the Spark Connect server of a cluster is killed while days are published, and started again at its address"
    )
    killed = list[int | None]()

    def kill() -> None:
        time.sleep(1)
        if not killed and site.at_work():
            server = site.cluster.server()
            server.kill()
            killed.append(server.wait())
            site.cluster.restart_server()

    said = site.while_it_works(days, kill)
    observed.found(said)
    assert killed
    assert said.startswith(ServerLostError.__name__)
    site.assert_one_launch_is_enough(days)


@pytest.mark.faults
def test_a_cluster_without_free_cores_is_named(site: Site, observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    days = delivered(site, 6)
    observed.injected("all workers of a cluster leave before days are published")
    site.end_workers()
    with monkeypatch.context() as patch:
        patch.setenv("BACKFILL_ASSETS_QUERY_TIMEOUT", "20s")
        site.application = Application.from_env()
        said = site.publish(days, "without cores")
    observed.found(said)
    assert said.startswith(QueryTimeoutError.__name__)
    site.application = Application.from_env()
    site.cluster.add_worker()
    site.assert_one_launch_is_enough(days)


def test_workers_need_no_keys_of_their_own(site: Site) -> None:
    days = delivered(site, 7)
    site.end_workers()
    site.cluster.add_worker({name: value for name, value in os.environ.items() if not name.startswith("AWS_")})
    assert site.publish(days, "without keys") == "it goes through"
    site.assert_one_launch_is_enough(days)


@pytest.mark.faults
def test_a_worker_that_has_another_folder_under_the_path_of_the_warehouse_is_named(
    site: Site, observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    within = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs tmpfs "$0" && exec "$@"',
        str(folder),
    ]
    site.end_workers()
    site.cluster.add_worker()
    if subprocess.run([*within, "true"], check=False, capture_output=True).returncode == 0:
        observed.injected("one of two workers has an empty folder where the warehouse is")
        site.cluster.add_worker(within=within)
        wait_for(lambda: len(site.cluster.executors()) == 2, "both executors", 60)
        time.sleep(20)  # until the driver knows both
    else:
        observed.weaker(NO_MOUNT)
        observed.injected("the server looks for the warehouse at another path")
        monkeypatch.setattr(OnDisk, "for_spark", property(lambda place: f"{place}_elsewhere"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(folder))
    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / "state"))
    application = Application.from_env()
    named = pytest.raises(StorageError, match=f"{folder}: a worker of the Spark server does not see it")
    with named as refused, application.session("another folder"):
        pytest.fail("it was opened")
    observed.found(refused.value)
    assert {path.name for path in folder.iterdir()} == {OWNER_FILE, SEEN_FILE}
    application.ledger.close()
