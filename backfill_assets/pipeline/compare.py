"""Compares two frames: which rows differ, and how far their values moved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial, reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.expected_change import ANY, ROUNDING, UNCHANGED, Change, Contract
from backfill_assets.core.measured import RowCounts
from backfill_assets.dataset.definition import Dataset
from backfill_assets.pipeline.measure import summable
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.tables import in_days
from backfill_assets.pipeline.types import Leaf, declared_type, has_map, is_nested, is_numeric, leaves_of, ordered

STATUS: Final = "_status"
"""What happened to a row: `ADDED`, `REMOVED` or `CHANGED`."""
COLUMNS: Final = "_columns"
"""The compared columns in which a changed row differs; empty for rows that are on one side only."""
PARTS: Final = "_parts"
"""The leaves of those of them that have parts, by their paths."""
ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"

_NUMBER: Final = "_number"
_MARK: Final = "_there"
_FLOAT_STEP: Final = 2.0**-23


@dataclass(frozen=True)
class Shape:
    """What is compared and how rows are matched: the day column (part of the key), the key, and the other columns.

    `columns` gives for each compared column the absolute difference up to which two numbers count as equal; 0 is exact.
    Columns without numbers are always exact. Floats may also differ by `rounding_of`, unless compared `to_the_bit`.
    """

    partition: str
    key: tuple[str, ...]
    columns: Mapping[str, Decimal]
    to_the_bit: bool = False

    @property
    def match(self) -> tuple[str, ...]:
        """The columns that rows are matched by: the day and the key."""
        return tuple(dict.fromkeys((self.partition, *self.key)))

    def slack(self, name: str, leaf: Leaf) -> Slack:
        """How far apart values of a leaf of a compared column are still equal; a tolerance is that of the whole column."""
        relative = rounding_of(leaf.kind) if is_float(leaf.kind) and not self.to_the_bit else 0.0
        return Slack(Decimal(0) if leaf.way else self.columns[name], relative)


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
    """The relative difference by which a number of a type may be off by rounding alone.

    `ROUNDING` for doubles, whose sums depend on the order; one step of the last bit for `float`, which has fewer digits.
    """
    return _FLOAT_STEP if isinstance(kind, T.FloatType) else float(ROUNDING)


def differing(old: DataFrame, new: DataFrame, shape: Shape, *, numbered: bool = False) -> DataFrame:
    """The rows that differ between two frames: day and key, `STATUS`, `COLUMNS`, `PARTS`, both values of each compared column.

    Rows are matched by day and key, nulls included. Values differ as in SQL's `IS DISTINCT FROM`, apart from what the shape
    tolerates; NaN equals NaN and -0.0 equals 0.0. If a key occurs several times, each row is matched with each row of that
    key; `numbered` numbers the rows of a key in the order of their values instead, which matches each row at most once and
    costs a sort. Both frames must have all columns of the shape, with equal types.
    """
    return matched(old, new, shape, numbered=numbered).where(F.col(STATUS).isNotNull())


def matched(old: DataFrame, new: DataFrame, shape: Shape, *, numbered: bool = False) -> DataFrame:
    """The rows of `differing` and the equal rows, whose `STATUS` is null."""
    types = {field.name: field.dataType for field in old.schema.fields}
    left, right = (_side(frame, shape, types, side, numbered=numbered) for frame, side in ((old, "old"), (new, "new")))
    match = [*shape.match, _NUMBER] if numbered else list(shape.match)
    condition = reduce(Column.__and__, (F.col(old_column(name)).eqNullSafe(F.col(new_column(name))) for name in match))
    was, comes = F.col(old_column(_MARK)), F.col(new_column(_MARK))
    nothing = F.array().cast("array<string>")
    parts = {name: _parts(name, types[name], shape) for name in shape.columns}
    nested = {name: own for name, own in parts.items() if is_nested(types[name])}
    in_parts = _names_of({path: is_other for own in nested.values() for path, is_other in own.items()})
    joined = left.join(right, condition, "full_outer").withColumn(
        PARTS, F.when(was & comes, in_parts).otherwise(nothing) if nested else nothing
    )
    differ = {
        name: F.arrays_overlap(F.col(PARTS), F.array(*map(F.lit, own))) if name in nested else own[name]
        for name, own in parts.items()
    }
    status = (
        F.when(was.isNull(), ADDED)
        .when(comes.isNull(), REMOVED)
        .when(reduce(Column.__or__, differ.values(), F.lit(False)), CHANGED)
    )
    return joined.select(
        # A row on one side only has its key there; all columns of the other side are null.
        *(F.when(was.isNull(), F.col(new_column(n))).otherwise(F.col(old_column(n))).alias(n) for n in shape.match),
        status.alias(STATUS),
        F.when(status == CHANGED, _names_of(differ)).otherwise(nothing).alias(COLUMNS),
        PARTS,
        *(F.col(old_column(name)) for name in shape.columns),
        *(F.col(new_column(name)) for name in shape.columns),
    )


def _side(frame: DataFrame, shape: Shape, types: Mapping[str, T.DataType], side: str, *, numbered: bool) -> DataFrame:
    columns = {name: F.col(name) for name in (*shape.match, *shape.columns)} | {_MARK: F.lit(True)}
    in_order = {_in_order(name, types[name]): F.expr(ordered(quoted(name), types[name])) for name in shape.columns}
    if numbered:
        order = list(in_order.values()) or [F.lit(0)]
        columns[_NUMBER] = F.row_number().over(Window.partitionBy(*shape.match).orderBy(*order))
    return frame.select(*(column.alias(f"{side}:{name}") for name, column in (in_order | columns).items()))


def _in_order(name: str, kind: T.DataType) -> str:
    """What the values of a column are called as `ordered` gives them, which is often what they are."""
    return f"{name} in order" if has_map(kind) else name


def _names_of(differ: Mapping[str, Column]) -> Column:
    """The names whose condition is true, in order."""
    names = [F.when(is_other, name).otherwise("") for name, is_other in differ.items()]
    # Not `array_compact`, which Spark does not compile.
    return F.array_remove(F.array(*names), "") if names else F.array().cast("array<string>")


def _parts(name: str, kind: T.DataType, shape: Shape) -> Mapping[str, Column]:
    """Whether the sides differ in each leaf of a column, by its path."""
    old, new = (quoted(side(_in_order(name, kind))) for side in (old_column, new_column))
    return {
        leaf.path: F.expr(leaf.differs(old, new, partial(_differ, kind=leaf.kind, slack=shape.slack(name, leaf))))
        for leaf in leaves_of(name, kind)
    }


@dataclass(frozen=True)
class Slack:
    """How far apart two numbers are still equal: `absolute`, and for floats `relative` to the larger one."""

    absolute: Decimal
    relative: float


def _differ(old: str, new: str, kind: T.DataType, slack: Slack) -> str:
    """SQL that says whether two values differ; never null."""
    distinct, tolerance = f"NOT ({old} <=> {new})", slack.absolute
    if not isinstance(kind, T.NumericType) or not (tolerance or is_float(kind)):
        return distinct
    # Computed in types that cannot overflow.
    if is_float(kind):
        old, new = (f"cast({side} AS double)" for side in (old, new))
        larger = f"greatest(abs({old}), abs({new}))"
        allowed = f"{float(tolerance)!r}D + {larger} * {slack.relative!r}D"
        # In Spark, NaN is above infinity: neither is near anything else.
        near = f"{larger} < double('Infinity') AND abs({old} - {new}) <= {allowed}"
    else:
        whole = kind if isinstance(kind, T.DecimalType) else T.DecimalType(20, 0)
        old, new = (f"cast({side} AS {whole.simpleString()})" for side in (old, new))
        near = f"abs(try_subtract({old}, {new})) <= {tolerance:f}BD"
    return f"({distinct} AND NOT coalesce({near}, false))"


Bands = Mapping[str, Mapping[Change, Sequence[dt.date]]]
"""The promises about each row by column, with the days on which they apply."""

_LESS_THAN_ONE: Final = Decimal("0.999999")
_STEP_OF_A_DOUBLE: Final = 1e-15
"""Relative; exact numbers are also compared as doubles."""
_CHANGED_IN: Final = "changed:"
_PART: Final = "part:"
_BEYOND: Final = "beyond:"


@dataclass(frozen=True)
class Pair:
    """Both sides of some days: the published rows (`old`) and the rows that would replace them (`new`)."""

    dataset: Dataset
    old: DataFrame
    new: DataFrame

    @cached_property
    def types(self) -> Mapping[str, T.DataType]:
        """The declared columns that both sides have with the same type; added and retyped columns are not compared."""
        old, new = ({field.name: field.dataType for field in f.schema.fields} for f in (self.old, self.new))
        # Models may say of parts that they are never null; what is stored says it of none.
        return {
            name: old[name]
            for name in self.dataset.columns
            if name in old and name in new and declared_type(old[name]) == declared_type(new[name])
        }

    @cached_property
    def shape(self) -> Shape:
        """What is compared and how rows are matched."""
        columns = self.dataset.columns
        compared = {name: columns[name].tolerance for name in self.dataset.compared if name in self.types}
        return Shape(self.dataset.partition_column, self.dataset.key, compared)

    @cached_property
    def leaves(self) -> Mapping[str, tuple[Leaf, ...]]:
        """The leaves of the compared columns that have parts."""
        kinds = {name: self.types[name] for name in self.shape.columns}
        return {name: leaves_of(name, kind) for name, kind in kinds.items() if is_nested(kind)}

    @property
    def comparable(self) -> bool:
        """Whether rows can be matched: the key has the same type on both sides."""
        return all(name in self.types for name in self.shape.match)

    @property
    def measures(self) -> tuple[str, ...]:
        """The summed measures that both sides have."""
        summed = (name for name, measure in self.dataset.measures.items() if measure.sum)
        return tuple(name for name in summed if name in self.types and is_numeric(self.types[name]))

    def number(self, name: str, *, old: bool) -> Column:
        """A column's number in a differing row on one side; null without a row, a value or a finite value."""
        kind = self.types[name]
        if name in self.shape.columns:
            raw = F.col(old_column(name) if old else new_column(name))
        else:
            raw = F.when(F.col(STATUS) != (ADDED if old else REMOVED), F.col(name))
        number = summable(raw, kind)
        if not is_float(kind):
            return number
        # In Spark, NaN is above infinity.
        return F.when(F.abs(number) < F.lit(float("inf")), number)

    def delta(self, name: str) -> Column:
        """New minus old value of a differing row; a missing value counts as 0."""
        old, new = (F.coalesce(self.number(name, old=side), F.lit(0)) for side in (True, False))
        return F.try_subtract(new, old)

    def outside(self, name: str, bands: Bands) -> Column:
        """Whether a changed row breaks the promise about a column; null on days without a promise. See `is_outside`."""
        # One flat CASE: Spark's client cannot send hundreds of nested ones.
        found = F.when(F.lit(False), F.lit(False))
        for change, days in bands.get(name, {}).items():
            outside = is_outside(name, change, self.types[name], self.shape.columns[name])
            found = found.when(in_days(self.shape.partition, days), outside)
        return found


