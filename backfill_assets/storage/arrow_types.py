"""Arrow's types of declared columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from backfill_assets.core.types import Array, Kind, Map, Plain, Struct

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(), "boolean": pa.bool_(), "smallint": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"), "binary": pa.binary(),
}  # fmt: skip


def arrow_type(kind: Kind) -> pa.DataType:
    """The type in which Arrow holds the values of a declared type, all of them and nothing else."""
    match kind:
        case Plain():
            return pa.decimal128(kind.precision, kind.scale) if kind.name == "decimal" else _PLAIN[kind.name]
        case Array():
            return pa.list_(arrow_type(kind.element))
        case Map():
            return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
        case Struct():
            return pa.struct([(name, arrow_type(own)) for name, own in kind.fields])
