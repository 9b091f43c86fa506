"""Slowly changing dimensions: each day is joined with the versions valid on it, and depends on no others."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import BackfillError, EvidenceError, SourceError
from backfill_assets.core.evidence import DayEvidence, Verdict
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.between import between
from backfill_assets_tests.harness.without_dagster import built, judged, opened, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, STAGING, TRIPS, Kit, values

COLUMNS = {**TRIPS["columns"], "cost": {"type": "decimal(9,2)"}}  # type: ignore[dict-item]
COSTS = {
    "format": "csv", "path": "costs.csv", "valid": ["since", "until"],
    "columns": {"kind": "string", "cost": "decimal(9,2)", "since": "date", "until": "date"},
}  # fmt: skip
CHECKS = {"references": {"costed": {"reference": "costs", "columns": ["kind"], "to": ["kind"]}}}
JOINED = "SELECT s.*, c.cost FROM staging AS s LEFT JOIN costs AS c ON c.kind = s.kind AND c.day = s.day"
BY_DAY = JOINED.replace("s.*", "s.day, s.id, s.kind, s.amount, s.fee")
ANY_DAY = BY_DAY.replace(" AND c.day = s.day", "")
HEAD = "kind,cost,since,until\n"
TWO = f"a,1.00,2024-01-01,{D2}\na,2.00,{D2},\n"


def costs(kit: Kit, rows: str) -> None:
    kit.put("costs.csv", HEAD + rows)


def margins(kit: Kit, staging: str = STAGING, fact: str = BY_DAY, **more: object) -> Application:
    """The dataset with costs, a row on each day, and two versions of its cost."""
    given = {"columns": COLUMNS, "references": {"costs": COSTS}, "checks": CHECKS, **more}
    kit.dataset(staging, fact, **given)  # type: ignore[arg-type]
    for number, day in enumerate((D1, D2, D3), 1):
        kit.deliver(day, f"{day},{number},a,10,1.00")
    return Application(kit.settings)


def published(kit: Kit) -> dict[object, object]:
    table = kit.table(path_of(kit.layout.published_path("trips")))
    return dict(values(table, "day", "cost"))  # type: ignore[arg-type]


def evidence(kit: Kit, application: Application, *days: dt.date) -> Mapping[dt.date, DayEvidence]:
    return judged(application, built(application, kit.spark, "trips", days), "trips")


def verdict(one: DayEvidence, check: str = "reference_costed") -> Verdict:
    return next(v for v in one.verdicts if v.check == check)


def test_each_day_has_the_cost_of_its_day_and_is_stale_only_if_that_changes(kit: Kit) -> None:
    costs(kit, TWO)
    application = margins(kit)
    publish(application, kit.spark, "trips", (D1, D2, D3))
    assert published(kit) == {D1: Decimal("1.00"), D2: Decimal("2.00"), D3: Decimal("2.00")}
    # The version ends, a new one begins: only the days from then on see another cost.
    costs(kit, f"a,1.00,2024-01-01,{D2}\na,2.00,{D2},{D3}\na,3.00,{D3},\n")
    assert application.staleness.of("trips").by_cause == {StaleCause.reference: (D3,)}
    publish(application, kit.spark, "trips", (D3,))
    assert application.staleness.of("trips").days == ()
    assert published(kit) == {D1: Decimal("1.00"), D2: Decimal("2.00"), D3: Decimal("3.00")}
    # Versions of other days, and of days to come, change nothing.
    costs(
        kit, f"a,1.00,2024-01-01,{D2}\na,2.00,{D2},{D3}\na,3.00,{D3},{D4}\na,9.00,{D4},\na,8.00,2020-01-01,2020-02-01\n"
    )
    assert application.staleness.of("trips").days == ()


def test_rows_without_a_version_and_with_two_are_counted_shown_and_refused(kit: Kit) -> None:
    costs(kit, f"a,1.00,2024-01-01,{D2}\na,2.00,{D3},\na,3.00,{D3},\n")
    application = margins(kit)
    found = evidence(kit, application, D1, D2, D3)
    assert not any(v.refuses for v in found[D1].verdicts)
    assert (verdict(found[D2]).refuses, verdict(found[D2]).found) == (True, "1 of 1 without a match (100.00%)")
    twice = verdict(found[D3])
    # The join has doubled the row: both are counted.
    assert (twice.refuses, twice.found) == (True, "0 of 2 without a match (0.00%), 2 with more than one version")
    assert [row["id"] for row in twice.sample] == [3, 3]
    assert [row["id"] for row in verdict(found[D2]).sample] == [2]


def test_a_model_that_forgets_the_day_doubles_rows_and_is_refused(kit: Kit) -> None:
    costs(kit, TWO)
    found = evidence(kit, margins(kit, fact=ANY_DAY), D1, D2)
    assert verdict(found[D1], "unique_key").refuses


def test_a_model_that_adds_up_over_versions_of_other_days_is_refused(kit: Kit) -> None:
    """No row is doubled, and each finds a version: only a day that is built alone shows it."""
    costs(kit, "a,1.00,2024-01-01,\n")
    fact = (
        "SELECT s.day, s.id, s.kind, s.amount, s.fee, CAST(sum(c.cost) AS decimal(9,2)) AS cost FROM staging AS s "
        "LEFT JOIN costs AS c ON c.kind = s.kind GROUP BY ALL"
    )
    found = evidence(kit, margins(kit, fact=fact), D1, D2, D3)
    assert verdict(found[D3]).passed
    assert verdict(found[D3], "unique_key").passed
    assert verdict(found[D3], "same_alone").refuses


def test_a_staging_model_sees_no_versions(kit: Kit) -> None:
    costs(kit, TWO)
    application = margins(kit)
    before = application.basis.staged_inputs("trips", (D1, D2))
    costs(kit, TWO.replace("2.00", "2.50"))
    assert application.basis.staged_inputs("trips", (D1, D2)) == before
    staging = STAGING.replace("FROM raw", "FROM raw WHERE kind IN (SELECT kind FROM costs)")
    with pytest.raises(BackfillError, match="costs"):
        evidence(kit, margins(kit, staging), D1)


def test_a_day_that_looks_back_at_an_upstream_finds_the_versions_of_the_days_before(kit: Kit) -> None:
    costs(kit, TWO)
    kit.dataset(checks={}, references={})
    for number, day in enumerate((D1, D2, D3), 1):
        kit.deliver(day, f"{day},{number},a,10,1.00")
    fact = (
        "WITH spent AS (SELECT t.day, c.cost FROM trips AS t LEFT JOIN costs AS c ON c.kind = t.kind AND c.day = t.day), "
        "days AS (SELECT DISTINCT day FROM trips) SELECT d.day, 'a' AS kind, CAST(sum(s.cost) AS decimal(9,2)) AS cost "
        "FROM days AS d JOIN spent AS s ON s.day BETWEEN date_sub(d.day, 1) AND d.day GROUP BY d.day"
    )
    kit.derived(
        fact, key=["day"], columns={"day": {"type": "date"}, "kind": {"type": "string"}, "cost": {"type": "decimal(9,2)"}},
        upstream={"trips": {"lookback_days": 1}}, references={"costs": COSTS}, checks=CHECKS,
    )  # fmt: skip
    application = Application(kit.settings)
    publish(application, kit.spark, "trips", (D1, D2, D3))
    for days in ((D2,), (D2, D3)):
        found = judged(application, built(application, kit.spark, "totals", days), "totals")
        assert not [v for one in found.values() for v in one.verdicts if v.refuses]
        assert found[D2].measured.shadow.metrics["row_count"] == 1
        application.publisher.release(found[D2].unit)
        table = kit.table(path_of(kit.layout.published_path("totals")))
        assert dict(values(table, "day", "cost"))[D2] == Decimal("3.00")  # type: ignore[arg-type]
    costs(kit, TWO.replace("1.00", "1.50"))
    assert application.staleness.of("totals").by_cause == {StaleCause.reference: (D2,)}


def test_a_day_that_looks_back_depends_on_the_versions_of_the_days_before(kit: Kit) -> None:
    costs(kit, TWO)
    fact = (
        "SELECT s.day, s.id, s.kind, s.amount, s.fee, CAST((SELECT sum(c.cost) FROM costs AS c "
        "WHERE c.kind = s.kind AND c.day BETWEEN date_sub(s.day, 1) AND s.day) AS decimal(9,2)) AS cost FROM staging AS s"
    )
    application = margins(kit, fact=fact, lookback_days=1)
    publish(application, kit.spark, "trips", (D2, D3))
    assert published(kit) == {D2: Decimal("3.00"), D3: Decimal("4.00")}
    costs(kit, TWO.replace("1.00", "1.50"))
    assert application.staleness.of("trips").by_cause == {StaleCause.reference: (D2,)}
    publish(application, kit.spark, "trips", (D2,))
    assert published(kit) == {D2: Decimal("3.50"), D3: Decimal("4.00")}


def test_two_versions_on_a_day_that_is_looked_back_at_are_refused(kit: Kit) -> None:
    """The sum of a day has the cost of the day before twice; its own day has one version."""
    costs(kit, f"a,1.00,2024-01-01,{D2}\na,1.00,{D1},{D2}\na,2.00,{D2},\nb,5.00,{D1},{D2}\n")
    fact = (
        "SELECT s.day, s.id, s.kind, s.amount, s.fee, CAST((SELECT sum(c.cost) FROM costs AS c "
        "WHERE c.kind = s.kind AND c.day BETWEEN date_sub(s.day, 1) AND s.day) AS decimal(9,2)) AS cost FROM staging AS s"
    )
    application = margins(kit, fact=fact, lookback_days=1)
    kit.deliver(D2, f"{D2},2,a,10,1.00", f"{D2},4,b,10,1.00")
    found = evidence(kit, application, D2, D3)
    assert (verdict(found[D2]).refuses, verdict(found[D2]).found) == (
        True, "1 of 2 without a match (50.00%), 1 with more than one version",
    )  # fmt: skip
    # A version of the day before is none of the day itself. The third day reads no day with two.
    assert verdict(found[D3]).passed


def test_a_file_that_is_replaced_while_spark_reads_it_and_put_back_is_read_again(kit: Kit) -> None:
    costs(kit, TWO)
    application = margins(kit)
    unit = opened(application, {"trips": (D1, D2)})
    pipeline = application.pipeline
    pipeline.land(kit.spark, "trips", (D1, D2))
    pipeline.stage(kit.spark, "trips", (D1, D2))
    # Before the shadow is built the ledger is asked twice what is staged, after it once.
    asked = itertools.count()

    def replaced(_call: str) -> None:
        number = next(asked)
        if number in {1, 2}:
            costs(kit, TWO.replace("1.00", "9.99") if number == 1 else TWO)

    busy = between(application.ledger, {"staged"}, before=replaced)
    building = replace(pipeline, warehouse=replace(application.warehouse, ledger=busy))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1, D2), unit.id, dt.timedelta(minutes=10))
    building.build(kit.spark, unit, attempt)
    rows = kit.table(kit.shadow_folder(application.datasets["trips"], attempt.folder))
    assert (dict(values(rows, "day", "cost")), next(asked)) == ({D1: Decimal("1.00"), D2: Decimal("2.00")}, 6)  # type: ignore[arg-type]


def test_days_whose_references_change_before_their_checks_are_built_again(kit: Kit) -> None:
    costs(kit, TWO)
    application = margins(kit)
    unit = opened(application, {"trips": (D1, D2, D3)})
    pipeline = application.pipeline
    pipeline.land(kit.spark, "trips", (D1, D2, D3))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1, D2, D3), unit.id, dt.timedelta(minutes=10))
    pipeline.build(kit.spark, unit, attempt)
    # An ordinary day: the newest version ends. Built alone, the last day would differ, and all days would fail.
    costs(kit, f"a,1.00,2024-01-01,{D2}\na,2.00,{D2},{D3}\na,3.00,{D3},\n")
    found = pipeline.validate(kit.spark, unit, attempt)
    assert not [v for one in found for v in one.verdicts if v.refuses]
    assert not application.publisher.blockers(unit.id)
    application.publisher.release(unit.id)
    assert published(kit)[D3] == Decimal("3.00")


def test_a_file_that_never_holds_still_is_refused_by_name(kit: Kit) -> None:
    costs(kit, TWO)
    application = margins(kit, references={"costs": COSTS, **TRIPS["references"]})  # type: ignore[dict-item]
    unit, pipeline = opened(application, {"trips": (D1,)}), application.pipeline
    pipeline.land(kit.spark, "trips", (D1,))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    numbers = itertools.count(1)

    def replaced(_call: str) -> None:
        costs(kit, f"{TWO}a,{next(numbers)}.50,2020-01-01,2020-02-01\n")

    def plain_replaced(_call: str) -> None:
        kit.put("kinds.csv", f"kind,label\na,{next(numbers)}\n")

    # The staging model sees no versions, and need not wait for them.
    for happens in (replaced, plain_replaced):
        busy = between(application.ledger, {"deliveries"}, before=happens)
        staging = replace(pipeline, warehouse=replace(application.warehouse, ledger=busy))
        if happens is replaced:
            assert staging.stage(kit.spark, "trips", (D1,)) == {D1: 1}
        else:
            kit.put("kinds.csv", "kind,label\na,another\n")
            with pytest.raises(SourceError, match="a reference file changed 3 times while these days were staged"):
                staging.stage(kit.spark, "trips", (D1,))
    pipeline.build(kit.spark, unit, attempt)
    busy = between(application.ledger, {"staged"}, before=replaced)
    checks = replace(pipeline, warehouse=replace(application.warehouse, ledger=busy))
    with pytest.raises(
        EvidenceError, match="staging, a reference or a golden file changed 3 times while these days were"
    ):
        checks.validate(kit.spark, unit, attempt)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,1.00,,\n", r"costs\.csv: a row does not say from which day on it is valid"),
        ("a,1.00,soon,\n", r"costs\.csv: a row cannot be read as dataset\.yaml declares it: a,1\.00,soon,"),
    ],
)
def test_a_row_without_its_days_is_refused(kit: Kit, row: str, message: str) -> None:
    costs(kit, TWO + row)
    with pytest.raises(BackfillError, match=message):
        evidence(kit, margins(kit), D1)
