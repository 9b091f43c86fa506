"""The benchmark's meters, and the figures that follow from what they measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from backfill_assets.orchestration.daemon import BACKFILL_INTERVAL_SECONDS, STOCK_INTERVAL_SECONDS
from backfill_assets.storage.disk import OnDisk
from benchmarks.bench import machine
from benchmarks.files import Bytes, bytes_of, copied, data_files
from benchmarks.release import ReleaseTimes
from benchmarks.results import Growth, Pass, Results, StageCost, pass_of
from benchmarks.show import show
from benchmarks.stages import Span
from benchmarks.usage import Cpu, CpuMeter

BURN = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = 0\\nwhile x < 4_000_000: x += 1'])"


def a_pass(name: str, wall: float, days: int = 10, per_run: float = 0.0, **stages: float) -> Pass:
    costs = tuple(StageCost(stage, seconds, Cpu(1, 2)) for stage, seconds in stages.items())
    return Pass(name, days, days if per_run else 2, per_run, wall, Cpu(3, 4), costs)


def found() -> Results:
    release = ReleaseTimes(10, 20, 0.1, 0.2, 0)
    pipeline = a_pass("pipeline", 30, raw=4, staging=4, shadow=2, checks=5, daemon=5, **{"events stored": 10})
    return Results(
        scale=1,
        rows=100,
        machine=machine(),
        floors=(a_pass("before", 12), a_pass("after", 8)),
        pipeline=pipeline,
        correction=pipeline,
        by_the_day=a_pass("by the day", 70, days=3, per_run=20),
        first_release=release,
        release=release,
        written={},
        growth=(),
    )


def test_what_a_process_used_is_not_lost_when_it_ends() -> None:
    me = psutil.Process()
    meter = CpuMeter([me], me)
    begin = time.time()
    with meter.running():
        subprocess.run([sys.executable, "-c", BURN], check=True)
    used = meter.between(begin, time.time())
    assert min(used.spark, used.workers) > 0.05


def test_nothing_was_used_outside_of_the_samples() -> None:
    me = psutil.Process()
    with CpuMeter([me], me).running() as meter:
        pass
    assert meter.between(0, 1) == Cpu()


def test_a_renamed_or_copied_data_file_counts_as_copied_and_a_kept_one_does_not(tmp_path: Path) -> None:
    one, two, log = (
        tmp_path / "d=1" / "a.parquet",
        tmp_path / "d=2" / "b.parquet",
        tmp_path / "_delta_log" / "c.parquet",
    )
    for file in (one, two, log):
        file.parent.mkdir()
        file.write_bytes(b"12345")
    before = data_files(OnDisk(tmp_path))
    assert copied(before, data_files(OnDisk(tmp_path))) == 0
    shutil.copy(one, one.with_name("copy.parquet"))
    two.rename(two.with_name("moved.parquet"))
    shutil.copy(log, log.with_name("d.parquet"))
    assert copied(before, data_files(OnDisk(tmp_path))) == 10
    assert bytes_of(tmp_path) == Bytes(data=15, logs=10, files=3)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert bytes_of(tmp_path / "nothing") == Bytes()


def test_spans_are_summed_by_stage_and_the_distance_of_runs_is_a_mean() -> None:
    me = psutil.Process()
    with CpuMeter([me], me).running() as meter:
        pass
    spans = [Span("raw", 1, 3), Span("checks", 3, 4), Span("raw", 6, 7)]
    found = pass_of("pipeline", 5, [4, 7, 12], spans, meter)
    assert [(stage.stage, stage.wall) for stage in found.stages] == [("raw", 3), ("checks", 1)]
    assert (found.runs, found.per_run, found.wall) == (3, 4, 6)
    assert pass_of("floor", 5, [7], spans, meter).per_run == 0


def test_the_figures_that_follow_are_those_of_the_table() -> None:
    assert found().derived() == pytest.approx(
        {
            "floor_seconds": 10,
            "times_floor": 3,
            "seconds_per_day": 3,
            "run_per_day_extrapolated_seconds": 200,
            "run_per_day_sampled": 2,
            "times_faster_than_a_run_per_day": 200 / 30,
            "validation_of_build": 0.5,
            "correction_validation_of_build": 0.5,
            "validation_share": 5 / 30,
            "orchestration_share": 0.5,
        }
    )


def test_the_table_says_on_how_many_runs_the_extrapolation_rests(capsys: pytest.CaptureFixture[str]) -> None:
    show(found())
    assert "a run per day (extrapolated from 2 of 10 days)" in capsys.readouterr().out


def test_growth_shows_every_figure_of_each_size_smallest_first(capsys: pytest.CaptureFixture[str]) -> None:
    small = a_pass("small", 10, days=5, raw=1, staging=1, shadow=2, checks=1, daemon=5)
    grown = Growth(small, ReleaseTimes(5, 10, 0.01, 0.02, 7), {"raw": Bytes(2_000_000, 500_000, 5)})
    show(replace(found(), growth=(grown,)))
    lines = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines()]
    table = {line[1]: line[2:4] for line in lines if len(line) == 5}
    assert table["ms per day"] == ["2000", "3000"]
    assert table["share of orchestration"] == ["50%", "50%"]
    assert table["checks in parts of raw, staging, shadow"] == ["25%", "50%"]
    assert table["written: data, logs, MB"] == ["2.0, 0.5", "0.0, 0.0"]
    assert table["bytes copied by publish"] == ["7", "0"]
    assert table["rollback, s"] == ["0.01", "0.10"]


def test_the_table_says_how_often_its_daemon_looks_for_backfills_and_so_does_the_readme(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(found())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"daemon looks for backfills every {BACKFILL_INTERVAL_SECONDS} s ({STOCK_INTERVAL_SECONDS} s in" in shown
    readme = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
    assert f"looks for launched backfills every {STOCK_INTERVAL_SECONDS} s" in readme
    assert f"every {BACKFILL_INTERVAL_SECONDS} s instead" in readme
