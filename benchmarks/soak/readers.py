"""One reader of the soak's table, in a process of its own: `python -m benchmarks.soak.readers <kind> <dataset> <file>`."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from backfill_assets.application import Application
from backfill_assets.core.errors import EngineError
from backfill_assets.delta.opening import is_table, rows_of, table_at
from backfill_assets.settings import Settings
from backfill_assets.spark.session import open_session
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from benchmarks.soak.model import DayRows, Poll, View

KINDS: Final = ("deltalake", "polars", "spark")
_EVERY_SECONDS: Final = 1.0
_STATEMENT: Final = "SELECT day, count(*), min(amount), max(amount) FROM published.{name} GROUP BY day"
Rows = Iterable[tuple[dt.date, int, int, int]]


def main() -> None:
    """Poll for ever, and write each poll to the file; a reader that cannot read writes why."""
    kind, table, out = sys.argv[1], table_of(sys.argv[2], Settings.from_env(os.environ)), Path(sys.argv[3])
    looks: dict[str, Callable[[Location], View]] = {
        "deltalake": at_version,
        "polars": with_polars,
        "spark": _ViewInSpark(),
    }
    while True:
        began = time.monotonic()
        if is_table(table):
            line = json.dumps(looked(kind, looks[kind], table)) + "\n"
            with out.open("a", encoding="utf-8") as file:
                file.write(line)
        time.sleep(max(0.0, _EVERY_SECONDS - (time.monotonic() - began)))


def table_of(dataset: str, settings: Settings) -> Location:
    """The place of the published table."""
    return Layout(settings.warehouse, settings.sources).published_path(dataset)


@dataclass
class Looks:
    """What a reader has written: its polls, its errors, and how often the Spark server was away."""

    polls: list[Poll] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    away: int = 0


def looks_in(file: Path) -> Looks:
    """What a reader has written to a file; a line that a kill cut off does not count."""
    looks = Looks()
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else ():
        found = _document(line)
        if "error" in found:
            looks.errors.append(f"{found['reader']}: {found['error']}")
        elif "view" in found:
            view = {dt.date.fromisoformat(day): DayRows(*seen) for day, seen in found["view"].items()}
            looks.polls.append(Poll(found["reader"], found["first"], found["last"], view))
        elif "lost_server" in found:
            looks.away += 1
    return looks


def view_of(rows: Rows) -> View:
    """A view made of rows of day, number of rows, least and greatest delivery."""
    return {day: DayRows(count, lowest, highest) for day, count, lowest, highest in rows}


def at_version(table: Location, version: int | None = None) -> View:
    """What delta-rs and pyarrow read at a version, or at the newest; empty if there is no table yet."""
    if not is_table(table):
        return {}
    data = rows_of(table, ["day", "amount"], version)
    found = data.group_by("day").aggregate([("amount", "count"), ("amount", "min"), ("amount", "max")]).to_pylist()
    return view_of((r["day"], r["amount_count"], r["amount_min"], r["amount_max"]) for r in found)


def _document(line: str) -> Mapping[str, Any]:
    # After a kill in the middle of a line, the next reader continues behind it.
    try:
        found: Mapping[str, Any] = json.loads(line) if line.endswith("\n") else {}
    except ValueError:
        return {}
    return found


def looked(kind: str, look: Callable[[Location], View], table: Location) -> dict[str, object]:
    """One poll: what was seen and between which versions, or why nothing was."""
    try:
        first = table_at(table).version()
        view = look(table)
        last = table_at(table).version()
    except EngineError as error:
        # The server is killed on purpose; every other error of a reader breaks a promise.
        return {"reader": kind, "lost_server": str(error)[:200]} if kind == "spark" else _failed(kind, error)
    except Exception as error:  # noqa: BLE001  # any error is reported
        return _failed(kind, error)
    seen = {day.isoformat(): (rows.rows, rows.lowest, rows.highest) for day, rows in view.items()}
    return {"reader": kind, "first": first, "last": last, "view": seen}


def _failed(kind: str, error: Exception) -> dict[str, object]:
    return {"reader": kind, "error": f"{type(error).__name__}: {error}"[:300]}


def with_polars(table: Location) -> View:
    """What polars reads at the newest version."""
    amount = pl.col("amount")
    rows = pl.scan_delta(str(table), storage_options=table.storage_options)
    grouped = rows.group_by("day").agg(pl.len(), amount.min().alias("a"), amount.max().alias("b"))
    return view_of(grouped.collect().rows())


class _ViewInSpark:
    def __init__(self) -> None:
        self._views_made = False

    def __call__(self, table: Location) -> View:
        if not self._views_made:
            # Like `backfill sql`; a view outlives its server.
            Application.from_env().refresh_views()
            self._views_made = True
        with open_session(Settings.from_env(os.environ), "soak-reader") as spark:
            rows = spark.sql(_STATEMENT.format(name=table.name)).collect()
        return view_of((r[0], r[1], r[2], r[3]) for r in rows)


if __name__ == "__main__":
    main()
