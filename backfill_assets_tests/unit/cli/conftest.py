"""Commands are called in an empty folder, with state and datasets below it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets_tests.harness.console import Run

DAY = dt.date(2024, 1, 1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The console script in an empty folder, with state and datasets below it."""
    monkeypatch.chdir(tmp_path)
    for name in ("LEDGER_URL", "WAREHOUSE", "SOURCES"):
        monkeypatch.delenv(f"BACKFILL_ASSETS_{name}", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / ".state"))
    monkeypatch.setenv("BACKFILL_ASSETS_DATASETS", str(tmp_path / "datasets"))
    (tmp_path / "datasets").mkdir()

    def run(*words: str) -> Result:
        done = CliRunner().invoke(app, list(words))
        if isinstance(done.exception, Exception):
            raise done.exception
        return done

    return run


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake" / "orders"
    rows = pa.table({"day": [DAY, DAY], "order_id": [1, 2], "amount": [1.5, 2.5], "city": ["Ulm", None]})
    write_deltalake(folder, rows, partition_by=["day"], description="Orders by day.")
    DeltaTable(folder).alter.add_constraint({"Is Positive": "amount > 0"})
    return folder
