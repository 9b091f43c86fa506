"""Compare: two frames in, the rows that differ out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.expected_change import ROUNDING

STATUS: Final = "_status"
"""What happened to a row: `ADDED`, `REMOVED` or `CHANGED`."""
COLUMNS: Final = "_columns"
"""The compared columns in which a changed row differs; empty for rows that only one side has."""
ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"

_NUMBER: Final = "_number"
_MARK: Final = "_there"
_FLOAT_STEP: Final = 2.0**-23


@dataclass(frozen=True)
class Shape:
    """What is compared, matched by what: the day column, which is part of the key, the key, and the other columns.

    `columns` gives the absolute difference up to which two numbers count as equal; 0 is exact, and so is every column that
    holds no numbers. Floats may differ by `rounding_of` as well, unless they are compared `to_the_bit`.
    """

    partition: str
    key: tuple[str, ...]
    columns: Mapping[str, Decimal]
    to_the_bit: bool = False

    @property
    def match(self) -> tuple[str, ...]:
        """The columns that rows are matched by: the day and the key."""
        return tuple(dict.fromkeys((self.partition, *self.key)))


def old_column(name: str) -> str:
    """The column of `differing` that holds the old value of a compared column."""
    return f"old:{name}"


def new_column(name: str) -> str:
    """The column of `differing` that holds the new value of a compared column."""
    return f"new:{name}"


def is_float(kind: T.DataType) -> bool:
    """Whether a type holds floating-point numbers."""
    return isinstance(kind, (T.FloatType, T.DoubleType))


def rounding_of(kind: T.DataType) -> float:
    """The share of its value by which a number of a type may be off without anybody having changed it.

    `ROUNDING`, for sums of doubles depend on the order; of a `float`, which has fewer digits, that of its last bit.
    """
    return _FLOAT_STEP if isinstance(kind, T.FloatType) else float(ROUNDING)


def differing(old: DataFrame, new: DataFrame, shape: Shape, *, numbered: bool = False) -> DataFrame:
    """The rows in which two frames differ: day and key, `STATUS`, `COLUMNS`, and of each compared column both values.

    Rows are matched by day and key, nulls included; values differ as in SQL's `IS DISTINCT FROM`, but for what the shape
    lets pass; NaN equals NaN and -0.0 equals 0.0. Where a key occurs several times each row meets each of its namesakes,
    unless the rows of a key are `numbered` in the order of their values, which matches each row at most once and costs a
    sort. Both frames must have all columns of the shape, with equal types.
    """
    return matched(old, new, shape, numbered=numbered).where(F.col(STATUS).isNotNull())


def matched(old: DataFrame, new: DataFrame, shape: Shape, *, numbered: bool = False) -> DataFrame:
    """The rows of `differing`, and those that are equal, whose `STATUS` is null."""
    left, right = (_side(frame, shape, side, numbered=numbered) for frame, side in ((old, "old"), (new, "new")))
    match = [*shape.match, _NUMBER] if numbered else list(shape.match)
    condition = reduce(Column.__and__, (F.col(old_column(name)).eqNullSafe(F.col(new_column(name))) for name in match))
    types = {field.name: field.dataType for field in old.schema.fields}
    differ = {name: _differs(name, types[name], shape) for name in shape.columns}
    names = [F.when(is_other, name).otherwise("") for name, is_other in differ.items()]
    # Not `array_compact`, which Spark does not compile.
    changed = F.array_remove(F.array(*names), "") if names else F.array().cast("array<string>")
    was, comes = F.col(old_column(_MARK)), F.col(new_column(_MARK))
    status = (
        F.when(was.isNull(), ADDED)
        .when(comes.isNull(), REMOVED)
        .when(reduce(Column.__or__, differ.values(), F.lit(False)), CHANGED)
    )
    nothing = F.array().cast("array<string>")
    return left.join(right, condition, "full_outer").select(
        # A row of one side alone has its key there alone; of the other side all is null.
        *(F.when(was.isNull(), F.col(new_column(n))).otherwise(F.col(old_column(n))).alias(n) for n in shape.match),
        status.alias(STATUS),
        F.when(status == CHANGED, changed).otherwise(nothing).alias(COLUMNS),
        *(F.col(old_column(name)) for name in shape.columns),
        *(F.col(new_column(name)) for name in shape.columns),
    )


def _side(frame: DataFrame, shape: Shape, side: str, *, numbered: bool) -> DataFrame:
    wanted = tuple(dict.fromkeys((*shape.match, *shape.columns)))
    columns = {name: F.col(name) for name in wanted} | {_MARK: F.lit(True)}
    if numbered:
        order = [F.col(name) for name in shape.columns] or [F.lit(0)]
        columns[_NUMBER] = F.row_number().over(Window.partitionBy(*shape.match).orderBy(*order))
    return frame.select(*(column.alias(f"{side}:{name}") for name, column in columns.items()))


def _differs(name: str, kind: T.DataType, shape: Shape) -> Column:
    old, new, tolerance = F.col(old_column(name)), F.col(new_column(name)), shape.columns[name]
    distinct = ~old.eqNullSafe(new)
    if not isinstance(kind, T.NumericType) or not (tolerance or is_float(kind)):
        return distinct
    # In numbers that cannot overflow.
    if is_float(kind):
        old, new = old.cast("double"), new.cast("double")
        larger = F.greatest(F.abs(old), F.abs(new))
        slack = F.lit(float(tolerance)) + larger * F.lit(0.0 if shape.to_the_bit else rounding_of(kind))
        # To Spark, NaN is above infinity: neither is near to anything else.
        near = (larger < F.lit(float("inf"))) & (F.abs(old - new) <= slack)
    else:
        whole = kind if isinstance(kind, T.DecimalType) else T.DecimalType(20, 0)
        near = F.abs(F.try_subtract(old.cast(whole), new.cast(whole))) <= F.lit(tolerance)
    return distinct & ~F.coalesce(near, F.lit(False))
