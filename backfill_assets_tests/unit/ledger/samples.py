"""Values and clocks that the tests of the ledger share."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from backfill_assets.core.days import day_range
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.evidence import Basis, DayEvidence, Severity, Verdict
from backfill_assets.core.measured import DayMeasurement, Side, SourceState
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind
from backfill_assets.core.unit import Hold, LateData, Launch, ReleaseMode, Unit

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
LEASE = dt.timedelta(minutes=1)
SECOND = dt.timedelta(seconds=1)


def march(first: int, last: int | None = None) -> tuple[dt.date, ...]:
    return day_range(dt.date(2013, 3, first), dt.date(2013, 3, last or first))


def a_launch(
    days: tuple[dt.date, ...],
    opened_by: str = "b_1",
    *,
    live: bool = False,
    named: str | None = None,
    late_data: LateData = LateData.hold,
) -> Launch:
    return Launch({"flights": frozenset(days)}, opened_by, named, live, late_data)


def a_unit(days: tuple[dt.date, ...], opened_by: str = "b_1", **more: object) -> Unit:
    values: dict[str, object] = {
        "id": f"u_{opened_by}",
        "opened_by": opened_by,
        "opened_at": NOON,
        "by": "ada",
        "targets": {"flights": days},
        "mode": ReleaseMode.auto,
    }
    return Unit(**{**values, **more})  # type: ignore[arg-type]


def a_delivery(day: dt.date, path: str = "flights.csv", fingerprint: str = "f" * 64) -> Delivery:
    return Delivery("flights", day, path, fingerprint, 10, NOON, NOON, 3, 1)


def a_hold(day: dt.date, reason: str = "rolled back") -> Hold:
    return Hold(("flights", day), reason, "ada", NOON)


def a_file(day: dt.date, folder: str = "_shadow/u_b_1/1") -> DataFile:
    return DataFile(f"{folder}/day={day}/part-0.parquet", 100, day, 1_700_000_000_000, '{"numRecords":3}')


def some_evidence(unit: str, attempt: int, day: dt.date, code: str = "c") -> DayEvidence:
    side = Side({"row_count": Decimal(3), "delay": None}, {"duplicate_keys": 0}, "ab")
    return DayEvidence(
        unit=unit,
        attempt=attempt,
        dataset="flights",
        day=day,
        basis=Basis("i", code, "k", "p"),
        shadow_files=(a_file(day),),
        measured=DayMeasurement(day, side, side, side, SourceState(1, 3, 0, 0, NOON)),
        verdicts=(Verdict("unique_key", day, True, Severity.error, True, "none", "none"),),
        recorded_at=NOON,
    )


def a_manifest(release: str, days: tuple[dt.date, ...], unit: str = "u_b_1", **more: object) -> Manifest:
    values: dict[str, object] = {
        "release": release,
        "kind": ReleaseKind.publish,
        "dataset": "flights",
        "unit": unit,
        "by": "ada",
        "created_at": NOON,
        "evidence": "e",
        "code_version": "c",
        "days": tuple(DaySwap(day, (), (a_file(day),), "h") for day in days),
    }
    return Manifest(**{**values, **more})  # type: ignore[arg-type]
