from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backfill_assets.core.errors import ModelError, SourceError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import digests_by_day
from backfill_assets.ledger.open import open_ledger
from backfill_assets.pipeline import stage as staging_module
from backfill_assets.pipeline.stage import StagedCounts, stage, vacuum_staging
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.system import SystemClock
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, DAYS, TRIPS, Kit, commits, values

LATE = {**TRIPS["source"], "late_days": 1}  # type: ignore[dict-item]


@dataclass(frozen=True)
class Staged:
    """What was staged, the resulting counts, and where."""

    kit: Kit
    loaded: LoadedDataset
    counts: Mapping[dt.date, StagedCounts]


@pytest.fixture(scope="module")
def staged(module_kit: Kit) -> Staged:
    """Two deliveries at different moments on the first day, two at the same moment on the second, none on the third."""
    kit, loaded = module_kit, module_kit.dataset()
    kit.deliver(D1, f"{D1},1,old,1,1", f"{D1},2,only,1,1", part="-z", hour=1)
    kit.deliver(D1, f"{D1},1,new,1,1", f"{D1},1,twice,1,1", part="-a", hour=2)
    kit.deliver(D2, f"{D2},1,first,1,1", part="-a")
    kit.deliver(D2, f"{D2},1,second,1,1", part="-b")
    return Staged(kit, loaded, kit.stage(loaded, D1, D2, D3))


def test_a_staged_day_names_the_files_that_hold_it(staged: Staged) -> None:
    folder = staged.kit.staging_folder(staged.loaded)
    held = digests_by_day(OnDisk(folder), "day", (D1, D2, D3))
    assert {day: (one.place, one.files) for day, one in staged.counts.items()} == {
        day: (folder.name, files) for day, files in held.items()
    }
    assert len(set(held.values())) == 3


def test_the_newest_delivery_of_a_key_wins_and_its_own_duplicates_stay(staged: Staged) -> None:
    assert staged.counts[D1] == StagedCounts(3, 0)
    assert values(staged.kit.staged(staged.loaded).where(f"day = '{D1}'"), "id", "kind", "_source_file") == [
        (1, "new", f"trips/{D1}-a.csv"),
        (1, "twice", f"trips/{D1}-a.csv"),
        (2, "only", f"trips/{D1}-z.csv"),
    ]


def test_deliveries_of_the_same_moment_are_ordered_by_name(staged: Staged) -> None:
    assert values(staged.kit.staged(staged.loaded).where(f"day = '{D2}'"), "kind") == [("second",)]


def test_staging_twice_changes_nothing_and_days_without_deliveries_are_empty(staged: Staged) -> None:
    kit, loaded, first = staged.kit, staged.loaded, staged.counts
    rows = values(kit.staged(loaded), *kit.staged(loaded).columns)
    assert first == {D1: StagedCounts(3, 0), D2: StagedCounts(1, 0), D3: StagedCounts(0, 0)}
    assert kit.stage(loaded, D1, D2, D3) == first
    assert values(kit.staged(loaded), *kit.staged(loaded).columns) == rows
    assert stage(kit.spark, loaded, kit.layout, (), ()) == {}


def test_without_deduplication_deliveries_add_up(kit: Kit, staged: Staged) -> None:
    assert staged.counts[D2] == StagedCounts(1, 0)
    for part in ("-a", "-b"):
        kit.deliver(D2, f"{D2},1,a,1,1", part=part)
    assert kit.stage(kit.dataset(deduplicate="none"), D2) == {D2: StagedCounts(2, 0)}


@pytest.fixture(scope="module")
def late(module_kit: Kit) -> Staged:
    """Rows of three days, some of them delivered later; the key is without the day."""
    kit = Kit(module_kit.spark, module_kit.root / "late")
    loaded = kit.dataset(key=["id"], source=LATE)
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.deliver(D2, f"{D1},2,late,1,1", f"{D2},1,a,1,1", f"{D3},1,early,1,1", ",1,none,1,1")
    kit.deliver(D3, f"{D1},3,too late,1,1", f"{D3},2,a,1,1")
    return Staged(kit, loaded, kit.stage(loaded, D1, D2, D3))


