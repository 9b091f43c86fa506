"""An installation whose `flights` are published without a JVM: real Delta table, real ledger, everything in one folder."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from backfill_assets.application import Application
from backfill_assets.core.release import DaySwap, Manifest, ReleaseKind
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.consistency import AUDIT_COLUMNS
from backfill_assets.settings import Settings
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.ledgers import copy_empty_ledger
from backfill_assets_tests.harness.tables import ARROW

AIRLINES = {"AA": "American Airlines Inc.", "B6": "JetBlue Airways", "UA": "United Air Lines Inc."}
SEATS, DISTANCE = 100, 500
Departure = tuple[str, int, int | None]
"""Carrier, flight number, and the delay in minutes: none for a cancelled departure."""


class Flights:
    """Publishes departures release by release, like the use cases, but with shadows written by delta-rs."""

    def __init__(self, folder: Path, spark_folder: Path | None = None) -> None:
        spark = str(spark_folder or folder)
        self.environ = {"BACKFILL_ASSETS_STATE": str(folder), "BACKFILL_ASSETS_SPARK_FOLDER": spark}
        copy_empty_ledger(folder / "ledger.db")
        self.application = Application(Settings.from_env(self.environ))
        self.dataset = self.application.dataset("flights")
        self.table = self.application.tables["flights"]
        self.home = path_of(self.application.layout.published_path("flights"))
        self._releases = 0

    def release(self, data: Mapping[dt.date, Sequence[Departure]]) -> str:
        """Replace these days in one commit; returns the release's name."""
        self._releases += 1
        name, shadow = f"r_20130401_060000_00000{self._releases}", f"_shadow/u_{self._releases}/1"
        rows = [_row(day, departure) for day, departures in data.items() for departure in departures]
        types = {**{c: declared.type for c, declared in self.dataset.columns.items()}, **AUDIT_COLUMNS}
        table = pa.table({c: pa.array([row.get(c) for row in rows], ARROW[kind]) for c, kind in types.items()})
        write_deltalake(self.home / shadow, table, partition_by=["flight_date"], mode="append")
        self.table.prepare(shadow)
        active, new = self.table.active(), self.table.shadow_files(shadow, list(data))
        swaps = tuple(DaySwap(day, active.get(day, ()), new[day]) for day in data)
        now = self.application.clock.now()
        unit = f"u_{self._releases}"
        manifest = Manifest(name, ReleaseKind.publish, "flights", unit, "ada", now, "e", "c0de", swaps)
        self.table.store_manifest(manifest)
        self.application.ledger.intend(manifest)
        version = self.table.commit(manifest, self.table.version())
        self.application.ledger.finalize(name, version, now, UnitState.published)
        self.table.seal(shadow)
        return name

    def shell(self) -> dict[str, str]:
        """The environment of a user's shell: this installation, and the virtual environment's programs first."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
        return {**clean, **self.environ, "PATH": path}


def _row(day: dt.date, departure: Departure) -> dict[str, object]:
    carrier, flight, delay = departure
    scheduled = dt.datetime.combine(day, dt.time(15), dt.UTC)
    cancelled = delay is None
    return {
        "flight_date": day,
        "carrier": carrier,
        "airline": AIRLINES[carrier],
        "flight": flight,
        "origin": "JFK",
        "dest": "BOS",
        "tail_number": f"N{flight}",
        "scheduled_departure": scheduled,
        "departed_at": None if delay is None else scheduled + dt.timedelta(minutes=delay),
        "cancelled": cancelled,
        "departure_delay": delay,
        "arrival_delay": delay,
        "air_time": None if cancelled else 60,
        "distance": DISTANCE,
        "seats": SEATS,
        "available_seat_miles": 0 if cancelled else SEATS * DISTANCE,
        "recalculated_at": scheduled,
        "unit": "u",
        "code_version": "c0de",
    }
