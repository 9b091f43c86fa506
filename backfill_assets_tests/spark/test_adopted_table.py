"""A table that a plain Spark job wrote for 200 days: adopted, corrected, released, rolled back and given back."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from threading import Event

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.releasing import AuditTrail
from backfill_assets.delta.adoptable import look_at
from backfill_assets.project.adopted_dataset import draft_of
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.engine import engine_environment
from backfill_assets_tests.harness.without_dagster import built, publish
from backfill_assets_tests.spark.workplace import OnTheTestServer, settings_of

FIRST = dt.date(2024, 1, 1)
DAYS = [FIRST + dt.timedelta(days=i) for i in range(200)]
WRONG = DAYS[60:63]
ROWS = 5


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The table of a job that knows nothing of this project, with a generated column and rules of its own."""
    folder = tmp_path / "lake" / "orders"
    spark.sql(
        f"CREATE TABLE delta.`{folder}` (day DATE, order_id BIGINT NOT NULL COMMENT 'Unique.', amount DECIMAL(10,2), "
        "note VARCHAR(8), cents BIGINT GENERATED ALWAYS AS (CAST(amount * 100 AS BIGINT))) "
        "USING delta PARTITIONED BY (day) COMMENT 'Orders by day.'"
    )
    spark.sql(f"ALTER TABLE delta.`{folder}` ADD CONSTRAINT positive CHECK (amount > 0)")
    spark.sql(
        f"SELECT date_add(DATE'{FIRST}', CAST(id DIV {ROWS} AS INT)) AS day, id AS order_id, "
        "CAST(10 + id % 7 AS DECIMAL(10,2)) AS amount, concat('n', id) AS note "
        f"FROM range({ROWS * len(DAYS)})"
    ).write.format("delta").mode("append").save(str(folder))
    yield folder
    shutil.rmtree(folder)


def drafted(root: Path, lake: Path, server: Settings) -> Application:
    """An installation with the drafted dataset, whose sources have the wrong days with twice the amount."""
    folder = root / "datasets" / "orders"
    folder.mkdir(parents=True)
    for name, text in draft_of(look_at(OnDisk(lake)), "orders", ("order_id",), AuditTrail.ledger).items():
        (folder / name).write_text(text)
    application = OnTheTestServer(settings_of(root), server)
    assert not application.catalog.problems, application.catalog.problems
    assert set(application.dataset("orders").checks.rules) == {
        "constraint_1_positive",
        "generated_cents",
        "length_note",
    }
    for day in WRONG:
        ids = [ROWS * (day - FIRST).days + i for i in range(ROWS)]
        amounts = [2 * Decimal(10 + i % 7) for i in ids]
        rows = {
            "day": pa.array([day] * ROWS),
            "order_id": pa.array(ids),
            "amount": pa.array(amounts, pa.decimal128(10, 2)),
            "note": pa.array([f"n{i}" for i in ids]),
            "cents": pa.array([int(100 * amount) for amount in amounts]),
        }
        file = path_of(application.settings.sources) / "orders" / f"{day}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(rows), file)
    return application


def delta_rs_total(place: str, _: SparkSession) -> Decimal:
    return sum(
        (row["amount"] for row in DeltaTable(place).to_pyarrow_table(columns=["amount"]).to_pylist()), Decimal(0)
    )


def polars_total(place: str, _: SparkSession) -> Decimal:
    return Decimal(str(pl.scan_delta(place).select(pl.col("amount").sum()).collect().item()))


def spark_total(place: str, spark: SparkSession) -> Decimal:
    return Decimal(str(spark.sql(f"SELECT sum(amount) FROM delta.`{place}`").collect()[0][0]))


def duckdb_total(place: str, _: SparkSession) -> Decimal:
    rows = DeltaTable(place).to_pyarrow_dataset()  # DuckDB reads it by this name
    assert rows.count_rows() > 0
    return Decimal(str(duckdb.connect().sql("SELECT sum(amount) FROM rows").fetchall()[0][0]))


READERS = (delta_rs_total, polars_total, spark_total, duckdb_total)
"""The sum of all amounts, by readers that know nothing of this project."""


def seen(lake: Path, spark: SparkSession) -> Decimal:
    """The sum that all readers see."""
    totals = {total(str(lake), spark) for total in READERS}
    assert len(totals) == 1, totals
    return totals.pop()


@contextmanager
def read_all_the_while(lake: Path, spark: SparkSession) -> Iterator[set[Decimal]]:
    """Each reader in turn, again and again, until the block ends; yields the sums that they see."""
    states, over = set[Decimal](), Event()

    def read() -> None:
        while not over.is_set():
            states.update(total(str(lake), spark) for total in READERS)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            yield states
        finally:
            over.set()
        reading.result()


