"""A dataset that reads a Delta table: on the real pipeline, from the table's rows to its release."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.core.errors import BackfillError, EvidenceError, SourceError
from backfill_assets.core.unit import AttemptState, Unit, UnitState
from backfill_assets.dataset.loaded import Case
from backfill_assets.delta.opening import is_table
from backfill_assets.evidence.readiness import Blocker
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.tables import read_table
from backfill_assets.settings import Settings
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.testing.cases import lay_out, read_case
from backfill_assets_tests.harness.between import Happens, between, nothing
from backfill_assets_tests.harness.without_dagster import built, judged, opened, publish
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, TRIPS, Kit, values
from backfill_assets_tests.spark.workplace import OnTheTestServer

DAYS = (D1, D2, D3)
LEASE = dt.timedelta(minutes=10)
Rows = Sequence[tuple[dt.date, int, str, float, str]]
TABLE = {"table": "bronze/trips", "day": "ingested"}
COLUMNS = {**TRIPS["source"]["columns"]}  # type: ignore[index]


class Bronze:
    """The table `bronze/trips` among the sources, which a Spark job of others writes."""

    def __init__(self, kit: Kit, server: Settings) -> None:
        self.kit, self.server = kit, server
        self.home = path_of(kit.layout.sources) / "bronze" / "trips"

    def create(self, rows: Rows, day: str = "date", **properties: str) -> None:
        set_to = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.sql(
            f"CREATE TABLE {self} (ingested {day}, day date, Id int, kind string, amount double, fee decimal(12,2)) USING delta "
            f"PARTITIONED BY (ingested) {f'TBLPROPERTIES ({set_to})' if set_to else ''}"
        )
        self.add(rows, day=day)

    def add(self, rows: Rows, ingested: dt.date | None = None, day: str = "date") -> None:
        """Append rows in one commit, each with the day of its ingestion, which by default is its own."""
        written = ", ".join(
            f"(CAST('{ingested or own}' AS {day}), DATE'{own}', {number}, '{kind}', {amount}D, CAST('{fee}' AS decimal(12,2)))"
            for own, number, kind, amount, fee in rows
        )
        self.sql(f"INSERT INTO {self} SELECT /*+ COALESCE(1) */ * FROM VALUES {written}")

    def sql(self, text: str) -> None:
        self.kit.spark.sql(text)

    def __str__(self) -> str:
        return f"delta.{quoted(str(self.home))}"

    def application(self, **source: object) -> Application:
        allowed = {"tolerance": "1000%"}
        self.kit.dataset(
            source={**TABLE, "columns": COLUMNS, **source}, measures={"fee": allowed}, checks={"row_count": allowed}
        )
        return OnTheTestServer(self.kit.settings, self.server)

    def built_meanwhile(
        self, call: str, *, before: Happens = nothing, after: Happens = nothing
    ) -> tuple[Application, Unit]:
        """Build one day, while something happens before or after a call of the basis."""
        application = self.application()
        unit = opened(application, {"trips": (D1,)})
        pipeline = replace(application.pipeline, basis=between(application.basis, {call}, before=before, after=after))
        attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, LEASE)
        pipeline.build(self.kit.spark, unit, attempt)
        pipeline.validate(self.kit.spark, unit, attempt)
        return application, unit

    def published(self) -> list[tuple[object, ...]]:
        found = read_table(self.kit.spark, self.kit.layout.published_path("trips"))
        return values(found, "day", "id", "kind", "amount", "fee")

    def rows(self) -> list[tuple[object, ...]]:
        return values(read_table(self.kit.spark, OnDisk(self.home)), "day", "Id", "kind", "amount", "fee")


@pytest.fixture
def bronze(kit: Kit, spark_settings: Settings) -> Bronze:
    return Bronze(kit, spark_settings)


def blocked(application: Application, unit: Unit) -> set[tuple[dt.date, Blocker]]:
    return {(one.day, one.reason) for one in application.pipeline.readiness.survey(unit).blockers}


def build_what_is_missing(application: Application, spark: SparkSession, unit: Unit) -> tuple[dt.date, ...]:
    """Build the days that a release would refuse, as a resumed launch does; returns them."""
    days = application.pipeline.days_to_build(unit, "trips", DAYS)
    attempt = application.ledger.start_attempt(unit.id, "trips", days, unit.id, LEASE)
    application.pipeline.build(spark, unit, attempt)
    application.pipeline.validate(spark, unit, attempt)
    application.ledger.end_attempt(attempt.number, AttemptState.done)
    return days


@pytest.mark.faults
def test_a_row_makes_its_day_stale_until_it_is_released_and_optimize_makes_none_stale(
    bronze: Bronze, observed: Observed
) -> None:
    observed.injected(
        "an INSERT, an UPDATE and an OPTIMIZE of the source table between the checks of its days and their release"
    )
    spark = bronze.kit.spark
    bronze.create([(d, 1, "a", 10.0, "1.00") for d in DAYS])
    application = bronze.application()
    unit = built(application, spark, "trips", DAYS)
    assert blocked(application, unit) == set()
    # A late row, and a changed row at the last moment.
    bronze.add([(D2, 2, "b", 30.0, "3.00")])
    with pytest.raises(EvidenceError, match=f"trips {D2} is stale: its deliveries"):
        application.publisher.release(unit.id)
    assert build_what_is_missing(application, spark, unit) == (D2,)
    bronze.sql(f"UPDATE {bronze} SET fee = 9.00 WHERE ingested = DATE'{D1}'")
    with pytest.raises(EvidenceError, match=f"trips {D1} is stale: its deliveries"):
        application.publisher.release(unit.id)
    assert build_what_is_missing(application, spark, unit) == (D1,)
    application.publisher.release(unit.id)
    assert bronze.published() == bronze.rows()
    assert not path_of(application.layout.raw_path("trips")).exists()
    files = {path.name for path in bronze.home.rglob("*.parquet")}
    bronze.sql(f"OPTIMIZE {bronze}")
    assert {path.name for path in bronze.home.rglob("*.parquet")} > files
    assert application.pipeline.is_current(unit, "trips", DAYS)
    assert application.late_deliveries.moved("trips") == application.late_deliveries.of("trips") == ()
    bronze.add([(D3, 2, "b", 30.0, "3.00")])
    assert application.late_deliveries.moved("trips") == (D3,)
    assert [late.day for late in application.late_deliveries.of("trips")] == [D3]
    observed.found("each change makes its own day stale, and is built and released", "OPTIMIZE changes nothing")


@pytest.mark.faults
def test_a_day_is_built_again_with_rows_that_arrive_while_it_is_staged(bronze: Bronze, observed: Observed) -> None:
    observed.injected("an INSERT into the source table while a day is staged")
    bronze.create([(D1, 1, "a", 10.0, "1.00")])
    arrives = iter((lambda: bronze.add([(D1, 2, "b", 20.0, "2.00")]),))
    application, unit = bronze.built_meanwhile("to_stage", after=lambda _: next(arrives, lambda: None)())
    assert judged(application, unit, "trips")[D1].measured.shadow.rows == 2
    assert blocked(application, unit) == set()
    observed.found("the day is built again with the new row")


@pytest.mark.faults
def test_rows_that_go_and_come_back_while_a_day_is_built_leave_no_evidence_of_other_rows(
    bronze: Bronze, observed: Observed
) -> None:
    observed.injected("a DELETE and an INSERT of the same rows while a day is built")
    bronze.create([(D1, 1, "a", 10.0, "1.00")])
    commits = iter((lambda: bronze.sql(f"DELETE FROM {bronze}"), lambda: bronze.add([(D1, 1, "a", 10.0, "1.00")])))

    def commit(_call: str) -> None:
        next(commits, lambda: None)()

    application, unit = bronze.built_meanwhile("inputs", before=commit, after=commit)
    assert judged(application, unit, "trips")[D1].measured.shadow.rows == 1
    assert blocked(application, unit) == set()
    observed.found("the shadow has the rows that its evidence names")


def vacuum(bronze: Bronze) -> None:
    """All rows are deleted, and then the files that had them."""
    DeltaTable(bronze.home).delete()
    assert DeltaTable(bronze.home).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def another_table(bronze: Bronze) -> None:
    shutil.rmtree(bronze.home)
    for number in range(2):
        write_deltalake(
            bronze.home, pa.table({"INGESTED": [str(D1)], "n": [number]}), partition_by=["INGESTED"], mode="append"
        )


def cut_log(bronze: Bronze) -> None:
    last = max((bronze.home / "_delta_log").glob("*.json"))
    last.write_bytes(last.read_bytes()[:40])


LOSSES = {
    "DELETE and VACUUM": vacuum,
    "its folder is gone": lambda bronze: shutil.rmtree(bronze.home),
    "another table is in its place": another_table,
    "its newest commit is cut": cut_log,
}


@pytest.mark.faults
@pytest.mark.parametrize("loss", LOSSES)
def test_a_table_that_is_lost_while_its_days_are_staged_fails_them_until_it_is_back(
    bronze: Bronze, observed: Observed, tmp_path: Path, loss: str
) -> None:
    spark = bronze.kit.spark
    bronze.create([(d, 1, "a", 10.0, "1.00") for d in DAYS])
    observed.injected(f"between the last look at a source table and the staging of its days: {loss}")
    shutil.copytree(bronze.home, tmp_path / "backup")
    happens = iter((lambda: LOSSES[loss](bronze),))
    application = bronze.application()
    unit = opened(application, {"trips": DAYS})
    basis = between(application.basis, {"to_stage"}, after=lambda _: next(happens, lambda: None)())
    attempt = application.ledger.start_attempt(unit.id, "trips", DAYS, unit.id, LEASE)
    with pytest.raises(BackfillError) as refused:
        replace(application.pipeline, basis=basis).build(spark, unit, attempt)
    application.ledger.end_attempt(attempt.number, AttemptState.failed)
    with pytest.raises(BackfillError):
        application.publisher.release(unit.id)
    assert not is_table(application.layout.published_path("trips"))
    shutil.rmtree(bronze.home, ignore_errors=True)
    (tmp_path / "backup").rename(bronze.home)
    assert build_what_is_missing(application, spark, unit) == DAYS
    application.publisher.release(unit.id)
    assert bronze.published() == bronze.rows()
    observed.found(refused.value, "nothing is published; once the table is back, the days are built and released")


@pytest.mark.faults
def test_a_pinned_version_that_was_vacuumed_is_refused_by_key_and_its_published_days_stay(
    bronze: Bronze, observed: Observed
) -> None:
    bronze.create([(D1, 1, "a", 10.0, "1.00"), (D2, 1, "a", 10.0, "1.00")])
    application = bronze.application(version=1)
    publish(application, bronze.kit.spark, "trips", (D1,))
    before = bronze.published()
    observed.injected("VACUUM of the version of a source table that dataset.yaml pins")
    vacuum(bronze)
    with pytest.raises(SourceError, match=r"dataset\.yaml: source: ") as refused:
        built(application, bronze.kit.spark, "trips", (D2,))
    assert bronze.published() == before
    assert application.late_deliveries.moved("trips") == application.late_deliveries.gone("trips") == ()
    observed.found(refused.value, "published days stay, and none is called late")


def test_later_delivery_days_bring_rows_of_a_day_and_the_newest_day_counts(bronze: Bronze) -> None:
    bronze.create([(D1, 1, "a", 10.0, "1.00"), (D1, 2, "a", 20.0, "2.00")])
    bronze.add([(D1, 2, "b", 21.0, "2.10"), (D2, 1, "a", 10.0, "1.00")], ingested=D2)
    application = bronze.application(late_days=1)
    publish(application, bronze.kit.spark, "trips", (D1, D2))
    assert [row[:3] for row in bronze.published()] == [(D1, 1, "a"), (D1, 2, "b"), (D2, 1, "a")]


def test_a_day_without_rows_and_rows_of_another_day_are_refused_by_their_checks(bronze: Bronze) -> None:
    bronze.create([(D1, 1, "a", 10.0, "1.00")])
    bronze.add([(D3, 1, "a", 10.0, "1.00")], ingested=D2)
    application = bronze.application()
    evidence = judged(application, built(application, bronze.kit.spark, "trips", DAYS), "trips")
    refused = {d: {v.check: v for v in evidence[d].verdicts if v.refuses} for d in DAYS}
    assert [set(refused[d]) for d in DAYS] == [set(), {"corrupt_rows", "not_empty"}, {"source_present"}]
    assert refused[D2]["corrupt_rows"].found == "0 unreadable, 1 of another day, of 1 rows"
    assert refused[D2]["corrupt_rows"].sample[0]["_source_file"] == f"bronze/trips/ingested={D2}"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"fee": "decimal(10,2)"},
            r"source\.columns\.fee: expected fee as decimal\(10,2\) in .*, found decimal\(12,2\)",
        ),
        (
            {"fee": {"from": "Fee EUR", "type": "double"}},
            r"columns\.fee: expected Fee EUR as double in .*, found no such",
        ),
    ],
)
def test_columns_that_the_table_does_not_have_are_refused_by_name(
    bronze: Bronze, columns: dict[str, object], message: str
) -> None:
    bronze.create([(D1, 1, "a", 10.0, "1.00")])
    application = bronze.application(columns={**COLUMNS, **columns})
    with pytest.raises(SourceError, match=message):
        built(application, bronze.kit.spark, "trips", (D1,))
    assert not path_of(application.layout.staging_path("trips")).exists()


def test_days_that_are_text_are_read_by_day(bronze: Bronze) -> None:
    bronze.create([(d, 1, "a", 10.0, "1.00") for d in DAYS], day="string")
    application = bronze.application()
    publish(application, bronze.kit.spark, "trips", (D1, D3))
    assert [row[0] for row in bronze.published()] == [D1, D3]


def test_rows_behind_deletion_vectors_do_not_count(bronze: Bronze) -> None:
    bronze.create([(D1, i, "a", 10.0, "1.00") for i in range(9)], **{"delta.enableDeletionVectors": "true"})
    application = bronze.application()
    (before,) = application.basis.known("trips", (D1,))
    files = sorted(bronze.home.rglob("*.parquet"))
    bronze.sql(f"DELETE FROM {bronze} WHERE id = 4")
    assert sorted(bronze.home.rglob("*.parquet")) == files
    (after,) = application.basis.known("trips", (D1,))
    assert (before.rows, after.rows) == (9, 8)
    publish(application, bronze.kit.spark, "trips", (D1,))
    assert bronze.published() == bronze.rows()


def test_a_table_with_column_mapping_is_staged_as_plain_columns(bronze: Bronze) -> None:
    bronze.create([(D1, 1, "a", 10.0, "1.00")], **{"delta.columnMapping.mode": "name"})
    application = bronze.application()
    publish(application, bronze.kit.spark, "trips", (D1,))
    assert bronze.published() == bronze.rows()


def test_a_table_is_read_from_the_folder_that_is_named_whatever_its_name(bronze: Bronze) -> None:
    """Not from the one that globs, escapes or the time travel in a path of Delta would mean."""
    bronze.create([(D1, 1, "a", 10.0, "1.00")])
    bronze.add([(D1, 2, "b", 20.0, "2.00")])
    odd = bronze.home.with_name("trips@v1 {a,b}[c]*?%#'`$:;")
    shutil.copytree(bronze.home, odd)
    bronze.sql(f"DELETE FROM {bronze}")
    application = bronze.application(table=f"bronze/{odd.name}")
    publish(application, bronze.kit.spark, "trips", (D1,))
    assert [row[1] for row in bronze.published()] == [1, 2]


def test_a_golden_case_of_a_table_is_laid_out_as_the_table_is(bronze: Bronze, tmp_path: Path) -> None:
    loaded = bronze.kit.dataset(source={**TABLE, "columns": COLUMNS})
    folder = tmp_path / "case"
    (folder / "raw" / str(D4)).mkdir(parents=True)
    text = f"day,id,kind,amount,fee\n{D4},1,a,1.5,0.50\n"
    (folder / "raw" / str(D4) / "rows.csv").write_text(text)
    (folder / "expected.csv").write_text(text)
    (folder / "kinds.csv").write_text("kind,label\na,Alpha\n")
    case = read_case(loaded, Case("plain", folder))
    lay_out(case, path_of(bronze.kit.layout.sources))
    application = OnTheTestServer(bronze.kit.settings, bronze.server)
    publish(application, bronze.kit.spark, "trips", case.days)
    assert len(bronze.published()) == 1


def test_a_proof_recomputes_the_days_of_a_table(bronze: Bronze, spark: SparkSession) -> None:
    bronze.create([(d, 1, "a", 10.0, "1.00") for d in DAYS])
    application = bronze.application()
    publish(application, spark, "trips", DAYS)
    (certificate,) = application.prover.prove("trips")
    assert certificate.disagreements == ()


WITH_DRAFT = """
SELECT day, id, kind, amount, fee FROM staging WHERE day NOT IN (SELECT day FROM draft)
UNION ALL
SELECT day, id, kind, amount, fee FROM draft
"""


def test_days_that_were_computed_elsewhere_are_checked_and_released_like_all_others(bronze: Bronze) -> None:
    kit, allowed = bronze.kit, {"tolerance": "1000%"}
    bronze.create([(D1, 1, "a", 10.0, "1.50"), (D2, 1, "a", 10.0, "2.50"), (D2, 1, "a", 10.0, "2.50")])
    kit.dataset(name="draft", source={**TABLE, "columns": COLUMNS}, measures={"fee": allowed}, checks={})
    kit.dataset(
        fact=WITH_DRAFT, upstream={"draft": {"on_missing": "pass"}}, measures={"fee": allowed},
        checks={"row_count": allowed, "reconciliation": {"metrics": []}},
    )  # fmt: skip
    for day in DAYS:
        kit.deliver(day, f"{day},1,a,10,1.00")
    application = OnTheTestServer(kit.settings, bronze.server)
    unit = built(application, kit.spark, "draft", (D1, D2))
    refused = [
        (day, v.check) for day, one in judged(application, unit, "draft").items() for v in one.verdicts if v.refuses
    ]
    assert refused == [(D2, "unique_key")]
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    bronze.sql(f"DELETE FROM {bronze} WHERE ingested = DATE'{D2}'")
    bronze.add([(D2, 1, "a", 10.0, "2.50")])
    publish(application, kit.spark, "draft", (D1, D2))
    publish(application, kit.spark, "trips", DAYS)
    fees = {D1: Decimal("1.50"), D2: Decimal("2.50"), D3: Decimal("1.00")}
    assert bronze.published() == [(day, 1, "a", 10.0, fee) for day, fee in fees.items()]
    bronze.sql(f"UPDATE {bronze} SET fee = 9.00 WHERE ingested = DATE'{D1}'")
    assert application.late_deliveries.moved("draft") == (D1,)
    publish(application, kit.spark, "draft", (D1,))
    unit = built(application, kit.spark, "trips", DAYS)
    assert [
        day
        for day, one in judged(application, unit, "trips").items()
        if one.measured.shadow.fingerprint != one.measured.published.fingerprint
    ] == [D1]
