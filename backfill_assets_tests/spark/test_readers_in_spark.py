"""The examples of docs/readers.md that need Spark find the same as the readers without Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.unit.delta.flights import Flights
from backfill_assets_tests.unit.delta.test_readers import AFTER, BEFORE, MARCH, code, correct, shell


@pytest.fixture
def flights(
    spark_server: SparkServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flights]:
    flights = Flights(tmp_path_factory.mktemp("readers"), spark_server.folder.root.parent)
    correct(flights)
    yield flights
    spark.sql("DROP VIEW IF EXISTS published.flights")
    shutil.rmtree(flights.home)


def rows(printed: str) -> dict[str, tuple[int, int]]:
    """The rows of a printed table: carrier, departures, seat miles."""
    found = re.findall(r"^\W*(\w\w)\W+(\d+)\W+(\d+)\W*$", printed, re.MULTILINE)
    return {carrier: (int(departures), int(miles)) for carrier, departures, miles in found}


def test_spark_sql_finds_the_newest_rows_and_those_of_a_release(flights: Flights) -> None:
    (variables,) = code("As it was after a release", "console")
    newest, older = code("Spark SQL", "console")
    for example, expected in ((newest, AFTER), (older, BEFORE)):
        printed = shell(flights, f"{variables}\nRESULT=$({example}\n)\nexport RESULT")["RESULT"]
        assert rows(printed) == expected


def test_the_view_has_business_columns_only(flights: Flights, spark: SparkSession) -> None:
    flights.application.refresh_views()
    assert spark.table("published.flights").columns == list(flights.dataset.columns)
    audit = set(spark.read.format("delta").load(str(flights.home)).columns) - set(flights.dataset.columns)
    assert audit == {"recalculated_at", "unit", "code_version"}
    assert spark.table("published.flights").where(f"flight_date = '{MARCH[3]}'").count() == 2


def test_many_processes_that_renew_the_views_together_do_not_disturb_each_other(
    flights: Flights, spark: SparkSession
) -> None:
    for _ in range(3):
        spark.sql("DROP VIEW IF EXISTS published.flights")
        with ThreadPoolExecutor(4) as people:
            renewed = [people.submit(flights.application.refresh_views) for _ in range(4)]
        assert [one.exception() for one in renewed] == [None] * 4
        assert spark.table("published.flights").where(f"flight_date = '{MARCH[3]}'").count() == 2
