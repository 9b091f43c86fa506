"""What a write has committed is recognised by its mark, and its files come from the same text as the mark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backfill_assets.core.errors import PreconditionError, StorageError
from backfill_assets.delta.opening import MarkedCommit
from backfill_assets.storage.disk import OnDisk


def commit(home: Path, mark: str, *paths: str) -> MarkedCommit:
    log = home / "_delta_log"
    log.mkdir(exist_ok=True)
    lines = [{"commitInfo": {"userMetadata": mark}}, *({"add": {"path": path}} for path in paths)]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (log / f"{3:020}.json").write_text(text, encoding="utf-8")
    return MarkedCommit(OnDisk(home), 3, "ours")


def test_the_files_of_a_commit_are_told_only_with_its_mark(tmp_path: Path) -> None:
    ours = commit(tmp_path, "ours", "a", "b")
    assert [add["path"] for add in ours.read_back()] == ["a", "b"]
    assert ours.is_there()
    commit(tmp_path, "another's", "c")
    assert not ours.is_there()
    with pytest.raises(StorageError, match="another commit is there now"):
        ours.read_back()


def test_a_commit_that_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    ours = commit(tmp_path, "ours")
    ours.file.path.write_text('{"commitInfo":{', encoding="utf-8")
    with pytest.raises(PreconditionError, match="is damaged"):
        ours.read_back()
    ours.file.path.unlink()
    with pytest.raises(StorageError, match="another commit is there now"):
        ours.read_back()
