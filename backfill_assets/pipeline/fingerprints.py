"""Fingerprints: equal for groups with equal rows, in whatever order these are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.types import hashable, in_one_form, is_nested, spark_type

_SUM: Final = "fingerprint:sum"
_XOR: Final = "fingerprint:xor"
_ROWS: Final = "fingerprint:rows"
_MASK: Final = (1 << 64) - 1


def fingerprint_columns(types: Mapping[str, str]) -> list[Column]:
    """Aggregates over columns of declared types from which `fingerprint_of` makes the fingerprint of a group."""
    hashed = hash_of(types, *sorted(types))
    return [
        F.count("*").alias(_ROWS),
        # A sum of 64-bit numbers can overflow 64 bits, which Spark refuses.
        F.sum(hashed.cast(T.DecimalType(38, 0))).alias(_SUM),
        F.bit_xor(hashed).alias(_XOR),
    ]


def fingerprint_of(row: Row | Mapping[str, Any]) -> str:
    """The fingerprint of a group: number of rows, sum and exclusive-or of their hashes."""
    return f"{row[_ROWS]}:{int(row[_SUM])}:{row[_XOR] & _MASK:016x}"


def hash_of(types: Mapping[str, str], *names: str) -> Column:
    """The hash of some columns of a row, given their declared types; equal values have equal hashes."""
    # A null does not change Spark's hash: without the flags, (null, a) and (a, null) would be equal.
    flags = [F.col(name).isNull() for name in names]
    return F.xxhash64(*flags, *(F.expr(_hashed(quoted(name), spark_type(types[name]))) for name in names))


def _hashed(column: str, kind: T.DataType) -> str:
    return hashable(column, kind) if is_nested(kind) else in_one_form(column, kind)
