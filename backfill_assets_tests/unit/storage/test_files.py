"""Which files of a folder are listed."""

from __future__ import annotations

from pathlib import Path

from backfill_assets.storage.disk import OnDisk


def test_links_to_files_are_listed_where_they_are_asked_for_and_no_link_is_followed(tmp_path: Path) -> None:
    outside, home = tmp_path / "outside", tmp_path / "home"
    for file in (outside / "x.parquet", home / "inner" / "a.parquet", home / "left_out" / "b.parquet"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (home / "inner" / "to_a_file").symlink_to(outside / "x.parquet")
    (home / "inner" / "to_nothing").symlink_to(outside / "gone.parquet")
    (home / "inner" / "to_a_folder").symlink_to(outside)
    assert {file.path for file in OnDisk(home).files(OnDisk(home), without="left_out")} == {"inner/a.parquet"}
    listed = {file.path for file in OnDisk(home).files(OnDisk(home), without="left_out", links=True)}
    assert listed == {"inner/a.parquet", "inner/to_a_file", "inner/to_nothing"}
