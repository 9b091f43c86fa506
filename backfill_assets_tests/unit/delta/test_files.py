from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from backfill_assets.core.errors import InvalidNameError, LayoutError, PreconditionError, StorageError
from backfill_assets.core.release import DaySwap
from backfill_assets.delta.table import PublishedTable
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.tables import content, day, manifest, only, publish, rows_of, write_shadow

SHADOW = "_shadow/u/1"


@pytest.fixture
def shadow(home: Path) -> Path:
    write_shadow(home, SHADOW, rows_of({day(0): [1], day(1): [2]}))
    return home / SHADOW


def test_paths_of_tables_lie_below_the_warehouse(tmp_path: Path) -> None:
    layout = Layout(OnDisk(tmp_path / "w"), OnDisk(tmp_path / "s"))
    assert folder_of(layout.raw_path("sales")) == tmp_path / "w" / "raw" / "sales"
    assert folder_of(layout.staging_path("sales")) == tmp_path / "w" / "staging" / "sales"
    assert folder_of(layout.published_path("sales")) == tmp_path / "w" / "published" / "sales"
    assert layout.source("a/b.csv") == OnDisk(tmp_path / "s" / "a" / "b.csv")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A", "_shadow"])
def test_an_unsafe_dataset_name_reaches_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidNameError):
        Layout(OnDisk(tmp_path), OnDisk(tmp_path)).raw_path(name)


def test_a_link_out_of_the_warehouse_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w" / "raw").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "w" / "raw" / "sales").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LayoutError, match="leads out of"):
        Layout(OnDisk(tmp_path / "w"), OnDisk(tmp_path / "s")).raw_path("sales")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", ""])
def test_a_source_file_lies_below_the_sources(tmp_path: Path, path: str) -> None:
    with pytest.raises(LayoutError):
        Layout(OnDisk(tmp_path / "w"), OnDisk(tmp_path / "s")).source(path)


def test_a_sealed_shadow_is_no_longer_a_table(table: PublishedTable, shadow: Path) -> None:
    before = table.shadow_files(SHADOW, [day(0)])
    table.seal(SHADOW)
    table.seal(SHADOW)
    with pytest.raises(TableNotFoundError):
        DeltaTable(shadow)
    assert table.shadow_files(SHADOW, [day(0)]) == before
    assert only(before[day(0)]).path.startswith(f"{SHADOW}/day=2026-01-01/")


def test_a_late_write_after_the_sealing_is_ignored(table: PublishedTable, home: Path, shadow: Path) -> None:
    before = table.shadow_files(SHADOW, [day(0)])
    table.seal(SHADOW)
    write_shadow(home, SHADOW, rows_of({day(0): [666]}))
    table.seal(SHADOW)
    assert table.shadow_files(SHADOW, [day(0)]) == before


def test_a_sealed_log_that_lost_its_first_commit_is_damaged_and_not_empty(
    table: PublishedTable, home: Path, shadow: Path
) -> None:
    write_deltalake(shadow, rows_of({day(0): [5]}), mode="append")
    table.seal(SHADOW)
    (shadow / "_sealed_log" / f"{0:020}.json").unlink()
    with pytest.raises(PreconditionError, match="expected the commits 0 to 1"):
        table.shadow_files(SHADOW, [day(0)])


def test_a_table_whose_commits_are_all_in_a_checkpoint_is_there(
    table: PublishedTable, home: Path, shadow: Path
) -> None:
    publish(table, SHADOW, [day(0), day(1)], "r_1")
    DeltaTable(home).create_checkpoint()
    for commit in (home / "_delta_log").glob("*.json"):
        commit.unlink()
    assert table.exists()
    assert table.active().keys() == {day(0), day(1)}


def test_sealing_what_was_never_written_is_fine(table: PublishedTable) -> None:
    table.seal("_shadow/u/7")


