from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Project = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Writes modules by path below a folder where Python finds modules; returns the folder."""
    home = tmp_path / "project"
    home.mkdir()
    monkeypatch.syspath_prepend(str(home))

    def write(files: Mapping[str, str]) -> Path:
        for path, text in files.items():
            file = home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return home

    return write
