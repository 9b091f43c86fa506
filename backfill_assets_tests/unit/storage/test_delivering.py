"""Files that are written into the sources folder: complete or not at all, and leftovers go when their writer is dead."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets.core.errors import SourceError, StorageError
from backfill_assets.storage.delivering import delivering

AT = dt.datetime(2024, 3, 1, 12, 30, 0, 250_000, tzinfo=dt.UTC)


def differ(_: Path, __: Path) -> bool:
    return False


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_complete_with_the_moment_of_its_source(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "2024-03-01.parquet"
    with delivering(file, AT, differ) as part:
        part.write_text("rows", encoding="utf-8")
        assert not file.exists()
        assert part.name.startswith(".2024-03-01.parquet~")
    assert (file.read_text(encoding="utf-8"), names(file.parent)) == ("rows", [file.name])
    assert file.stat().st_mtime == AT.timestamp()


def test_a_file_stays_if_nothing_changed_or_the_writing_failed(tmp_path: Path) -> None:
    file = tmp_path / "day"
    file.write_text("before", encoding="utf-8")
    with delivering(file, AT, lambda old, new: old.read_text() == "before" and new.read_text() == "same") as part:
        part.write_text("same", encoding="utf-8")
    with pytest.raises(SourceError, match="no connection"):
        _fail(file, SourceError("no connection"))
    with pytest.raises(StorageError, match=r"day cannot be written \(disk quota exceeded\)"):
        _fail(file, OSError(122, "disk quota exceeded"))
    assert (file.read_text(encoding="utf-8"), names(tmp_path)) == ("before", ["day"])


def _fail(file: Path, error: Exception) -> None:
    with delivering(file, AT, differ) as part:
        part.write_text("half", encoding="utf-8")
        raise error


def test_leftovers_of_dead_writers_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    here = socket.gethostname()[:32]
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = {
        f".a~{here}~{dead.pid}.7.part": False,
        f".b~{here}~{os.getpid()}.7.part": True,
        ".c~elsewhere~1.7.part": True,
        f".c~{here}~{10**20}.7.part": True,
        f".c~{here}~\u00b2.7.part": True,
        ".d~elsewhere~1.7.part": False,
        ".e.part": True,
        "f~elsewhere~1.7": True,
    }
    for name in left:
        (tmp_path / name).touch()
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp()
    os.utime(tmp_path / ".d~elsewhere~1.7.part", (long_ago, long_ago))
    with delivering(tmp_path / "day", AT, differ) as part:
        part.touch()
    assert names(tmp_path) == sorted(["day", *(name for name, stays in left.items() if stays)])
