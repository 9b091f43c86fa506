"""A commit consists of JSON lines that only a line feed ends: values may contain the other line ends of Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backfill_assets.delta import opening, shadows
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.location import sync


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_a_commit_is_complete_although_statistics_of_texts_contain_other_line_ends(tmp_path: Path, mark: str) -> None:
    commit = tmp_path / opening.LOG / f"{0:020}.json"
    commit.parent.mkdir()
    add = {"path": "a.parquet", "stats": json.dumps({"maxValues": {"name": f"one{mark}two"}}, ensure_ascii=False)}
    actions = [{"commitInfo": {"release": "r_1", "manifest": "m"}}, {"add": add}, {"txn": {"appId": "r_1"}}]
    commit.write_text("\n".join(json.dumps(action, ensure_ascii=False) for action in actions), encoding="utf-8")
    # Written like `json.dumps` without spaces, as engines write commits.
    commit.write_text(commit.read_text(encoding="utf-8").replace('{"add": ', '{"add":'), encoding="utf-8")
    assert list(opening.actions(OnDisk(commit), "add")) == [add]
    assert not shadows.set_aside_torn(OnDisk(tmp_path), OnDisk(tmp_path / "aside"), sync)
    assert commit.exists()
