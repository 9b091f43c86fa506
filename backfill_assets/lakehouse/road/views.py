"""Views: the names by which consumers read published tables in Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.catalog import LoadedDataset
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road.spark_sql import quoted
from backfill_assets.lakehouse.road.tables import is_table, read_table

DATABASE: Final = "published"
"""The database in Spark's catalog that holds the published views."""


def ensure_views(spark: SparkSession, datasets: Iterable[LoadedDataset], layout: Layout) -> None:
    """Create or renew the view of every dataset that has a published table: its business columns, nothing else.

    A declared column that the table does not have yet appears once a release has brought it.
    """
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(DATABASE)}")
    for loaded in datasets:
        path = layout.published_path(loaded.name)
        if not is_table(path):
            continue
        there = read_table(spark, path).columns
        columns = ", ".join(quoted(name) for name in loaded.dataset.columns if name in there)
        name = f"{quoted(DATABASE)}.{quoted(loaded.name)}"
        spark.sql(f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM delta.{quoted(str(path))}")
