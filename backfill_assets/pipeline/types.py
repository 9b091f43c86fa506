"""Declared types on Spark, and values with parts in its SQL: hashed, in one order, and compared part by part.

SQL text, not Spark's functions: its client cannot send expressions as deep as those for values with parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from backfill_assets.core.types import Array, Kind, Map, Plain, Struct, kind_of
from backfill_assets.pipeline.sql_text import literal, quoted

_TYPES: Final[Mapping[str, T.DataType]] = {
    "string": T.StringType(),
    "boolean": T.BooleanType(),
    "smallint": T.ShortType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "binary": T.BinaryType(),
}
_NAMES: Final = {spark.simpleString(): name for name, spark in _TYPES.items()}
_KEY: Final = "key"
_VALUE: Final = "value"
_ELEMENT: Final = None
"""The step from an array to each of its elements."""


def spark_type(declared: str) -> T.DataType:
    """Spark's type for one that `dataset.yaml` declares; all parts may be null."""
    return _spark(kind_of(declared))


def _spark(kind: Kind) -> T.DataType:
    match kind:
        case Plain():
            return T.DecimalType(kind.precision, kind.scale) if kind.name == "decimal" else _TYPES[kind.name]
        case Array():
            return T.ArrayType(_spark(kind.element))
        case Map():
            return T.MapType(_spark(kind.key), _spark(kind.value))
        case Struct():
            return T.StructType([T.StructField(name, _spark(own)) for name, own in kind.fields])


def declared_type(found: T.DataType) -> str:
    """A Spark type by its name in `dataset.yaml`, whether parts may be null or not; by Spark's own name if there is none."""
    match found:
        case T.ArrayType():
            return f"array<{declared_type(found.elementType)}>"
        case T.MapType():
            return f"map<{declared_type(found.keyType)},{declared_type(found.valueType)}>"
        case T.StructType():
            return f"struct<{','.join(f'{f.name}:{declared_type(f.dataType)}' for f in found.fields)}>"
        case _:
            return _NAMES.get(found.simpleString(), found.simpleString())


def struct_of(columns: Mapping[str, str]) -> T.StructType:
    """Spark's schema for declared columns; all nullable."""
    return T.StructType([T.StructField(name, spark_type(kind)) for name, kind in columns.items()])


def is_numeric(found: T.DataType) -> bool:
    """Whether a column can be summed."""
    return isinstance(found, T.NumericType)


def is_nested(found: T.DataType) -> bool:
    """Whether the values of a type have parts."""
    return isinstance(found, (T.ArrayType, T.MapType, T.StructType))


def ordered(column: str, kind: T.DataType) -> str:
    """The values with each map as an array of its entries by key: what Spark can sort, hash and compare."""
    return _Form().ordered(column, kind)


def hashable(column: str, kind: T.DataType) -> str:
    """The values in a form whose hashes are equal for equal values, and otherwise not, except by chance.

    Spark's hash does not change for a null, and is the same for `[[a], [b]]` and `[[a, b]]`: a flag stands before each part
    that may be null, and before the elements of each array their number.
    """
    return _Form().hashable(column, kind)


def in_one_form(column: str, kind: T.DataType) -> str:
    """The values, with those floats in one form that are equal in SQL but differ in bits: 0.0 and -0.0, and the kinds of NaN."""
    if not isinstance(kind, (T.FloatType, T.DoubleType)):
        return column
    name = kind.simpleString()
    return f"CASE WHEN {column} = 0 THEN {name}(0) WHEN isnan({column}) THEN {name}('NaN') ELSE {column} END"


class _Form:
    """Writes the SQL of one value in another form; names of variables are unique in it."""

    def __init__(self) -> None:
        self._names = (f"p{n}" for n in itertools.count())

    def ordered(self, column: str, kind: T.DataType) -> str:
        if not has_map(kind):
            return column
        match kind:
            case T.ArrayType():
                return self._each(column, lambda one: self.ordered(one, kind.elementType))
            case T.MapType():
                return self._each(self._entries(column), lambda one: self._ordered_entry(one, kind))
            case T.StructType():
                parts = (f"{literal(n)}, {self.ordered(part, own)}" for n, part, own in _fields(column, kind))
                return f"CASE WHEN {column} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
            case _:
                return column

    def _ordered_entry(self, one: str, kind: T.MapType) -> str:
        value = self.ordered(f"{one}.{_VALUE}", kind.valueType)
        return f"named_struct('{_KEY}', {one}.{_KEY}, '{_VALUE}', {value})"

    def hashable(self, column: str, kind: T.DataType) -> str:
        match kind:
            case T.ArrayType():
                elements = self._each(column, lambda one: self.hashable(one, kind.elementType))
                return f"struct(coalesce(size({column}), -1), {elements})"
            case T.MapType():
                values = self._each(self._entries(column), lambda one: self._entry(one, kind))
                return f"struct(coalesce(size({column}), -1), {values})"
            case T.StructType():
                parts = (self.hashable(part, own) for _, part, own in _fields(column, kind))
                return f"struct({column} IS NULL, {', '.join(parts)})"
            case _:
                return f"struct({column} IS NULL, {in_one_form(column, kind)})"

    def _entry(self, one: str, kind: T.MapType) -> str:
        return f"struct({one}.{_KEY}, {self.hashable(f'{one}.{_VALUE}', kind.valueType)})"

    def _entries(self, column: str) -> str:
        one, other = next(self._names), next(self._names)
        left, right = f"{one}.{_KEY}", f"{other}.{_KEY}"
        order = f"CASE WHEN {left} < {right} THEN -1 WHEN {left} > {right} THEN 1 ELSE 0 END"
        return f"array_sort(map_entries({column}), ({one}, {other}) -> {order})"

    def _each(self, array: str, then: Callable[[str], str]) -> str:
        name = next(self._names)
        return f"transform({array}, {name} -> {then(name)})"


