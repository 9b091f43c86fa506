"""A golden source on the complete pipeline of a batch: verdicts, rows behind them, and what makes them stale."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import SourceError
from backfill_assets.core.evidence import DayEvidence, Verdict
from backfill_assets.core.measured import GoldenCounts
from backfill_assets.core.unit import Unit
from backfill_assets.evidence.readiness import Blocker
from backfill_assets_tests.harness import without_dagster
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, Kit

DAYS = (D1, D2, D3)
BOOKED = {
    "file": {"format": "csv", "path": "golden/booked.csv", "columns": {"day": "date", "fee": "decimal(18,2)"}},
    "ours": "SELECT day, sum(fee) AS fee FROM trips GROUP BY day",
    "key": ["day"],
    "columns": {"fee": {"tolerance": 0.01}},
}


def book(kit: Kit, *rows: str) -> None:
    kit.put("golden/booked.csv", "\n".join(["day,fee", *rows]) + "\n")


def opened(kit: Kit, golden: Mapping[str, object]) -> tuple[Application, Unit]:
    kit.dataset(golden={"booked": golden})
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,b,10,2.00")
    kit.deliver(D2, f"{D2},1,a,10,5.00")
    application = Application(kit.settings)
    return application, without_dagster.opened(application, {"trips": DAYS})


def checked(kit: Kit, application: Application, unit: Unit) -> dict[dt.date, DayEvidence]:
    without_dagster.build(application, kit.spark, unit)
    return without_dagster.judged(application, unit, "trips")


def verdict(evidence: DayEvidence) -> Verdict:
    return next(v for v in evidence.verdicts if v.check == "golden_booked")


def test_a_day_that_a_golden_source_contradicts_is_refused_with_the_rows_behind_it(kit: Kit) -> None:
    application, unit = opened(kit, BOOKED)
    book(kit, f"{D1},3.01", f"{D2},6.00")
    found = checked(kit, application, unit)
    assert [verdict(found[day]).refuses for day in DAYS] == [False, True, False]
    assert verdict(found[D1]).found == "1 row that agrees"
    assert verdict(found[D3]).note == "neither side has a row of the day"
    assert verdict(found[D2]).sample == (
        {"kind": "different", "key": f"day={D2}", "ours": "fee=5.00", "theirs": "fee=6.00"},
    )
    stored = application.ledger.evidence(unit.id)["trips", D2]
    assert stored.compared is not None
    assert stored.compared.golden == {"booked": GoldenCounts(different=1)}
    assert application.ledger.findings("trips", {D2: unit.id})[D2].golden_mismatches == 1
    blockers = application.pipeline.readiness.blockers(unit, "trips", DAYS)
    assert {(f.day, f.reason) for f in blockers if "golden" in f.detail} == {(D2, Blocker.failed)}


def test_a_golden_file_that_is_corrected_makes_the_days_stale_and_then_they_pass(kit: Kit) -> None:
    application, unit = opened(kit, BOOKED)
    book(kit, f"{D1},3.00", f"{D2},6.00")
    checked(kit, application, unit)
    book(kit, f"{D1},3.00", f"{D2},5.00")
    stale = {
        f.day for f in application.pipeline.readiness.blockers(unit, "trips", DAYS) if f.reason is Blocker.inputs_moved
    }
    assert stale == set(DAYS)
    assert all(verdict(e).passed for e in checked(kit, application, unit).values())
    moved = [
        f for f in application.pipeline.readiness.blockers(unit, "trips", DAYS) if f.reason is Blocker.inputs_moved
    ]
    assert moved == []


def test_a_golden_source_that_only_warns_lets_the_day_pass(kit: Kit) -> None:
    application, unit = opened(kit, BOOKED | {"severity": "warn"})
    book(kit, f"{D1},4.00")
    found = checked(kit, application, unit)
    assert [(verdict(found[day]).passed, verdict(found[day]).refuses) for day in DAYS] == [
        (False, False), (False, False), (True, False),
    ]  # fmt: skip


def test_without_its_file_nothing_is_built(kit: Kit) -> None:
    application, unit = opened(kit, BOOKED)
    with pytest.raises(SourceError, match=r"golden\.booked: the file golden/booked\.csv is not in"):
        checked(kit, application, unit)
