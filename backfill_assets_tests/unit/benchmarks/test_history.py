"""The benchmark of a long history handles a short one in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.application import Application
from backfill_assets.cli.status import Overview, overview
from benchmarks import history


@pytest.mark.slow
def test_everything_that_people_do_with_a_history_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Overview] = []

    def look(application: Application) -> Overview:
        looks.append(overview(application))
        return looks[-1]

    monkeypatch.setattr(history, "overview", look)
    seconds = history.measure_history(tmp_path / "history", 3)
    assert set(seconds) == {
        "load the definitions (with imports)",
        "publish all, nothing before",
        "publish all over what was there",
        "backfill status, a unit of all days open",
        "the same, without starting a process",
        "backfill status of that unit, day by day",
        "backfill status, no unit open",
        "roll all back",
    }
    assert all(found > 0 for found in seconds.values())
    # Everything that the command does.
    ((dataset,), (unit,)) = looks[0]["datasets"], looks[0]["units"]
    assert (dataset["dataset"], dataset["rows"], unit["ready"]) == ("history", 3, "3 of 3")