def differs_in(name: str) -> Column:
    """Whether a row is on both sides with different values in a column."""
    return F.array_contains(F.col(COLUMNS), name)


def differs_in_part(path: str) -> Column:
    """Whether a row is on both sides with different values in a leaf of a column."""
    return F.array_contains(F.col(PARTS), path)


def tallies_of(
    rows: DataFrame, pair: Pair, bands: Bands | None = None, more: Sequence[Column] = ()
) -> Mapping[dt.date, Row]:
    """Aggregates over differing rows by day: those that `counts_of` needs, and `more`."""
    tallies = [F.count_if(F.col(STATUS) == status).alias(status) for status in (ADDED, REMOVED, CHANGED)]
    tallies += [F.count_if(differs_in(name)).alias(_CHANGED_IN + name) for name in pair.shape.columns]
    paths = [leaf.path for leaves in pair.leaves.values() for leaf in leaves]
    tallies += [F.count_if(differs_in_part(path)).alias(_PART + path) for path in paths]
    tallies += [
        F.count_if(differs_in(name) & pair.outside(name, bands)).alias(_BEYOND + name)
        for name in pair.shape.columns
        if bands and name in bands
    ]
    partition = pair.shape.partition
    return {row[partition]: row for row in rows.groupBy(partition).agg(*tallies, *more).collect()}


