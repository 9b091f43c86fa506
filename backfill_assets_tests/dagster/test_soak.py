"""A soak where nothing lies in a folder of one host: files and tables on a store, Spark on a cluster, the rest on Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from backfill_assets_tests.dagster.lab import ROOT
from backfill_assets_tests.dagster.on_postgres import CONFIG, LEDGER, documented_urls
from backfill_assets_tests.harness.objects import object_store
from backfill_assets_tests.observed import Observed

MINUTES: Final = float(os.environ.get("BACKFILL_ASSETS_TEST_SOAK", "20"))


@pytest.mark.faults
@pytest.mark.timeout(60 * MINUTES + 2400)
def test_nothing_is_lost_and_nothing_is_mixed_on_store_cluster_and_postgres(observed: Observed, tmp_path: Path) -> None:
    with object_store(tmp_path / "objects") as store, documented_urls() as urls:
        environ = {**os.environ, **store.environ, **urls}
        # `make test` sets spark.testing there, with which a worker asks for a checkout of Spark.
        environ.pop("JAVA_TOOL_OPTIONS", None)
        words = [
            sys.executable, "-m", "benchmarks.soak", "--minutes", str(MINUTES), "--seed", "7",
            "--folder", str(tmp_path / "soak"), "--warehouse", f"{store.url}/ware/house", "--sources", f"{store.url}/delivered",
            "--ledger", urls[LEDGER], "--dagster", str(CONFIG), "--workers", "2",
        ]  # fmt: skip
        observed.injected(
            f"{MINUTES:g} minutes of kill -9: run workers, Spark's server and executors, commands, daemon, readers"
        )
        with (
            (tmp_path / "said").open("w+") as said,
            subprocess.Popen(words, cwd=ROOT, env=environ, stdout=said, stderr=said) as soak,
        ):
            try:
                soak.wait()
            finally:
                # It takes its installation down with it.
                soak.terminate()
    lines = (tmp_path / "said").read_text().splitlines()
    assert soak.returncode == 0, "\n".join(lines[-300:])
    observed.found(*(line for line in lines if "lost rows" in line or "kept" in line))