def _fields(column: str, kind: T.StructType) -> Iterator[tuple[str, str, T.DataType]]:
    for field in kind.fields:
        yield field.name, f"{column}.{quoted(field.name)}", field.dataType


def has_map(kind: T.DataType) -> bool:
    """Whether the values of a type have maps in them: Spark neither compares nor sorts these."""
    match kind:
        case T.MapType():
            return True
        case T.ArrayType():
            return has_map(kind.elementType)
        case T.StructType():
            return any(has_map(f.dataType) for f in kind.fields)
        case _:
            return False


def key_twice(column: str, kind: T.DataType) -> str:
    """SQL that says whether a map in the values has a key twice, as files may; empty if the type has no map."""
    if not has_map(kind):
        return ""
    match kind:
        case T.ArrayType():
            return _any(column, kind.elementType)
        case T.MapType():
            keys = f"map_keys({column})"
            own = f"coalesce(size({keys}) <> size(array_distinct({keys})), false)"
            return f"({own} OR {_any(f'map_values({column})', kind.valueType)})" if has_map(kind.valueType) else own
        case T.StructType():
            return " OR ".join(filter(None, (key_twice(part, own) for _, part, own in _fields(column, kind))))
        case _:
            return ""


def _any(array: str, kind: T.DataType) -> str:
    # The name is that of the inner one also in deeper calls: each names only its own.
    return f"coalesce(exists({array}, one -> {key_twice('one', kind)}), false)"


@dataclass(frozen=True)
class Leaf:
    """A part of a column that has no parts itself: its path, such as `items.element.price`, its type, and the way to it.

    For a map, the way leads through its entries in the order of their keys.
    """

    path: str
    kind: T.DataType
    way: tuple[str | None, ...] = ()

    def shown_in(self, column: str) -> str:
        """The leaf of each value, as in `ordered`, as text: in brackets those of all elements of an array, or entries of a map."""
        return _shown(column, self.way, self.kind)

    def differs(self, old: str, new: str, differ: Callable[[str, str], str]) -> str:
        """Whether two values, as in `ordered`, differ in this leaf or on the way to it; never null if `differ` is not."""
        return _apart(old, new, self.way, differ)


def leaves_of(name: str, kind: T.DataType) -> tuple[Leaf, ...]:
    """The leaves of a column; one without parts is its own leaf."""
    return tuple(_leaves(name, kind))


def _leaves(path: str, kind: T.DataType) -> Iterator[Leaf]:
    match kind:
        case T.ArrayType():
            yield from _below(_ELEMENT, _leaves(f"{path}.element", kind.elementType))
        case T.MapType():
            for step, own in ((_KEY, kind.keyType), (_VALUE, kind.valueType)):
                yield from _below(_ELEMENT, _below(step, _leaves(f"{path}.{step}", own)))
        case T.StructType():
            for field in kind.fields:
                yield from _below(field.name, _leaves(f"{path}.{field.name}", field.dataType))
        case _:
            yield Leaf(path, kind)


def _below(step: str | None, leaves: Iterator[Leaf]) -> Iterator[Leaf]:
    return (replace(leaf, way=(step, *leaf.way)) for leaf in leaves)


def _shown(column: str, way: tuple[str | None, ...], kind: T.DataType) -> str:
    if not way:
        return f"lower(hex({column}))" if isinstance(kind, T.BinaryType) else f"cast({column} AS string)"
    step, rest = way[0], way[1:]
    if step is not _ELEMENT:
        return _shown(f"{column}.{quoted(step)}", rest, kind)
    one = f"e{len(way)}"
    elements = f"transform({column}, {one} -> {_shown(one, rest, kind)})"
    return f"concat('[', array_join({elements}, ', ', 'null'), ']')"


def _apart(old: str, new: str, way: tuple[str | None, ...], differ: Callable[[str, str], str]) -> str:
    if not way:
        return differ(old, new)
    step, rest = way[0], way[1:]
    one_is_null = f"({old} IS NULL) <> ({new} IS NULL)"
    if step is not _ELEMENT:
        return f"({one_is_null} OR {_apart(f'{old}.{quoted(step)}', f'{new}.{quoted(step)}', rest, differ)})"
    left, right = f"l{len(way)}", f"r{len(way)}"
    pairs = f"zip_with({old}, {new}, ({left}, {right}) -> {_apart(left, right, rest, differ)})"
    within = f"coalesce(exists({pairs}, {left} -> {left}), false)"
    return f"({one_is_null} OR NOT (size({old}) <=> size({new})) OR {within})"


def parts_of(value: Any) -> Any:
    """A value with parts that Spark's client returned, with plain lists and mappings in it; other values as they are."""
    match value:
        case Row():
            return {name: parts_of(own) for name, own in value.asDict().items()}
        case dict():
            return {key: parts_of(own) for key, own in sorted(value.items())}
        case list():
            return [parts_of(own) for own in value]
        case _:
            return value
