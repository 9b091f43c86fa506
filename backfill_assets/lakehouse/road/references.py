"""Reference tables: small files that models join and checks refer to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.errors import SourceError
from backfill_assets.domain.files import Format, Reference
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road.files import columns_in, csv_options, positional, read_from, sha256_of, spark_path
from backfill_assets.lakehouse.road.spark_sql import struct_of


def reference_fingerprints(loaded: LoadedDataset, layout: Layout) -> Mapping[str, str]:
    """SHA-256 of every reference file by the reference's name; needs no Spark.

    Raises:
        SourceError: a file is missing, or vanishes meanwhile.
    """
    return {name: _fingerprint(_file(loaded, layout, name), name) for name in loaded.dataset.references}


def reference_tables(spark: SparkSession, loaded: LoadedDataset, layout: Layout) -> dict[str, DataFrame]:
    """Every reference as a DataFrame with exactly its declared columns.

    A row that cannot be read as declared makes whatever uses the table fail.

    Raises:
        SourceError: a file is missing or has other columns than declared.
    """
    return {
        name: read_file(spark, reference, _file(loaded, layout, name), reference.path)
        for name, reference in loaded.dataset.references.items()
    }


def _fingerprint(file: Path, name: str) -> str:
    with read_from(f"the file of reference {name}"):
        return sha256_of(file)


def _file(loaded: LoadedDataset, layout: Layout, name: str) -> Path:
    relative = loaded.dataset.references[name].path
    path = layout.source_file(relative)
    if not path.is_file():
        raise SourceError(
            f"{loaded.name}: the file of reference {name}, {relative}, is not in {layout.sources}; "
            f"put it there, or correct references.{name}.path in dataset.yaml"
        )
    return path


def read_file(spark: SparkSession, reference: Reference, path: Path, shown: str) -> DataFrame:
    """One file as a DataFrame with exactly its declared columns; `shown` names it in errors.

    A row that cannot be read as declared makes whatever uses the frame fail.

    Raises:
        SourceError: the file has other columns than declared.
    """
    order = columns_in(path, shown, reference)
    reader = spark.read.option("mode", "FAILFAST")
    declared = struct_of(reference.columns)
    match reference.format:
        case Format.csv:
            schema = positional(reference, order) if order else declared
            frame = reader.options(**csv_options(reference.csv)).schema(schema).csv(spark_path(path))
        case Format.jsonl:
            frame = reader.schema(declared).json(spark_path(path))
        case Format.parquet:
            frame = reader.schema(declared).parquet(spark_path(path))
    return frame.select(*reference.columns)
