"""A project of a user who has the package installed, for tests that use only the documented commands.

It imports nothing of the package, so the same tests can run against an older one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

D1, D2, D3, D4 = (f"2026-01-0{number}" for number in range(1, 5))


class Shop:
    """A project of a user who has this package installed, and its sources."""

    def __init__(self, root: Path, spark_folder: Path) -> None:
        self.root = root
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        self.environ = environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "BACKFILL_ASSETS_DATASETS": str(root / "datasets"),
            "BACKFILL_ASSETS_SOURCES": str(root / "sources"),
            "BACKFILL_ASSETS_CHUNK": "all",
            # One server for all: a second JVM would only be slow.
            "BACKFILL_ASSETS_SPARK_FOLDER": str(spark_folder),
            "BACKFILL_ASSETS_WAREHOUSE": str(root / "warehouse"),
        }
        (root / "sources").mkdir()
        self.write(
            "definitions.py", 'from backfill_assets import build_definitions\n\ndefs = build_definitions("datasets")\n'
        )

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def describe(
        self, name: str, source: Mapping[str, object], models: tuple[str, str] = ("", ""), **more: object
    ) -> None:
        """Describe a dataset of `day`, `id` and what `more` says; by default its models pass all columns through."""
        columns = {"day": {"type": "date"}, "id": {"type": "integer"}, **more.pop("columns", {})}  # type: ignore[dict-item]
        said = {
            "name": name, "partition_column": "day", "time_zone": "UTC", "start": D1, "end": "2026-01-31", "key": ["day", "id"],
            "source": {"format": "csv", "path": f"{name}/{{day}}.csv"} | dict(source), "columns": columns, **more,
        }  # fmt: skip
        self.write(f"datasets/{name}/dataset.yaml", yaml.safe_dump(said, sort_keys=False))
        staging = f"SELECT _lineage.delivery_day AS day, {', '.join(list(columns)[1:])}, _lineage FROM raw"
        self.write(f"datasets/{name}/staging.sql", models[0] or staging)
        self.write(f"datasets/{name}/fact.sql", models[1] or f"SELECT {', '.join(columns)} FROM staging")

    def deliver(self, name: str, day: str, *lines: str) -> Path:
        """Deliver a file of these lines."""
        return self.write(f"sources/{name}/{day}.csv", "".join(f"{line}\n" for line in lines))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder."""
        nothing = subprocess.DEVNULL
        return subprocess.run(
            command, cwd=self.root, env=self.environ, stdin=nothing, capture_output=True, text=True, check=False
        )

    @contextmanager
    def observed(self, **variables: str) -> Iterator[None]:
        """Set more variables for commands within the block."""
        before, self.environ = self.environ, self.environ | variables
        try:
            yield
        finally:
            self.environ = before

    def launch(self, name: str, day: str, last: str = "", config: object = None) -> subprocess.CompletedProcess[str]:
        """Launch a day, or a range in one run, as README shows it for CI."""
        days = ["--partition-range", f"{day}...{last}"] if last else ["--partition", day]
        given = ["--config-json", json.dumps(config)] if config else []
        return self.run(
            "dagster", "asset", "materialize", "-f", "definitions.py", "--select", f"group:{name}", *days, *given
        )

    def build(self, name: str, day: str) -> subprocess.CompletedProcess[str]:
        """Build a day without publishing it; its unit stays open."""
        return self.run(*self.materialize(day, *(f"{name}/{layer}" for layer in ("raw", "staging", "shadow"))))

    @staticmethod
    def materialize(day: str, *assets: str) -> tuple[str, ...]:
        """The command that launches these assets for a day."""
        return (
            "dagster", "asset", "materialize", "-f", "definitions.py", "--select", ",".join(assets), "--partition", day,
        )  # fmt: skip

    def late(self) -> int:
        """How many runs the sensor `late_deliveries` would launch."""
        done = self.run("dagster", "sensor", "preview", "late_deliveries", "-f", "definitions.py")
        found = re.search(r"run requests for (\d+) run|Sensor returned false", done.stdout)
        assert found is not None, done.stdout + done.stderr
        return int(found[1] or 0)

    def sees(self, name: str, columns: str = "day, id") -> Sequence[Sequence[str]]:
        """What readers see, as texts; nothing before the first release."""
        found = self.run("backfill", "sql", f"SELECT {columns} FROM published.{name} ORDER BY ALL")
        if found.returncode:
            assert "TABLE_OR_VIEW_NOT_FOUND" in found.stderr, found.stderr
            return []
        rows = [line.strip("│ ") for line in found.stdout.splitlines() if line.startswith("│")]
        return [[cell.strip() for cell in row.split("│")] for row in rows]


def refuses(done: subprocess.CompletedProcess[str], word: str) -> None:
    """Assert that a command failed with this message."""
    said = done.stdout + done.stderr
    assert done.returncode != 0, said[-3000:]
    assert word in said, said[-5000:]