def test_a_table_of_a_plain_spark_job_is_adopted_corrected_rolled_back_and_given_back(
    lake: Path, spark: SparkSession, spark_settings: Settings, tmp_path: Path
) -> None:
    application = drafted(tmp_path, lake, spark_settings)
    before = seen(lake, spark)
    files = {file: file.stat().st_ino for file in lake.rglob("*.parquet")}
    wrong = sum(Decimal(10 + i % 7) for i in range(60 * ROWS, 63 * ROWS))

    baseline = application.adoption.adopt("orders", OnDisk(lake), "we take it over")
    assert baseline.days == tuple(DAYS)
    assert {file: file.stat().st_ino for file in lake.rglob("*.parquet") if "_shadow" not in str(file)} == files
    assert seen(lake, spark) == before

    refused = built(application, spark, "orders", WRONG)
    with pytest.raises(Exception, match="change_amount"):
        application.publisher.release(refused.id)
    application.ledger.move(refused.id, {UnitState.open}, UnitState.discarded)
    with read_all_the_while(lake, spark) as states:
        unit = built(application, spark, "orders", WRONG, {"amount": "+100%", "cents": "+100%"})
        release = application.publisher.release(unit.id).releases["orders"]
        assert seen(lake, spark) == before + wrong
        assert set(DeltaTable(lake).to_pyarrow_table().column_names) == {"day", "order_id", "amount", "note", "cents"}

        application.rollback.execute(release, "finance says no")
        assert seen(lake, spark) == before
        application.publisher.release(unit.id)
        assert seen(lake, spark) == before + wrong
    assert before in states
    assert states <= {before, before + wrong}

    spark.sql(f"OPTIMIZE delta.`{lake}` WHERE day = DATE'{WRONG[0]}'")
    spark.sql(f"DELETE FROM delta.`{lake}` WHERE order_id = 0")
    again = built(application, spark, "orders", WRONG[1:2])
    with pytest.raises(PreconditionError, match=r"another writer since its baseline.*adopt orders --again"):
        application.publisher.release(again.id)
    accepted = application.adoption.accept("orders", "a test order")
    assert DAYS[0] in accepted.days
    application.publisher.release(again.id)
    assert seen(lake, spark) == before + wrong - 10
    assert [str(found) for found in application.doctor.examine()] == []

    assert application.adoption.give_back("orders") == OnDisk(lake)
    spark.sql(f"INSERT INTO delta.`{lake}` (day, order_id, amount, note) VALUES (DATE'2024-08-01', -1, 3.00, 'new')")
    spark.sql(f"OPTIMIZE delta.`{lake}`")
    assert seen(lake, spark) == before + wrong - 10 + 3


def test_a_rule_of_the_table_that_the_new_rows_break_keeps_the_days_from_being_released(
    lake: Path, spark: SparkSession, spark_settings: Settings, tmp_path: Path
) -> None:
    application = drafted(tmp_path, lake, spark_settings)
    application.adoption.adopt("orders", OnDisk(lake), "we take it over")
    folder = tmp_path / "datasets" / "orders"
    fact = (
        (folder / "fact.sql")
        .read_text()
        .replace("note, cents\n", "concat(note, ' and more') AS note, cents + 1 AS cents\n")
    )
    (folder / "fact.sql").write_text(fact)
    application = OnTheTestServer(settings_of(tmp_path), spark_settings)
    with pytest.raises(Exception, match=r"(?s)(?=.*rule_generated_cents)(?=.*rule_length_note)"):
        publish(application, spark, "orders", WRONG)


def test_a_table_may_be_named_as_in_the_catalog_of_spark(
    lake: Path, spark: SparkSession, spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "DATASETS": str(tmp_path / "datasets"),
        "LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}",
        "WAREHOUSE": str(tmp_path / "warehouse"),
    }
    environ = engine_environment(spark_server.folder.root.parent)
    for name, value in (environ | {f"BACKFILL_ASSETS_{name}": value for name, value in own.items()}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "datasets").mkdir()
    words = ["adopt", "orders", "--key", "order_id", "--from"]
    unknown = CliRunner().invoke(app, [*words, "nobody.knows.it"]).exception
    assert "nobody.knows.it is neither a folder nor a table that Spark knows" in str(unknown)
    spark.sql("CREATE SCHEMA lake_of_a_team")
    spark.sql(f"CREATE TABLE lake_of_a_team.orders USING delta LOCATION '{lake}'")
    try:
        done = CliRunner().invoke(app, [*words, "lake_of_a_team.orders"])
    finally:
        spark.sql("DROP SCHEMA lake_of_a_team CASCADE")
    assert done.exception is None
    assert load_folder(tmp_path / "datasets").datasets["orders"].dataset.start == FIRST
