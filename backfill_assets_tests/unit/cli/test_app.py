"""The console script as it is started: from the folder of a project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DATASET = """
name: rated
partition_column: day
time_zone: UTC
start: 2026-01-01
end: 2026-01-31
key: [day, id]
source: {format: csv, path: "rated/{day}.csv", columns: {id: integer}}
columns: {day: {type: date}, id: {type: integer}}
"""
FACT = """
from rates import RATE


def fact(staging):
    return staging.selectExpr("day", f"id * {RATE} AS id")
"""


@pytest.mark.slow
def test_a_model_imports_a_module_of_the_folder_that_a_command_is_started_in(tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "rated"
    folder.mkdir(parents=True)
    (folder / "dataset.yaml").write_text(DATASET)
    (folder / "staging.sql").write_text("SELECT _lineage.delivery_day AS day, id, _lineage FROM raw")
    (folder / "fact.py").write_text(FACT)
    (tmp_path / "rates.py").write_text("RATE = 1\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
    environ |= {
        "BACKFILL_ASSETS_STATE": str(tmp_path / "state"),
        "BACKFILL_ASSETS_DATASETS": str(tmp_path / "datasets"),
    }
    command = [str(Path(sys.executable).with_name("backfill")), "status"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not loaded" not in done.stdout + done.stderr
    assert "rated" in done.stdout


def test_a_command_that_needs_neither_spark_nor_dagster_waits_for_neither_of_them() -> None:
    heavy = {"alembic", "dagster", "grpc", "pandas", "pyspark.sql.connect", "requests"}
    code = f"import sys, backfill_assets.cli.app; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
