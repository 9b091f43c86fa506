"""Content fingerprints: equal for equal rows, whatever their order and their files."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.dataset import Dataset
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road.spark_sql import spark_type
from backfill_assets.lakehouse.road.tables import is_table, read_days

_SUM: Final = "fingerprint:sum"
_XOR: Final = "fingerprint:xor"
_ROWS: Final = "fingerprint:rows"
_MASK: Final = (1 << 64) - 1


class SparkFingerprints:
    """The port `ContentFingerprints` on the published tables."""

    def __init__(
        self,
        session: Callable[[str], AbstractContextManager[SparkSession]],
        datasets: Mapping[str, LoadedDataset],
        layout: Layout,
    ) -> None:
        self._session = session
        self._datasets = datasets
        self._layout = layout

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Fingerprints of the published days, as in `Side.fingerprint`: empty for a day without rows."""
        none = dict.fromkeys(days, "")
        loaded = self._datasets[dataset]
        path = self._layout.published_path(dataset)
        if not days or not is_table(path):
            return none
        # A tag of this thread's own: a session's newer namesake would end it.
        with self._session(f"fingerprints {dataset} {os.getpid()} {threading.get_ident()}") as spark:
            partition = loaded.dataset.partition_column
            frame = with_declared_columns(read_days(spark, path, partition, days), loaded.dataset)
            rows = frame.groupBy(partition).agg(*fingerprint_columns(loaded.dataset)).collect()
        return none | {row[partition]: fingerprint_of(row) for row in rows}


def with_declared_columns(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The frame with every declared column: one that a table lacks is all null, as readers will see it once added."""
    lacking = {
        name: F.lit(None).cast(spark_type(column.type))
        for name, column in dataset.columns.items()
        if name not in frame.columns
    }
    return frame.withColumns(lacking) if lacking else frame


def fingerprint_columns(dataset: Dataset) -> list[Column]:
    """Aggregates over the business columns from which `fingerprint_of` makes the fingerprint of a group."""
    names = sorted(dataset.columns)
    # A null leaves Spark's hash as it was: without the flags (null, a) and (a, null) would be equal.
    flags = [F.col(name).isNull() for name in names]
    hashed = F.xxhash64(*flags, *(normal(F.col(name), dataset.columns[name].type) for name in names))
    return [
        F.count("*").alias(_ROWS),
        # A sum of 64-bit numbers overflows 64 bits, which Spark refuses.
        F.sum(hashed.cast(T.DecimalType(38, 0))).alias(_SUM),
        F.bit_xor(hashed).alias(_XOR),
    ]


def fingerprint_of(row: Row) -> str:
    """The fingerprint of a group: number of rows, and sum and exclusive-or of their hashes."""
    return f"{row[_ROWS]}:{int(row[_SUM])}:{row[_XOR] & _MASK:016x}"


def normal(column: Column, declared: str) -> Column:
    """A column of a declared type, with one bit pattern for values that are equal."""
    if declared not in ("float", "double"):
        return column
    # Equal to SQL, but not in their bits: 0.0 and -0.0, and the many kinds of NaN.
    zero = F.when(column == 0, F.lit(0.0).cast(declared))
    return zero.when(F.isnan(column), F.lit(float("nan")).cast(declared)).otherwise(column)
