"""A small benchmark: it measures what it says, on an installation of its own that it leaves clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.__main__ import main
from benchmarks.stages import DAEMON, EVENTS, STARTS, WORK

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--scale", "0.01", "--days", "4", "--chunk", "2", "--sample", "2")


def test_a_small_benchmark_accounts_for_all_of_its_time_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(psutil.pids())
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *SMALL, "--json", "--folder", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "BACKFILL_ASSETS_SPARK_MEMORY": "1g"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    pipeline, by_the_day = found["measured"]["pipeline"], found["measured"]["by_the_day"]
    assert (pipeline["days"], pipeline["runs"], by_the_day["runs"]) == (4, 2, 2)
    assert {*WORK, EVENTS, STARTS, DAEMON} <= {stage["stage"] for stage in pipeline["stages"]}
    # One run after the other: the stages are all of the time, and no second is counted twice.
    assert sum(stage["wall"] for stage in pipeline["stages"]) == pytest.approx(pipeline["wall"], rel=0.01)
    assert 0 < sum(stage["cpu"]["spark"] for stage in pipeline["stages"]) <= pipeline["cpu"]["spark"] * 1.01
    assert found["measured"]["rows"] > 0
    for release in (found["measured"]["first_release"], found["measured"]["release"]):
        assert (release["days"], release["bytes_copied"]) == (4, 0)
    assert found["measured"]["release"]["files_swapped"] == 8
    derived = found["derived"]
    # The checks have a time of their own, although the step of the shadow makes them.
    assert derived["validation_share"] > 0.05
    extrapolated = derived["run_per_day_extrapolated_seconds"]
    assert derived["times_faster_than_a_run_per_day"] == pytest.approx(extrapolated / pipeline["wall"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sources_0.01", "tpch_0.01"]
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and str(tmp_path) in str(p.info)]


@pytest.mark.parametrize("wrong", [("--days", "0"), ("--days", "9999"), ("--sample", "1")])
def test_a_benchmark_that_makes_no_sense_is_refused(
    wrong: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *wrong])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert "must lie in" in capsys.readouterr().err
