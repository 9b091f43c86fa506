"""Figures of the published table per day, read back without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from backfill_assets.delta.opening import is_table, rows_of
from backfill_assets.storage.location import Location


@dataclass(frozen=True)
class Figures:
    """One published day: departures, and available seat miles."""

    departures: int
    seat_miles: int


def published_figures(path: Location, days: Collection[dt.date]) -> Mapping[dt.date, Figures]:
    """Count the published departures and seat miles of some days; days without rows are left out."""
    if not is_table(path):
        return {}
    data = rows_of(path, ["flight_date", "available_seat_miles"])
    wanted = data.filter(pc.is_in(data["flight_date"], value_set=pa.array(sorted(days), type=pa.date32())))
    sums = wanted.group_by("flight_date").aggregate([("flight_date", "count"), ("available_seat_miles", "sum")])
    return {
        row["flight_date"]: Figures(row["flight_date_count"], row["available_seat_miles_sum"] or 0)
        for row in sums.to_pylist()
    }
