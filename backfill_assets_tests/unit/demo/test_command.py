"""What `python -m demo` plays, with which options, and how it reports a refusal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from demo import campaign, run
from demo.__main__ import app

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Which of the two was started, and how large."""
    found: list[tuple[str, float]] = []
    monkeypatch.setattr(run, "run_demo", lambda months: found.append(("main job", months)))
    monkeypatch.setattr(campaign, "run_campaign_demo", lambda scale: found.append(("campaign", scale)))
    return found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ("main job", 12)),
        ("--months 3", ("main job", 3)),
        ("campaign", ("campaign", 0.01)),
        ("campaign --scale 1", ("campaign", 1)),
    ],
)
def test_its_arguments_say_what_is_played(
    words: str, expected: tuple[str, float], played: list[tuple[str, float]]
) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert played == [expected]


@pytest.mark.parametrize("words", ["--months 2", "--months 13", "campaign --scale 0", "--months 3 campaign", "holiday"])
def test_what_it_cannot_play_is_refused_before_anything_starts(words: str, played: list[tuple[str, float]]) -> None:
    assert CliRunner().invoke(app, words.split()).exit_code == 2
    assert played == []


@pytest.mark.parametrize(
    ("target", "arguments", "command"),
    [("demo", "--months 3", "-m demo --months 3"), ("demo-campaign", "--scale 1", "-m demo campaign --scale 1")],
)
def test_make_hands_its_arguments_on(target: str, arguments: str, command: str) -> None:
    make = ["make", "--no-print-directory", "-n", target, f"ARGS={arguments}"]
    shown = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1].endswith(f"python {command}")


@pytest.mark.slow  # a program of its own, which loads Dagster
def test_a_refusal_is_one_message_without_a_trace(tmp_path: Path) -> None:
    environ: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"},
        "BACKFILL_ASSETS_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "demo", "campaign"],
        cwd=tmp_path,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"refused: {tmp_path / 'dagster.yaml'} is missing; run the story in the project's folder"
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_the_readme_declares_the_change_that_the_demo_makes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^(backfill run flights [^`]*)```", readme, re.MULTILINE)
    assert dict(text.split("=") for text in re.findall(r"--expect (\S+)", command)) == run.HALVED
    (block,) = re.findall(r"```yaml\n(ops:\n.*?)```", readme, re.DOTALL)
    (change,) = yaml.safe_load(block)["ops"]["shadow__flights"]["config"]["expected_change"]
    assert change["metrics"] == run.HALVED
    assert f"{change['days']['start']}..{change['days']['end']}" in command
