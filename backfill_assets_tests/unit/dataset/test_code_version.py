"""The code version moves exactly when code or description do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backfill_assets.dataset.loaded import code_version
from backfill_assets_tests.harness.dataset_folders import loaded, write_dataset


def test_it_is_sixteen_hex_digits_and_the_same_for_the_same_folder_elsewhere(tmp_path: Path) -> None:
    one, other = (loaded(write_dataset(tmp_path / name)).code_version for name in "ab")
    assert one == other
    assert re.fullmatch("[0-9a-f]{16}", one)


@pytest.mark.parametrize("name", ["dataset.yaml", "staging.sql", "fact.sql"])
def test_line_ends_do_not_count_and_anything_else_does(tmp_path: Path, name: str) -> None:
    folder = write_dataset(tmp_path)
    before = loaded(folder).code_version
    file = folder / name
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert loaded(folder).code_version == before
    file.write_bytes(file.read_bytes() + b" \n")
    assert loaded(folder).code_version != before


def test_whether_live_runs_build_it_does_not_count(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    before, file = loaded(folder).code_version, folder / "dataset.yaml"
    text = file.read_text(encoding="utf-8")
    for line in ("state: draft", "state: live # since May"):
        file.write_text(f"{text}{line}\n", encoding="utf-8")
        assert loaded(folder).code_version == before
    file.write_text(text.replace("partition_column", "state: draft\npartition_column"), encoding="utf-8")
    assert (loaded(folder).code_version, loaded(folder).dataset.is_draft) == (before, True)


def test_files_that_are_no_code_do_not_count(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    before = loaded(folder).code_version
    (folder / "README.md").write_text("hello")
    (folder / "cases" / "one").mkdir(parents=True)
    assert loaded(folder).code_version == before


def test_another_version_of_the_project_is_other_code() -> None:
    files = {"dataset.yaml": b"a", "fact.sql": b"b"}
    assert code_version(files, "1.0") != code_version(files, "1.1")


def test_moving_text_from_one_file_to_another_is_other_code() -> None:
    assert code_version({"a": b"xy", "b": b""}, "1") != code_version({"a": b"x", "b": b"y"}, "1")