def test_a_shadow_with_gaps_in_its_log_is_refused(table: PublishedTable, home: Path, shadow: Path) -> None:
    write_shadow(home, SHADOW, rows_of({day(2): [3]}))
    (shadow / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(PreconditionError, match=r"expected the commits 0 to 1, found \[1\]"):
        table.shadow_files(SHADOW, [day(2)])


def test_files_that_the_shadow_itself_removed_are_not_listed(table: PublishedTable, home: Path, shadow: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(shadow, rows_of({day(0): [5]}), mode="overwrite", predicate="day = '2026-01-01'")
    publish(table, SHADOW, [day(0), day(1)], "r")
    assert content(home) == {day(0): [5], day(1): [2]}


def test_deleting_removes_empty_folders_and_nothing_else(table: PublishedTable, home: Path, shadow: Path) -> None:
    write_shadow(home, "_shadow/u/2", rows_of({day(0): [9]}))
    mine = [f.path for f in table.stored_files() if f.path.startswith(f"{SHADOW}/")]
    table.delete(mine)
    table.delete(mine)
    assert not shadow.exists()
    assert {f.path.split("/")[2] for f in table.stored_files()} == {"2"}


@pytest.mark.parametrize(
    "path", ["_delta_log/x.json", "_releases/r.json", "_shadow/../_delta_log/x", "../x", "/etc/x", "_shadow", "day=1/x"]
)
def test_only_files_below_the_shadow_folder_are_deleted(
    table: PublishedTable, home: Path, shadow: Path, path: str
) -> None:
    mine = only(table.shadow_files(SHADOW, [day(0)])[day(0)]).path
    with pytest.raises(PreconditionError):
        table.delete([mine, path])
    assert (home / mine).exists()


def test_a_link_is_neither_listed_nor_deleted(table: PublishedTable, home: Path, shadow: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "x.parquet").write_text("theirs")
    (home / "_shadow" / "link").symlink_to(tmp_path / "theirs")
    (shadow / "file").symlink_to(tmp_path / "theirs" / "x.parquet")
    listed = {f.path for f in table.stored_files()}
    assert not any("link" in path or path.endswith("/file") for path in listed)
    for path in ("_shadow/link/x.parquet", f"{SHADOW}/file"):
        with pytest.raises((PreconditionError, LayoutError), match=r"link|not a file|leads out"):
            table.delete([path])
    assert (tmp_path / "theirs" / "x.parquet").read_text() == "theirs"


def test_a_manifest_comes_back_as_it_was(table: PublishedTable, home: Path, shadow: Path) -> None:
    done = publish(table, SHADOW, [day(0), day(1)], "r_1")
    other = manifest("r_2", [DaySwap(day(3), (), ())], reason="Größe")
    table.store_manifest(done)
    table.store_manifest(other)
    table.store_manifest(other)
    assert table.manifests() == (done, other)
    assert [m.hash for m in table.manifests()] == [done.hash, other.hash]
    assert sorted(p.name for p in (home / "_releases").iterdir()) == ["r_1.json", "r_2.json"]


def test_a_manifest_is_never_replaced_by_another_one_but_a_damaged_one_can_be_restored(
    table: PublishedTable, home: Path
) -> None:
    mine, theirs = manifest("r_1", [DaySwap(day(3), (), ())]), manifest("r_1", [DaySwap(day(4), (), ())])
    table.store_manifest(mine)
    with pytest.raises(StorageError, match=r"r_1\.json.*another one"):
        table.store_manifest(theirs)
    assert table.manifests() == (mine,)
    (home / "_releases" / "r_1.json").write_text("{")
    table.restore_manifest(mine)
    assert table.manifests() == (mine,)


def test_a_damaged_manifest_is_named(table: PublishedTable, home: Path) -> None:
    table.store_manifest(manifest("r_1", [DaySwap(day(3), (), ())]))
    (home / "_releases" / "r_1.json").write_text("{")
    with pytest.raises(PreconditionError, match=r"r_1\.json"):
        table.manifests()


def test_files_that_left_the_table_are_known_for_a_while(table: PublishedTable, home: Path, shadow: Path) -> None:
    from datetime import timedelta

    from backfill_assets_tests.harness.clocks import START

    old = only(publish(table, SHADOW, [day(0)], "r_1").added)
    write_shadow(home, "_shadow/u/2", rows_of({day(0): [9]}))
    publish(table, "_shadow/u/2", [day(0)], "r_2")
    assert table.removed_since(START) == {old.path}
    assert table.removed_since(START + timedelta(seconds=1)) == frozenset()
