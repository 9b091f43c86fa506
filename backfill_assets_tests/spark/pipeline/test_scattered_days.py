"""Days that are scattered over years are read and replaced like any others, and no other day is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.core.days import day_range
from backfill_assets.pipeline.tables import days_condition, in_days, read_days, write_days
from backfill_assets.storage.disk import OnDisk

FIRST = dt.date(2024, 1, 1)
ALL = day_range(FIRST, FIRST + dt.timedelta(days=79))
SCATTERED = ALL[::3]


def rows(spark: SparkSession, days: tuple[dt.date, ...], amount: int) -> DataFrame:
    return spark.createDataFrame([(day, amount) for day in days], "day date, amount int")


def test_scattered_days_are_replaced_and_read_and_no_other_day(spark: SparkSession, tmp_path: Path) -> None:
    place = OnDisk(tmp_path / "table")
    write_days(rows(spark, ALL, 1), place, "day", ALL)
    # A day without rows becomes empty.
    written = write_days(rows(spark, SCATTERED[1:], 2), place, "day", SCATTERED)
    assert written.keys() == set(SCATTERED)
    found = {row.day: row.amount for row in spark.read.format("delta").load(str(place)).collect()}
    assert found == {day: 2 if day in SCATTERED else 1 for day in ALL if day != SCATTERED[0]}
    read = {row.day for row in read_days(spark, place, "day", [*SCATTERED, *SCATTERED]).collect()}
    assert read == set(SCATTERED[1:])


@pytest.mark.parametrize("days", [SCATTERED[:5], SCATTERED, ALL], ids=["some", "scattered", "a range"])
def test_a_row_is_of_these_days_or_of_others_and_one_without_a_day_is_of_neither(
    spark: SparkSession, days: tuple[dt.date, ...]
) -> None:
    frame = spark.createDataFrame([(day, f"{day}") for day in ALL] + [(None, None)], "day date, text string")
    assert [row.day for row in frame.where(in_days("day", days)).orderBy("day").collect()] == list(days)
    assert [row.day for row in frame.where(~in_days("day", days)).orderBy("day").collect()] == [
        day for day in ALL if day not in days
    ]
    of_text = frame.where(days_condition("text", days, "'{}'")).orderBy("day")
    assert [row.day for row in of_text.collect()] == list(days)
