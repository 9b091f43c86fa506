"""Reference tables: small files that models join and checks refer to."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import Format, Reference
from backfill_assets.evidence.inputs import reference_file
from backfill_assets.lakehouse.road.files import headline, require_columns, spark_path
from backfill_assets.lakehouse.road.landing import headers_of, lines_of
from backfill_assets.lakehouse.road.records import CORRUPT, HEADER, typed_rows
from backfill_assets.lakehouse.road.spark_sql import struct_of
from backfill_assets.storage.layout import Layout


def reference_tables(spark: SparkSession, loaded: LoadedDataset, layout: Layout) -> dict[str, DataFrame]:
    """Every reference as a DataFrame with exactly its declared columns.

    A row that cannot be read as declared makes whatever uses the table fail.

    Raises:
        SourceError: a file is missing or has other columns than declared.
    """
    return {
        name: read_file(spark, reference, reference_file(loaded, layout, name), reference.path)
        for name, reference in loaded.dataset.references.items()
    }


def read_file(spark: SparkSession, reference: Reference, path: Path, shown: str) -> DataFrame:
    """One file as a DataFrame with exactly its declared columns; `shown` names it in errors.

    A row that cannot be read as declared makes whatever uses the frame fail.

    Raises:
        SourceError: the file has other columns than declared, or not even a header.
    """
    require_columns(path, shown, reference)
    if reference.format is Format.parquet:
        return spark.read.schema(struct_of(reference.columns)).parquet(spark_path(path)).select(*reference.columns)
    headers = headers_of(reference, {headline(path, shown): shown})
    header = F.lit(next(iter(headers))) if headers else F.lit(None).cast("binary")
    rows = typed_rows(lines_of(spark, reference, [path]).withColumn(HEADER, header), reference, headers)
    bad = F.concat(F.lit(f"{shown}: a row cannot be read as dataset.yaml declares it: "), F.col(CORRUPT))
    # A condition on rows is never left out, whatever columns are read.
    return rows.where(F.when(F.col(CORRUPT).isNull(), F.lit(True)).otherwise(F.raise_error(bad))).select(
        *reference.columns
    )
