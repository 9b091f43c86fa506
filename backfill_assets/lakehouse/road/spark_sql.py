"""Spark's names, types and errors in the project's words."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.days import runs_of_days
from backfill_assets.core.errors import BackfillError
from backfill_assets.spark.session import is_of_data, room_for

_TYPES: Final[Mapping[str, T.DataType]] = {
    "string": T.StringType(),
    "boolean": T.BooleanType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
}
_NAMES: Final = {spark.simpleString(): name for name, spark in _TYPES.items()}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_PREFIX: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+")


def quoted(name: str) -> str:
    """Quote an identifier or a path with backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """Write a string as a SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def days_condition(column: str, days: Collection[dt.date]) -> str:
    """SQL that holds for rows of these days; comparisons only, which `replaceWhere` and partition pruning understand."""
    name = quoted(column)
    runs = [f"({name} >= DATE'{first}' AND {name} <= DATE'{last}')" for first, last in runs_of_days(days)]
    return " OR ".join(runs) or "false"


def in_days(column: str, days: Collection[dt.date]) -> Column:
    """`days_condition` as a column."""
    return F.expr(days_condition(column, days))


def is_true(condition: Column) -> Column:
    """The condition, with null for false."""
    return F.coalesce(condition, F.expr("false"))


def spark_type(declared: str) -> T.DataType:
    """Spark's type for one that `dataset.yaml` declares."""
    match = _DECIMAL.fullmatch(declared)
    return T.DecimalType(int(match[1]), int(match[2])) if match else _TYPES[declared]


def declared_type(found: T.DataType) -> str:
    """A type of Spark in the words of `dataset.yaml`; Spark's own word where it has none."""
    return _NAMES.get(found.simpleString(), found.simpleString())


def struct_of(columns: Mapping[str, str]) -> T.StructType:
    """Spark's schema for declared columns; all nullable."""
    return T.StructType([T.StructField(name, spark_type(kind)) for name, kind in columns.items()])


def is_numeric(found: T.DataType) -> bool:
    """Whether a column can be summed."""
    return isinstance(found, T.NumericType)


def first_of_each(frame: DataFrame, group: list[str], order: list[Column], most: int) -> DataFrame:
    """Keep the first `most` rows of each group."""
    rank = F.row_number().over(Window.partitionBy(*group).orderBy(*order))
    return frame.withColumn("_rank", rank).where(F.col("_rank") <= most).drop("_rank")


def condition_of(error: PySparkException) -> str:
    """The name of Spark's or Delta's error, such as `DELTA_CONCURRENT_APPEND`; empty if it has none."""
    return error.getCondition() or ""


def reason(error: PySparkException, lines_before: int = 0) -> str:
    """The first line of Spark's message; line numbers count from where the model begins, `lines_before` lines down."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = _SQLSTATE.sub("", _PREFIX.sub("", lines[0])).rstrip("; ")

    def moved(match: re.Match[str]) -> str:
        return f"line {max(int(match[1]) - lines_before, 1)}"

    return re.sub(r"\bline (\d+)", moved, text) if lines_before else text


@contextmanager
def renamed(
    kind: type[BackfillError], where: str, lines_before: int = 0, also: tuple[str, ...] = (), remedy: str = ""
) -> Iterator[None]:
    """Turn Spark's errors about data and SQL, and those that `also` names, into one of ours that begins with `where`.

    A full disk is a StorageError. All others pass as they are.
    """
    try:
        with room_for(where):
            yield
    except PySparkException as error:
        # An engine that is lost or interrupted is not the model's fault, and its own handler names it.
        if not is_of_data(error) and not condition_of(error).startswith(also):
            raise
        text = f"{where}: {reason(error, lines_before)}"
        raise kind(f"{text.rstrip('. ')}; {remedy}" if remedy else text) from None


def equal_keys(mine: Column, theirs: Column, *, of_one_type: bool) -> Column:
    """Whether two parts of keys are equal, nulls included; where a model gives them another type, by their text.

    Text that is no number breaks nothing so.
    """
    return mine.eqNullSafe(theirs) if of_one_type else mine.cast("string").eqNullSafe(theirs.cast("string"))


def figures_of(values: Mapping[str, object]) -> tuple[dict[str, Decimal | None], tuple[str, ...]]:
    """The figures by name, and the names of those that Spark computed in floating point, in order."""
    floating = sorted(name for name, value in values.items() if isinstance(value, float))
    return {name: figure(value) for name, value in values.items()}, tuple(floating)


def figure(value: object) -> Decimal | None:
    """A number as Spark returns it, as the exact figure that it shows; null for nothing."""
    if value is None:
        return None
    if isinstance(value, float):
        # Infinities cannot be compared by differences: like NaN, they equal nothing.
        return Decimal(repr(value)) if math.isfinite(value) else Decimal("NaN")
    return Decimal(str(value))
