"""Consumers' queries, run on the table as it is or as it was."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.errors import DatasetError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import Figures
from backfill_assets.lakehouse.road.fingerprint import with_declared_columns
from backfill_assets.lakehouse.road.on_spark import OnSpark
from backfill_assets.lakehouse.road.spark_sql import figure, is_numeric, renamed
from backfill_assets.storage.layout import Layout


class SparkConsumers(OnSpark):
    """The port `ConsumerQueries` on the published tables."""

    def figures(self, dataset: str, versions: Sequence[int], through: dt.date) -> Mapping[int, Mapping[str, Figures]]:
        """By version and consumer the figures of its query, over the days up to `through`.

        Raises:
            DatasetError: a query of dataset.yaml fails, or returns other than one row of numbers.
        """
        loaded = self.datasets[dataset]
        with self.opened(f"consumers {dataset}") as spark:
            return {
                version: consumer_figures(spark, loaded, self.layout, version, through)
                for version in dict.fromkeys(versions)
            }


def consumer_figures(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, version: int, through: dt.date
) -> Mapping[str, Figures]:
    """The figures of every consumer at one version of the published table, which goes by the dataset's name.

    Raises:
        DatasetError: a query fails, or returns other than one row of numbers.
    """
    dataset, path = loaded.dataset, layout.published_path(loaded.name)
    table = spark.read.format("delta").option("versionAsOf", version).load(str(path))
    known = with_declared_columns(table, dataset).select(*dataset.columns)
    known.where(F.col(dataset.partition_column) <= F.lit(through)).createOrReplaceTempView(loaded.name)
    figures = {}
    for name, consumer in dataset.consumers.items():
        where = f"{loaded.folder / 'dataset.yaml'}: consumers.{name}.sql"
        with renamed(DatasetError, where):
            figures[name] = _one_row(spark.sql(consumer.sql), where)
    return figures


def _one_row(frame: DataFrame, where: str) -> Figures:
    other = [field.name for field in frame.schema.fields if not is_numeric(field.dataType)]
    if other:
        raise DatasetError(f"{where}: column {other[0]!r} is no number; return numbers only")
    rows = frame.limit(2).collect()
    if len(rows) != 1:
        found = "no row" if not rows else "several rows"
        raise DatasetError(
            f"{where}: returns {found}; a consumer's query returns one row, such as SELECT sum(amount) …"
        )
    return {name: figure(value) for name, value in rows[0].asDict().items()}