def test_late_rows_reach_their_day_and_rows_outside_the_window_are_counted_by_delivery_day(late: Staged) -> None:
    assert late.counts == {D1: StagedCounts(2, 0), D2: StagedCounts(1, 2), D3: StagedCounts(1, 1)}
    assert values(late.kit.staged(late.loaded), "day", "id", "_delivery_day") == [
        (D1, 1, D1),
        (D1, 2, D2),
        (D2, 1, D2),
        (D3, 2, D3),
    ]


def test_the_same_key_on_two_days_is_two_keys(late: Staged) -> None:
    assert values(late.kit.staged(late.loaded).where("id = 1"), "day") == [(D1,), (D2,)]


def test_only_the_days_asked_for_are_replaced_in_one_commit_with_one_file_per_day(kit: Kit) -> None:
    loaded = kit.dataset()
    for day in DAYS:
        kit.deliver(day, f"{day},1,old,1,1", f"{day},2,old,1,1", hour=1)
    kit.stage(loaded, *DAYS)
    folder = kit.staging_folder(loaded)
    before = commits(folder)
    for day in DAYS:
        kit.deliver(day, f"{day},1,new,1,1", part="-again", hour=2)
    kit.land(loaded, *DAYS)
    assert stage(kit.spark, loaded, kit.layout, (D1, D3), kit.in_force(loaded)) == {
        D1: StagedCounts(2, 0),
        D3: StagedCounts(2, 0),
    }
    assert commits(folder) == before + 1
    assert values(kit.staged(loaded).where("id = 1"), "day", "kind") == [
        (D1, "new"),
        (D2, "old"),
        (D3, "new"),
        (D4, "old"),
    ]
    per_day = kit.staged(loaded).selectExpr("day", "_metadata.file_name AS f").distinct().groupBy("day").count()
    assert {row["count"] for row in per_day.collect()} == {1}


def test_days_without_any_landed_file_can_be_staged(kit: Kit) -> None:
    loaded = kit.dataset()
    assert stage(kit.spark, loaded, kit.layout, (D1,), ()) == {D1: StagedCounts(0, 0)}


def test_a_staging_model_joins_references_and_does_not_see_corrupt_rows(kit: Kit) -> None:
    text = "SELECT day, id, label AS kind, amount, fee, _lineage FROM raw LEFT JOIN kinds USING (kind)"
    loaded = kit.dataset(staging=text)
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,z,1,1", f"{D1},x,a,1,1")
    assert kit.stage(loaded, D1) == {D1: StagedCounts(2, 0)}
    assert values(kit.staged(loaded), "id", "kind") == [(1, "Alpha"), (2, None)]


def test_a_model_with_other_columns_gets_a_staging_table_of_its_own(kit: Kit) -> None:
    kit.deliver(D1, f"{D1},1,a,1,1")
    loaded = kit.dataset()
    kit.stage(loaded, D1)
    text = "SELECT day, id, 'x' AS kind, CAST(amount AS decimal(9,1)) AS amount, fee, 1 AS more, _lineage FROM raw"
    changed = kit.dataset(staging=text)
    with pytest.raises(SourceError, match="nothing is staged"):
        kit.frames(changed).staging((D1,))
    kit.stage(changed, D1)
    assert kit.frames(changed).staging((D1,)).columns[5] == "more"
    assert values(kit.frames(kit.dataset()).staging((D1,)), "kind", "amount") == [("a", 1.0)]


FAULTY = [
    ("SELECT day, kind, _lineage FROM raw", r"staging\.sql: does not return the column id; found day, kind, _lineage"),
    ("SELECT id, kind, _lineage FROM raw", "does not return the column day"),
    ("SELECT day, id, kind FROM raw", "does not return the column _lineage"),
    (
        "SELECT CAST(day AS string) AS day, id, _lineage FROM raw",
        "column day: expected date, found string; cast it",
    ),
    ("SELECT day, id, 1 AS _lineage FROM raw", "column _lineage was changed"),
    ("SELECT day, id, 1 AS _delivery_day, _lineage FROM raw", "_delivery_day: names that begin with _"),
    ("SELECT day, id, CAST(kind AS int) AS k, _lineage FROM raw", r"staging\.sql: The value 'a'.*cannot be cast"),
    (
        "SELECT day, id, IF(id = 2, NULL, _lineage) AS _lineage FROM raw",
        r"staging\.sql: rows have no _lineage; pass it through",
    ),
]


