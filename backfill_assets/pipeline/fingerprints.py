"""Content fingerprints: equal for equal rows, whatever their order and their files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.reading import is_table
from backfill_assets.pipeline.tables import OnSpark, read_days, spark_type

_SUM: Final = "fingerprint:sum"
_XOR: Final = "fingerprint:xor"
_ROWS: Final = "fingerprint:rows"
_MASK: Final = (1 << 64) - 1


class SparkFingerprints(OnSpark):
    """The port `ContentFingerprints` on the published tables."""

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Fingerprints of the published days, as in `Side.fingerprint`: empty for a day without rows."""
        none = dict.fromkeys(days, "")
        loaded = self.datasets[dataset]
        path = self.layout.published_path(dataset)
        if not days or not is_table(path):
            return none
        with self.opened(f"fingerprints {dataset}") as spark:
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
    hashed = hash_of(dataset, *sorted(dataset.columns))
    return [
        F.count("*").alias(_ROWS),
        # A sum of 64-bit numbers overflows 64 bits, which Spark refuses.
        F.sum(hashed.cast(T.DecimalType(38, 0))).alias(_SUM),
        F.bit_xor(hashed).alias(_XOR),
    ]


def fingerprint_of(row: Row | Mapping[str, Any]) -> str:
    """The fingerprint of a group: number of rows, and sum and exclusive-or of their hashes."""
    return f"{row[_ROWS]}:{int(row[_SUM])}:{row[_XOR] & _MASK:016x}"


def hash_of(dataset: Dataset, *names: str) -> Column:
    """The hash of some declared columns of a row, equal for values that are equal."""
    # A null leaves Spark's hash as it was: without the flags (null, a) and (a, null) would be equal.
    flags = [F.col(name).isNull() for name in names]
    return F.xxhash64(*flags, *(_normal(F.col(name), dataset.columns[name].type) for name in names))


def _normal(column: Column, declared: str) -> Column:
    if declared not in ("float", "double"):
        return column
    # Equal to SQL, but not in their bits: 0.0 and -0.0, and the many kinds of NaN.
    zero = F.when(column == 0, F.lit(0.0).cast(declared))
    return zero.when(F.isnan(column), F.lit(float("nan")).cast(declared)).otherwise(column)