def counts_of(tally: Row, published: int) -> RowCounts:
    """The rows of a group by what happens to them; `published` is the number of published rows."""
    values = tally.asDict()
    columns, parts, beyond = (
        {name.removeprefix(prefix): n for name, n in values.items() if name.startswith(prefix) and n}
        for prefix in (_CHANGED_IN, _PART, _BEYOND)
    )
    added, removed, changed = (int(values[status]) for status in (ADDED, REMOVED, CHANGED))
    return RowCounts(added, removed, changed, published - removed - changed, columns, beyond, parts=parts)


def bands_of(contract: Contract, days: Sequence[dt.date], columns: Sequence[str]) -> Bands:
    """What a contract promises about rows of some days, for these columns."""
    found: dict[str, dict[Change, list[dt.date]]] = {}
    for day in days:
        for name, change in contract.expected_rows(day).items():
            if name in columns and change != ANY:
                found.setdefault(name, {}).setdefault(change, []).append(day)
    return found


def is_outside(name: str, change: Change, kind: T.DataType, tolerance: Decimal) -> Column:
    """Whether a column that differs moved out of a band; a move from or to null, NaN or infinity is outside of any band.

    Rounding is allowed: that of floats, the column's tolerance, or less than one step of the last digit of its type. A value
    that was rounded or truncated on both sides moves that far, or further if the band multiplies what the old value lost.
    """
    if change == UNCHANGED:
        return F.lit(True)
    old, new = F.col(old_column(name)).cast("double"), F.col(new_column(name)).cast("double")
    factors = [1 + change.low, 1 + change.high]
    edges = [old * F.lit(float(factor)) for factor in factors]
    step = _last_digit(kind) * max(Decimal(1), *(abs(factor) for factor in factors)) * _LESS_THAN_ONE
    rounding = rounding_of(kind) if is_float(kind) else _STEP_OF_A_DOUBLE
    slack = F.greatest(F.abs(old), F.abs(new)) * F.lit(rounding) + F.lit(float(max(tolerance, step)))
    inside = (new >= F.least(*edges) - slack) & (new <= F.greatest(*edges) + slack)
    finite = (F.abs(old) < F.lit(float("inf"))) & (F.abs(new) < F.lit(float("inf")))
    return ~F.coalesce(finite & inside, F.lit(False))


def _last_digit(kind: T.DataType) -> Decimal:
    if is_float(kind):
        return Decimal(0)
    return Decimal(1).scaleb(-kind.scale) if isinstance(kind, T.DecimalType) else Decimal(1)