def test_staging_models_with_wrong_columns_or_rows_are_refused(kit: Kit) -> None:
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,a,1,1")
    kit.land(kit.dataset(), D1)
    for text, message in FAULTY:
        changed = kit.dataset(staging=text)
        with pytest.raises(ModelError, match=message):
            stage(kit.spark, changed, kit.layout, (D1,), kit.in_force(changed))
    assert not list(path_of(kit.layout.staging_path("trips")).glob("*/_delta_log/*.json"))


def test_rows_of_other_days_are_counted_while_days_are_written(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are read a second time only if there are such rows, because every read parses the lines."""

    def read_again(*_: object) -> None:
        raise AssertionError("Spark has not said that there is none")

    monkeypatch.setattr(staging_module, "_outside_by_day", read_again)
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.deliver(D2, f"{D2},1,a,1,1")
    # Into a new table, and into an existing one.
    for day in (D1, D2):
        assert kit.stage(loaded, day)[day].rows == 1
    kit.deliver(D3, f"{D1},1,a,1,1")
    with pytest.raises(AssertionError):
        kit.stage(loaded, D3)


def test_batching_does_not_matter(kit: Kit, tmp_path: Path) -> None:
    fact = """
        SELECT day, id, kind, amount + COALESCE(LAG(amount) OVER (PARTITION BY id ORDER BY day), 0) AS amount, fee
        FROM staging"""
    whole = Kit(kit.spark, tmp_path / "whole")
    parts = Kit(kit.spark, tmp_path / "parts")
    prints = []
    for one in (whole, parts):
        loaded = one.dataset(fact=fact, source=LATE, lookback_days=1)
        for i, day in enumerate(DAYS):
            one.deliver(day, f"{day},1,a,{i + 1},0.5", f"{day},2,b,{i}.5,0.25", f"{D1},7,late,{i},1", hour=i)
            one.deliver(day, f"{day},1,again,{i + 10},0.5", part="-again", hour=23 - i)
        for batch in [DAYS] if one is whole else [(D3,), (D1,), (D4,), (D2,)]:
            one.build(loaded, *batch)
        measured = one.measure(loaded, *DAYS)
        prints.append([measured[day].shadow for day in DAYS])
    assert prints[0] == prints[1]
    assert len({side.fingerprint for side in prints[0]}) == 4
    assert [side.rows for side in prints[0]] == [3, 2, 2, 2]


def test_the_sweep_deletes_old_files_of_staging_and_keeps_newer_ones_and_raw(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.stage(loaded, D1)
    opened: list[str] = []

    @contextmanager
    def session() -> Iterator[SparkSession]:
        opened.append("once")
        yield kit.spark

    ledger = open_ledger(f"sqlite:///{kit.root / 'ledger.db'}", SystemClock())
    assert vacuum_staging(session, loaded, kit.layout, ledger) == 0
    assert opened == []
    (file,) = kit.staging_folder(loaded).glob("*/*.parquet")
    (raw,) = path_of(kit.layout.raw_path(loaded.name)).glob("*/*.parquet")
    copies = {"old.parquet": file, "new.parquet": file, "raw.parquet": raw}
    left = {name: Path(shutil.copy(path, path.with_name(name))) for name, path in copies.items()}
    for path in (left["old.parquet"], left["raw.parquet"], *file.parent.glob(".*.crc")):
        os.utime(path, (1, 1))
    assert vacuum_staging(session, loaded, kit.layout, ledger) == 1
    ledger.close()
    assert [name for name, path in left.items() if path.exists()] == ["new.parquet", "raw.parquet"]
    assert values(kit.staged(loaded), "id") == [(1,)]
