"""What a soak's readers write, and what can be read back after some were killed."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path

from deltalake import write_deltalake

from backfill_assets.dataset.load import load_folder
from backfill_assets.storage.disk import OnDisk
from backfill_assets_tests.harness.tables import day, rows_of
from benchmarks.installation import ROOT
from benchmarks.soak.model import DayRows, Poll
from benchmarks.soak.readers import Looks, at_version, looked, looks_in, with_polars

DAY = dt.date(2024, 1, 1)
LINE = json.dumps({"reader": "polars", "first": 3, "last": 4, "view": {"2024-01-01": [10, 1, 1]}})


def test_the_dataset_of_the_soak_loads(tmp_path: Path) -> None:
    copied = shutil.copytree(ROOT / "benchmarks" / "soak" / "dataset", tmp_path / "datasets" / "takings").parent
    catalog = load_folder(copied)
    assert (list(catalog.datasets), list(catalog.problems)) == (["takings"], [])


def test_the_reads_of_a_reader_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "polls.jsonl"
    file.write_text(f"{LINE}\n" * 2, encoding="utf-8")
    assert looks_in(file) == Looks([Poll("polars", 3, 4, {DAY: DayRows(10, 1, 1)})] * 2)
    assert looks_in(tmp_path / "none.jsonl") == Looks()


def test_a_line_that_a_kill_cut_off_is_neither_a_read_nor_an_error(tmp_path: Path) -> None:
    file = tmp_path / "polls.jsonl"
    file.write_text(f"{LINE}\n{LINE[:20]}{LINE}\n{LINE[:30]}", encoding="utf-8")
    looks = looks_in(file)
    assert (len(looks.polls), looks.errors) == (1, [])


def test_an_error_of_a_reader_is_reported_but_not_a_killed_server(tmp_path: Path) -> None:
    file = tmp_path / "polls.jsonl"
    lines = ({"reader": "spark", "lost_server": "gone"}, {"reader": "polars", "error": "OSError: no such file"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert looks_in(file) == Looks(errors=["polars: OSError: no such file"], away=1)


def test_readers_agree_and_say_between_which_versions_they_looked(tmp_path: Path) -> None:
    table = OnDisk(tmp_path / "takings")
    assert at_version(table) == {}
    for number in (1, 2):
        write_deltalake(str(table), rows_of({day(number): [number, number]}), mode="append", partition_by=["day"])
    both = {day(1): DayRows(2, 1, 1), day(2): DayRows(2, 2, 2)}
    assert at_version(table) == with_polars(table) == both
    assert at_version(table, 0) == {day(1): DayRows(2, 1, 1)}
    seen = looked("polars", with_polars, table)
    assert (seen["first"], seen["last"]) == (1, 1)


def test_what_a_reader_cannot_read_is_written_down(tmp_path: Path) -> None:
    folder = tmp_path / "takings"
    write_deltalake(folder, rows_of({day(1): [1]}), partition_by=["day"])
    for file in folder.rglob("*.parquet"):
        file.unlink()
    assert "No such file" in str(looked("polars", with_polars, OnDisk(folder))["error"])
    shutil.rmtree(folder)
    assert "TableNotFound" in str(looked("polars", with_polars, OnDisk(folder))["error"])
