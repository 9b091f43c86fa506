"""A second dataset, added in a folder outside of this project by following only README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from backfill_assets.spark.server import SparkServer

ROOT = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"read it back:\n\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_alone_leads_to_a_published_dataset_outside_of_the_project(
    tmp_path: Path, spark_server: SparkServer
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = _FILE.findall(readme)
    assert len(files) == 5
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (script,) = _COMMANDS.findall(readme)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    # The reader's own server would also work; a second JVM would only be slow.
    environ["BACKFILL_ASSETS_WAREHOUSE"] = str(spark_server.folder.root.parent)

    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"store_sales\W+2024-05-01\W+2024-05-01\W+3\b", done.stdout), done.stdout
    assert re.search(r"Mitte\W+20\.70", done.stdout), done.stdout
    assert re.search(r"Wedding\W+9\.00", done.stdout), done.stdout
    assert (tmp_path / ".state" / "ledger.db").exists()
