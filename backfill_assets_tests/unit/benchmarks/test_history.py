"""The benchmark of a long history handles a short one just so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import measure_history


@pytest.mark.slow
def test_everything_that_people_do_with_a_history_is_measured(tmp_path: Path) -> None:
    seconds = measure_history(tmp_path / "history", 3)
    assert set(seconds) == {
        "load the definitions (with imports)",
        "publish all, nothing before",
        "publish all over what was there",
        "backfill status (a process)",
        "backfill status (the work alone)",
        "roll all back",
    }
    assert all(found > 0 for found in seconds.values())
