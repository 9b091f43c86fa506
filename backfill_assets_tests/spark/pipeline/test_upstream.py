"""Upstreams of a derived day: what is measured of them, and how the checks of the day judge it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal

import pytest

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.measured import UpstreamState
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.basis import PUBLISHED, UpstreamDays
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.pipeline.measure import measure, measure_upstreams
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.engine import engine_settings
from backfill_assets_tests.harness import without_dagster
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, FOLDER, NOW, Kit, Prepared
from backfill_assets_tests.spark.workplace import OnTheTestServer

FACT = f"SELECT day, kind, SUM(fee) AS fee FROM trips WHERE day <> DATE'{D2}' OR kind = 'a' GROUP BY day, kind"
"""Loses rows of the second day."""


def totals(kit: Kit, sql: str = "SUM(fee)") -> LoadedDataset:
    """Fees by kind, whose sum has to equal a total of `trips`."""
    return kit.derived(
        FACT,
        key=["day", "kind"],
        columns={"day": {"type": "date"}, "kind": {"type": "string"}, "fee": {"type": "decimal(22,2)"}},
        upstream={"trips": {}},
        measures={"fee": {}},
        checks={"reconciliation": {"totals": {"fee": {"upstream": "trips", "sql": sql}}}},
    )


@pytest.fixture(scope="module")
def trips(module_kit: Kit) -> Prepared:
    """Trips on two days as readers see them, and on one in a shadow."""
    kit, trips = module_kit, module_kit.dataset(checks={})
    fees = {name: Decimal(name) for name in ("1.25", "2.00", "4.00", "8.50")}
    kit.publish(
        trips,
        kit.rows(
            (D1, 1, "a", 1.0, fees["1.25"]),
            (D1, 2, "a", 1.0, fees["2.00"]),
            (D1, 3, "b", 1.0, None),
            (D2, 1, "a", 1.0, fees["1.25"]),
            (D2, 2, "b", 1.0, fees["4.00"]),
        ),
    )
    kit.put_shadow(trips, kit.rows((D2, 1, "a", 1.0, fees["8.50"]), (D3, 1, "a", 1.0, fees["2.00"])))
    return Prepared(kit, trips)


def test_rows_and_totals_of_each_day_come_from_the_place_where_it_is(trips: Prepared) -> None:
    kit = trips.kit
    places = (UpstreamDays(trips.loaded, {PUBLISHED: (D1, D4), FOLDER: (D2,)}),)
    assert measure_upstreams(kit.frames(totals(kit), D1, D2, D4, upstreams=places)) == {
        D1: UpstreamState({"trips": 3}, {"fee": Decimal("3.25")}),
        D2: UpstreamState({"trips": 1}, {"fee": Decimal("8.50")}),
        D4: UpstreamState({"trips": 0}, {"fee": None}),
    }


def test_a_total_that_cannot_be_evaluated_is_refused_by_its_key(trips: Prepared) -> None:
    kit, places = trips.kit, (UpstreamDays(trips.loaded, {PUBLISHED: (D1,)}),)
    with pytest.raises(DatasetError, match=r"dataset\.yaml: checks\.reconciliation\.totals: .*`fees`"):
        measure_upstreams(kit.frames(totals(kit, "SUM(fees)"), D1, upstreams=places))


@pytest.mark.parametrize(("back", "unmatched"), [(0, [0, 1]), (1, [0, 0])])
def test_a_row_may_refer_to_rows_of_an_upstream_on_the_days_that_its_day_reads(
    trips: Prepared, back: int, unmatched: list[int]
) -> None:
    kit = trips.kit
    kinds = kit.derived(
        "SELECT day, kind FROM trips UNION SELECT day, 'b' FROM trips",
        key=["day", "kind"], columns={"day": {"type": "date"}, "kind": {"type": "string"}},
        upstream={"trips": {"lookback_days": back}},
        checks={"references": {"known": {"reference": "trips", "columns": ["kind"], "to": ["kind"]}}},
    )  # fmt: skip
    # The shadow of the second day has no row of kind b.
    places = (UpstreamDays(trips.loaded, {PUBLISHED: (D1,), FOLDER: (D2,)}),)
    frames = kit.frames(kinds, D1, D2, folder=f"_shadow/u_{back}/1", upstreams=places)
    build_shadow(frames, Audit(NOW, "u_1", kinds.code_version))
    counts = [measure(frames)[day].shadow.counts for day in (D1, D2)]
    assert [one["checked:known"] for one in counts] == [2, 2]
    assert [one["unmatched:known"] for one in counts] == unmatched


@pytest.fixture(scope="module")
def judged(trips: Prepared, spark_server: SparkServer) -> Mapping[dt.date, DayEvidence]:
    """The evidence of three days of `totals`: one is right, one has lost rows, and one has no upstream."""
    kit = trips.kit
    totals(kit)
    application = OnTheTestServer(kit.settings, engine_settings(spark_server.folder.root.parent))
    unit = without_dagster.built(application, kit.spark, "totals", (D1, D2, D4))
    return without_dagster.judged(application, unit, "totals")


@pytest.mark.parametrize(
    ("day", "check", "passed", "expected", "found"),
    [
        (D1, "reconcile_fee", True, "3.25 as in trips", "3.25"),
        (D2, "reconcile_fee", False, "5.25 as in trips", "1.25"),
        (D1, "upstream_present", True, "rows of every upstream", "3 of trips"),
        (D4, "upstream_present", False, "rows of every upstream", "0 of trips"),
    ],
)
def test_a_derived_day_is_judged_by_what_its_upstream_has(
    judged: Mapping[dt.date, DayEvidence], day: dt.date, check: str, *, passed: bool, expected: str, found: str
) -> None:
    (verdict,) = (one for one in judged[day].verdicts if one.check == check)
    assert (verdict.passed, verdict.expected, verdict.found) == (passed, expected, found)
