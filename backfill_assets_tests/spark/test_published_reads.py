"""A shadow written by Spark, published by delta-rs: every reader finds the same rows, filtered or not."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from backfill_assets.dataset.consistency import AUDIT_COLUMNS
from backfill_assets.delta.table import PublishedTable
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.engine import engine_settings
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.tables import ARROW, dataset, day, layout, publish
from backfill_assets_tests.unit.delta.every_type import TYPES, VALUES, every_type, probes

ALL = {**TYPES, **AUDIT_COLUMNS}
DAYS = [day(i) for i in range(12)]
COLUMNS = [*VALUES, "recalculated_at"]
SPARK_TYPES = {"integer": "int", "long": "bigint"}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.fixture(scope="module")
def published(spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All types, through Parquet and Spark into a shadow, and from there into a published table."""
    folder = tmp_path_factory.mktemp("published_reads")
    home = path_of(layout(folder).published_path("sales"))
    source = folder / "rows.parquet"
    pq.write_table(every_type(), source)
    settings = engine_settings(spark_server.folder.root.parent)
    with open_session(settings, "published_reads") as session:
        rows = session.read.parquet(str(source))
        rows = rows.select([col(c).cast(SPARK_TYPES.get(t, t)).alias(c) for c, t in ALL.items()])
        writer = rows.repartition("day").write.format("delta").partitionBy("day").mode("append")
        writer.save(str(home / "_shadow" / "u" / "1"))
    table = PublishedTable(layout(folder), dataset(columns=TYPES), FixedClock())
    publish(table, "_shadow/u/1", DAYS, "r")
    table.seal("_shadow/u/1")
    return home


@pytest.fixture(scope="module")
def through_spark(spark_server: SparkServer, published: Path) -> pa.Table:
    """All rows that Spark reads from the published table, without a filter."""
    with open_session(engine_settings(spark_server.folder.root.parent), "all published_reads") as session:
        return session.read.format("delta").load(str(published)).toArrow()


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def test_the_shadow_of_spark_has_the_bounds_that_are_left_out(published: Path) -> None:
    log = (published / "_shadow/u/1/_sealed_log" / f"{0:020}.json").read_text()
    assert "minValues" in log
    commits = sorted((published / "_delta_log").glob("*.json"))
    assert not any("minValues" in commit.read_text() for commit in commits)
    assert "numRecords" in commits[-1].read_text()


@pytest.mark.parametrize("column", COLUMNS)
def test_pyarrow_and_polars_find_the_same_rows(published: Path, column: str) -> None:
    lazy, eager = DeltaTable(published).to_pyarrow_dataset(), DeltaTable(published).to_pyarrow_table()
    scanned = pl.read_delta(str(published))
    for name, sign, value in probes():
        if name == column:
            wanted = OPERATORS[sign](ds.field(column), pa.scalar(value, ARROW[ALL[column]]))
            assert ids(lazy.to_table(filter=wanted)) == ids(eager.filter(wanted)), (sign, value)
            over = OPERATORS[sign](pl.col(column), pl.lit(value, dtype=scanned.schema[column]))
            found = pl.scan_delta(str(published)).filter(over).collect()
            assert sorted(found["id"]) == sorted(scanned.filter(over)["id"]), (sign, value)


@pytest.mark.parametrize("column", COLUMNS)
def test_spark_finds_the_same_rows(spark: SparkSession, published: Path, through_spark: pa.Table, column: str) -> None:
    frame = spark.read.format("delta").load(str(published))
    kind = SPARK_TYPES.get(ALL[column], ALL[column])
    # A wrong bound hides exactly its value first; one query has all filters, because listing files costs most.
    mine = [(sign, value) for name, sign, value in probes() if name == column and sign in {"==", ">="}]
    branches = [
        frame.where(OPERATORS[sign](col(column), lit(value).cast(kind))).select("id", lit(i).alias("probe"))
        for i, (sign, value) in enumerate(mine)
    ]
    found = reduce(DataFrame.unionAll, branches).toArrow()
    unfiltered = through_spark.select(["id", column]).to_pylist()
    for i, (sign, value) in enumerate(mine):
        probe = pa.scalar(value, ARROW[ALL[column]]).as_py()
        expected = [
            row["id"]
            for row in unfiltered
            if row[column] is not None and OPERATORS[sign](_ordered(row[column]), _ordered(probe))
        ]
        assert sorted(found.filter(ds.field("probe") == i)["id"].to_pylist()) == sorted(expected), (sign, value)


def _ordered(value: object) -> object:
    """For Spark, NaN is equal to itself and greater than anything else."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


@pytest.mark.parametrize("column", COLUMNS)
def test_all_readers_see_the_values_that_went_in(published: Path, through_spark: pa.Table, column: str) -> None:
    written = dict(zip(every_type()["id"].to_pylist(), every_type()[column].to_pylist(), strict=True))
    through_arrow = DeltaTable(published).to_pyarrow_table(columns=["id", column])
    through_polars = pl.read_delta(str(published), columns=["id", column]).to_arrow()
    for read in (through_spark, through_arrow, through_polars):
        found = dict(zip(read["id"].to_pylist(), read[column].to_pylist(), strict=True))
        assert {k: repr(_read_back(v)) for k, v in found.items()} == {
            k: repr(_read_back(v)) for k, v in written.items()
        }


def test_spark_reads_the_published_table_after_a_column_was_added(spark: SparkSession, tmp_path: Path) -> None:
    home = path_of(layout(tmp_path).published_path("sales"))
    for attempt, new in ((1, ""), (2, "'late' AS delay,")):
        rows = spark.sql(
            f"SELECT id, DATE'2026-01-01' AS day, id AS amount, {new} TIMESTAMP'2026-01-01 00:00:00' AS recalculated_at, "
            "'u' AS unit, 'c' AS code_version FROM range(3)"
        )
        rows.write.format("delta").partitionBy("day").save(str(home / f"_shadow/u/{attempt}"))
    columns = {"id": "long", "day": "date", "amount": "long"}
    publish(PublishedTable(layout(tmp_path), dataset(columns=columns), FixedClock()), "_shadow/u/1", [day(0)], "r_1")
    wider = PublishedTable(layout(tmp_path), dataset(columns={**columns, "delay": "string"}), FixedClock())
    before = spark.read.format("delta").load(str(home)).count()
    publish(wider, "_shadow/u/2", [day(0)], "r_2")
    after = spark.read.format("delta").load(str(home)).select("delay").toArrow()["delay"].to_pylist()
    assert (before, after) == (3, ["late"] * 3)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{home}`").select("userMetadata").toArrow()["userMetadata"].to_pylist()
    assert [bool(text and '"release": "r_' in text) for text in history] == [True, False, True, False]


def _read_back(value: object) -> object:
    """Python shows the time zone that the reader used; only the moment counts."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value
