"""A project of one's own, made and used by following only README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from backfill_assets.spark.server import SparkServer

ROOT = Path(__file__).resolve().parents[2]
_COMMANDS = re.compile(r"## Describe a table\n.*?```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_alone_leads_to_a_published_dataset_outside_of_the_project(
    tmp_path: Path, spark_server: SparkServer
) -> None:
    (script,) = _COMMANDS.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    # The reader's own server would also work; a second JVM would only be slow.
    environ["BACKFILL_ASSETS_SPARK_FOLDER"] = str(spark_server.folder.root.parent)

    def typed(commands: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-euc", commands]
        return subprocess.run(words, cwd=tmp_path, env=environ | more, capture_output=True, text=True, check=False)

    done = typed(script)

    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"store_sales\W+2024-05-01\W+2024-05-01\W+3\b", done.stdout), done.stdout
    assert re.search(r"Mitte\W+20\.70", done.stdout), done.stdout
    assert re.search(r"Wedding\W+9\.00", done.stdout), done.stdout
    assert (tmp_path / "shop" / ".state" / "ledger.db").exists()
    # Dagster reads the state that .env names, and the command would read this one.
    for command in ("dagster definitions validate -f definitions.py", "backfill status"):
        refused = typed(f"cd shop && {command}", BACKFILL_ASSETS_STATE="/srv/other")
        assert refused.returncode == 1
        assert "BACKFILL_ASSETS_STATE is '/srv/other' in the environment and" in refused.stdout + refused.stderr
