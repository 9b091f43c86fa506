"""The pages below cases/, typed by a user with a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backfill_assets_tests.dagster.reader import BLOCK, ROOT, Reader


@pytest.mark.parametrize(("case", "project"), [("margin", "margin"), ("sessions", "web"), ("events", "shop")])
def test_a_worked_case_says_what_its_commands_say(tmp_path: Path, case: str, project: str) -> None:
    shutil.copytree(ROOT / "cases", tmp_path / "cases")
    blocks = list(BLOCK.finditer((ROOT / "cases" / case / "README.md").read_text(encoding="utf-8")))
    begins = next(i for i, block in enumerate(blocks) if block["text"].startswith("backfill run"))
    edits = next(i for i, block in enumerate(blocks) if block["text"].startswith("cp ../"))
    Reader(tmp_path).walk(blocks[:begins])
    reader = Reader(tmp_path / project)
    try:
        with reader.dagster():
            reader.walk(blocks[begins:edits])
        reader.walk(blocks[edits : edits + 1])
        with reader.dagster():
            reader.walk(blocks[edits + 1 :])
    finally:
        reader.typed("backfill spark stop")


def test_three_years_of_history_are_caught_up_beside_a_live_pipeline(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "cases", tmp_path / "cases")
    blocks = [
        block
        for block in BLOCK.finditer((ROOT / "cases" / "history" / "README.md").read_text(encoding="utf-8"))
        if block["language"] != "yaml"
    ]
    begins = next(i for i, block in enumerate(blocks) if block["text"].startswith("dagster sensor"))
    Reader(tmp_path).walk(blocks[:begins])
    reader = Reader(tmp_path / "shops")
    try:
        with reader.dagster():
            reader.walk(blocks[begins:])
    finally:
        reader.typed("backfill spark stop")
