"""Days that look ahead: built with the days after them, and refused before these have landed."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Mapping
from decimal import Decimal

from backfill_assets.application import Application
from backfill_assets.core.evidence import DayEvidence, Verdict
from backfill_assets.core.unit import UnitState
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.settings import Settings
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.without_dagster import built, judged, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, Kit, values
from backfill_assets_tests.spark.workplace import OnTheTestServer

AHEAD = """
SELECT day, id, kind, amount, CAST(sum(fee) OVER (
    ORDER BY day RANGE BETWEEN CURRENT ROW AND INTERVAL 1 DAY FOLLOWING
) AS decimal(12, 2)) AS fee FROM staging
"""
"""The fee of a day and of the day after it."""


def deliver(kit: Kit, day: dt.date, fee: int, **how: object) -> None:
    kit.deliver(day, f"{day},1,a,50,{fee}.00", **how)  # type: ignore[arg-type]


def evidence(kit: Kit, application: Application, *days: dt.date) -> Mapping[dt.date, DayEvidence]:
    """The evidence of days in a unit that is given up afterwards."""
    unit = built(application, kit.spark, "trips", days)
    found = judged(application, unit, "trips")
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    return found


def refused(one: DayEvidence) -> list[str]:
    return [verdict.check for verdict in one.verdicts if verdict.refuses]


def verdict(one: DayEvidence, check: str) -> Verdict:
    return next(v for v in one.verdicts if v.check == check)


def published_fees(kit: Kit) -> dict[object, object]:
    table = kit.table(path_of(kit.layout.published_path("trips")))
    return dict(values(table, "day", "fee"))  # type: ignore[arg-type]


def test_a_day_is_final_when_the_day_that_it_looks_ahead_to_has_landed_and_stale_when_that_changes(kit: Kit) -> None:
    kit.dataset(fact=AHEAD, lookahead_days=1)
    application = Application(kit.settings)
    for day, fee in ((D1, 1), (D2, 2)):
        deliver(kit, day, fee)
    found = evidence(kit, application, D1, D2)
    assert refused(found[D1]) == []
    assert refused(found[D2]) == ["source_present"]
    present = verdict(found[D2], "source_present")
    assert present.found == f"1 deliveries, none for {D3}, which the day looks ahead to"
    assert found[D1].measured.shadow.metrics["fee"] == Decimal("3.00")
    deliver(kit, D3, 3)
    # The day after it lands with a day.
    assert application.pipeline.days_to_land("trips", (D1, D2)) == (D2,)
    publish(application, kit.spark, "trips", (D1, D2))
    assert published_fees(kit) == {D1: Decimal("3.00"), D2: Decimal("5.00")}
    assert application.staleness.of("trips").days == ()
    deliver(kit, D3, 30, part="-corrected", hour=1)
    assert [late.day for late in application.late_deliveries.of("trips")] == [D2]
    assert application.staleness.of("trips", look=True).by_cause == {StaleCause.source: (D2,)}
    unit = built(application, kit.spark, "trips", (D2,), {"metrics": {"fee": "any"}})
    application.publisher.release(unit.id)
    assert published_fees(kit)[D2] == Decimal("32.00")


def published_rows(kit: Kit) -> dict[object, object]:
    """The fee and the mark of each published day."""
    table = kit.table(path_of(kit.layout.published_path("trips")))
    return {day: (fee, mark) for day, fee, mark in values(table, "day", "fee", "is_provisional")}  # type: ignore[misc]


def test_a_provisional_day_is_marked_until_the_next_one_has_landed_and_only_what_may_change_changes(kit: Kit) -> None:
    kit.dataset(fact=AHEAD, lookahead_days=1, provisional={"may_change": ["fee"]})
    application = Application(kit.settings)
    for day, fee in ((D1, 1), (D2, 2)):
        deliver(kit, day, fee)
    publish(application, kit.spark, "trips", (D1, D2))
    assert published_rows(kit) == {D1: (Decimal("3.00"), False), D2: (Decimal("2.00"), True)}
    assert application.basis.provisional("trips", (D1, D2)).keys() == {D2}
    assert application.staleness.of("trips", look=True).days == ()
    assert application.late_deliveries.of("trips") == ()
    deliver(kit, D3, 3)
    assert [late.day for late in application.late_deliveries.of("trips")] == [D2]
    publish(application, kit.spark, "trips", (D2,))
    assert published_rows(kit) == {D1: (Decimal("3.00"), False), D2: (Decimal("5.00"), False)}
    assert application.basis.provisional("trips", (D1, D2)) == {}
    # Final days are as strict as any.
    deliver(kit, D3, 30, part="-corrected", hour=1)
    assert refused(evidence(kit, application, D2)[D2]) == ["change_fee", "change_rows"]


def test_finalizing_a_day_may_not_change_what_was_not_declared(kit: Kit) -> None:
    grown = "sum(amount) OVER (ORDER BY day RANGE BETWEEN CURRENT ROW AND INTERVAL 1 DAY FOLLOWING)"
    fact = AHEAD.replace("amount,", f"CAST({grown} AS double) AS amount,")
    kit.dataset(fact=fact, lookahead_days=1, provisional={"may_change": ["fee"]}, measures={"fee": {}})
    application = Application(kit.settings)
    deliver(kit, D1, 1)
    publish(application, kit.spark, "trips", (D1,))
    deliver(kit, D2, 2)
    found = evidence(kit, application, D1)[D1]
    assert refused(found) == ["change_rows"]
    assert "amount changed in 1" in verdict(found, "change_rows").found
    assert "finalizing it may change only fee" in verdict(found, "change_rows").note


def test_a_marked_day_of_which_nobody_knows_the_origin_is_finalized_by_the_same_rules(
    kit: Kit, spark_settings: Settings
) -> None:
    settings = {"lookahead_days": 1, "provisional": {"may_change": ["fee"]}, "measures": {"fee": {}}}
    kit.dataset(fact=AHEAD, **settings)  # type: ignore[arg-type]
    application = Application(kit.settings)
    for day, fee in ((D1, 1), (D2, 2)):
        deliver(kit, day, fee)
    publish(application, kit.spark, "trips", (D1, D2))
    with sqlite3.connect(application.settings.ledger_url.removeprefix("sqlite:///")) as ledger:
        ledger.execute("DELETE FROM contents")
    deliver(kit, D3, 3)
    kit.dataset(fact=AHEAD.replace("amount,", "amount + 1 AS amount,"), **settings)  # type: ignore[arg-type]
    found = evidence(kit, OnTheTestServer(kit.settings, spark_settings), D1, D2)
    # The first day is final: there, a column that is no measure may change, with a warning.
    assert {day: refused(one) for day, one in found.items()} == {D1: [], D2: ["change_rows"]}


def test_a_model_that_looks_further_ahead_than_declared_is_refused(kit: Kit) -> None:
    kit.dataset(fact=AHEAD.replace("INTERVAL 1 DAY", "INTERVAL 2 DAY"), lookahead_days=1)
    application = Application(kit.settings)
    for day in (D1, D2, D3, D4):
        deliver(kit, day, 1)
    found = evidence(kit, application, D1, D2, D3)
    assert refused(found[D1]) == ["same_alone"]
    assert f"{D1}: 1 of 1 row differ when built alone" in verdict(found[D1], "same_alone").found


def test_two_versions_on_a_day_that_is_looked_ahead_to_are_refused(kit: Kit) -> None:
    columns = {"kind": "string", "since": "date", "until": "date"}
    costs = {"format": "csv", "path": "costs.csv", "valid": ["since", "until"], "columns": columns}
    kit.put("costs.csv", f"kind,since,until\na,2024-01-01,\na,{D2},\n")
    joined = "SELECT s.* FROM staging AS s JOIN costs AS c ON c.kind = s.kind AND c.day = s.day"
    kit.dataset(
        fact=AHEAD.replace("FROM staging", f"FROM ({joined})"),
        lookahead_days=1, references={"costs": costs},
        checks={"references": {"costed": {"reference": "costs", "columns": ["kind"], "to": ["kind"]}}},
    )  # fmt: skip
    application = Application(kit.settings)
    for day in (D1, D2):
        deliver(kit, day, 1)
    assert refused(evidence(kit, application, D1)[D1]) == ["reference_costed"]
