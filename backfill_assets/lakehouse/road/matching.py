"""Mark rows whose reference is unknown, inside the pass that reads them anyway."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.dataset.checks import ReferenceCheck
from backfill_assets.dataset.definition import Dataset


def with_matches(frame: DataFrame, dataset: Dataset, references: Mapping[str, DataFrame]) -> DataFrame:
    """The frame with one hidden column per reference check, null where no match was found; no row more or less."""
    for name, check in dataset.checks.references.items():
        known = [F.col(to).alias(f"_{name}_{i}") for i, to in enumerate(check.to)]
        keys = references[check.reference].select(*known).distinct().dropna()
        same = [frame[own] == keys[f"_{name}_{i}"] for i, own in enumerate(check.columns)]
        marked = keys.withColumn(_mark(name), F.expr("true"))
        frame = frame.join(F.broadcast(marked), reduce(Column.__and__, same), "left")
    return frame


def is_checked(check: ReferenceCheck) -> Column:
    """Whether a row refers to anything: all of its columns are set."""
    return reduce(Column.__and__, [F.col(name).isNotNull() for name in check.columns])


def is_unmatched(name: str, check: ReferenceCheck) -> Column:
    """Whether a row of `with_matches` refers to something that is not there."""
    return is_checked(check) & F.col(_mark(name)).isNull()


def _mark(name: str) -> str:
    return f"_match_{name}"
