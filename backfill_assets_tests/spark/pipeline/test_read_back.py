"""What Spark has committed counts only if it is there when it is read back; a table has one writing driver at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.application import Application
from backfill_assets.core.errors import SourceError, StorageError
from backfill_assets.delta.opening import LOG
from backfill_assets.pipeline import batch, tables
from backfill_assets.pipeline import land as landing
from backfill_assets.settings import Settings
from backfill_assets.spark.driver import driver_of
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.spark.pipeline.kit import D1, Kit, values
from backfill_assets_tests.spark.workplace import OnTheTestServer


def newest_commit(home: Path) -> Path:
    return max(home.rglob(f"{LOG}/*.json"))


def written_over(home: Path) -> Path:
    """The newest commit, in whose place there is one of somebody else now."""
    commit = newest_commit(home)
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
    commit.write_text('{"commitInfo":{"timestamp":0,"userMetadata":"somebody else"}}\n')
    return commit


@pytest.mark.parametrize("step", ["raw", "staging", "shadow"])
@pytest.mark.parametrize("overwritten", [True, False], ids=["overwritten", "removed"])
def test_a_commit_that_is_no_longer_there_is_refused_and_made_again(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, step: str, *, overwritten: bool
) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    steps: dict[str, tuple[Callable[[], object], Path]] = {
        "raw": (lambda: kit.land(loaded, D1), path_of(kit.layout.raw_path(loaded.name))),
        "staging": (lambda: kit.stage(loaded, D1), path_of(kit.layout.staging_path(loaded.name))),
        "shadow": (lambda: kit.build(loaded, D1), kit.shadow_folder(loaded)),
    }
    act, home = steps[step]
    write = tables.retried

    def as_if_another_had_come_later(commit: Callable[[], None]) -> None:
        write(commit)
        if list(home.rglob(LOG)):
            theirs = written_over(home)
            if not overwritten:
                theirs.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(tables, "retried", as_if_another_had_come_later)
        with pytest.raises(StorageError, match=r"committed version 0, and another commit is there now.*launch again"):
            act()


def test_a_commit_that_is_overwritten_while_its_files_are_looked_at_again_is_not_recorded_as_a_file_without_rows(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.land(loaded, D1)
    kit.deliver(D1, f"{D1},2,b,10,1.00", part="-late")
    home, look = path_of(kit.layout.raw_path(loaded.name)), landing.measured_rows

    def after_a_driver_that_hung_came_back(*given: object) -> object:
        written_over(home)
        return look(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(landing, "measured_rows", after_a_driver_that_hung_came_back)
        with pytest.raises(StorageError, match=r"committed version 1, and another commit is there now.*launch again"):
            kit.land(loaded, D1)
    assert [one.path for one in kit.book[loaded.name]] == [f"trips/{D1}.csv"]


def test_a_commit_that_a_checkpoint_hides_is_not_recorded_as_a_file_without_rows(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.land(loaded, D1)
    kit.deliver(D1, f"{D1},2,b,10,1.00", part="-late")
    home, look = path_of(kit.layout.raw_path(loaded.name)), landing.measured_rows

    def after_a_driver_has_made_a_checkpoint_of_its_own(*given: object) -> object:
        ours = newest_commit(home).read_text()
        commit = written_over(home)
        DeltaTable(home).create_checkpoint()
        commit.write_text(ours)
        return look(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(landing, "measured_rows", after_a_driver_has_made_a_checkpoint_of_its_own)
        with pytest.raises(StorageError, match=r"committed version 1, and another commit is there now.*launch again"):
            kit.land(loaded, D1)
    assert [one.path for one in kit.book[loaded.name]] == [f"trips/{D1}.csv"]


def test_a_landing_whose_rows_another_session_has_landed_again_meanwhile_counts(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    look = landing.measured_rows

    def after_another_session_has_landed_the_same(*given: object) -> object:
        monkeypatch.undo()
        kit.land(loaded, D1)
        return look(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(landing, "measured_rows", after_another_session_has_landed_the_same)
    kit.land(loaded, D1)
    assert [one.rows for one in kit.book[loaded.name]] == [1]
    assert len(DeltaTable(path_of(kit.layout.raw_path(loaded.name))).history()) == 2


def test_a_commit_of_raw_that_is_overwritten_while_days_are_staged_makes_them_count_for_nothing(
    kit: Kit, spark_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    application: Application = OnTheTestServer(kit.settings, spark_settings)
    stage = batch.stage

    def before_a_driver_that_hung_comes_back(*given: object) -> object:
        counts = stage(*given)  # type: ignore[arg-type]
        written_over(path_of(application.layout.raw_path("trips")))
        return counts

    monkeypatch.setattr(batch, "stage", before_a_driver_that_hung_comes_back)
    with application.session("stages") as spark:
        application.pipeline.land(spark, "trips", (D1,))
        kit.deliver(D1, f"{D1},2,b,10,1.00", part="-late")
        application.pipeline.land(spark, "trips", (D1,))
        with pytest.raises(SourceError, match="raw has fewer rows"):
            application.pipeline.stage(spark, "trips", (D1,))
    assert not application.ledger.staged("trips", (D1,))


def test_each_session_of_a_server_has_the_same_driver(kit: Kit, spark_settings: Settings) -> None:
    kit.dataset()
    application = OnTheTestServer(kit.settings, spark_settings)
    with application.session("one") as one, application.session("two") as two:
        assert driver_of(one) == driver_of(two) == driver_of(kit.spark)


def test_landing_and_staging_wait_for_another_driver_at_their_table_only(kit: Kit, spark_settings: Settings) -> None:
    kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    application: Application = OnTheTestServer(kit.settings, spark_settings)
    done = threading.Event()

    def build() -> None:
        with application.session("waits") as spark:
            application.pipeline.land(spark, "trips", (D1,))
            application.pipeline.stage(spark, "trips", (D1,))
        done.set()

    work = threading.Thread(target=build, daemon=True)
    with application.ledger.driver("staging/trips", "app-2 elsewhere 7077"):
        work.start()
        wait_for(lambda: application.ledger.deliveries("trips", (D1,)) != (), "the file to land", 120)
        assert not done.wait(3)
        assert not application.ledger.staged("trips", (D1,))
    work.join(120)
    assert done.is_set()
    (loaded,) = application.datasets.values()
    assert values(kit.staged(loaded), "id") == [(1,)]
