"""Texts as values of declared types, where nothing of them is lost; the same for sources, references and golden files.

Another spelling of the same value is accepted: 007, 1e3, 4.500, +5, blanks around it. A text is refused whose value the type
cannot hold (4.5049 as decimal(9,2), 2.5 as integer), or of which a part would be read past (`2024-05-01 rubbish`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.lakehouse.road.spark_sql import spark_type

# Digits are limited: a number of a million digits, or with an exponent of a million, would keep Spark busy for hours.
_DIGITS: Final = r"(?=\.?\d)\d{0,400}(?:\.\d{0,400})?"
_NUMBER: Final = rf"^\s*[+-]?{_DIGITS}(?:[eE][+-]?\d{{1,3}})?\s*$"
_WITH_EXPONENT: Final = rf"^\s*[+-]?{_DIGITS}[eE][+-]?\d{{1,3}}\s*$"
_EXPONENT_PARTS: Final = r"^\s*[+-]?(\d*)\.?(\d*)[eE]([+-]?\d+)\s*$"
_ZERO: Final = r"^\s*[+-]?[0.]+(?:[eE].*)?$"
_NO_FINITE: Final = r"(?i)^\s*(?:NaN|[+-]?Inf(?:inity)?)\s*$"
_DAY: Final = r"(?!0000)\d{4}-\d{1,2}-\d{1,2}"
_DATE: Final = rf"^\s*{_DAY}(?:[T ]00:00(?::00(?:\.0{{1,9}})?)?)?\s*$"
_ZONE: Final = r"(?:Z|(?:UTC|GMT)?[+-]\d{1,2}(?::?\d{2})?|UTC|GMT|[A-Z][A-Za-z]+(?:/[A-Za-z0-9_+-]+)+)"
_CLOCK: Final = r"\d{1,2}:\d{1,2}(?::\d{1,2}(?:\.\d{1,6}0{0,6})?)?"
_TIMESTAMP: Final = rf"^\s*{_DAY}(?:[T ]{_CLOCK} ?{_ZONE}?)?\s*$"


def typed(text: Column, declared: str) -> Column:
    """A text as a value of a declared type; null where that would lose something of it."""
    kind = spark_type(declared)
    match kind:
        case T.StringType():
            return text
        case T.BooleanType():
            word = F.lower(F.trim(text))
            return F.when(word == "true", F.lit(True)).when(word == "false", F.lit(False))
        case T.DecimalType():
            return _exact(text, kind.precision, kind.scale)
        case T.IntegerType() | T.LongType():
            name = kind.simpleString()
            number = text.try_cast(name)
            # Plain digits first, which most are. A cast alone reads past control characters, such as the zeros that a crash leaves.
            plain = F.when(number.cast("string") == text, number)
            return F.coalesce(plain, _exact(text, 38, 0).try_cast(name))
        case T.DateType():
            return F.when(
                text.rlike(_DATE), F.substring_index(F.translate(F.trim(text), "T", " "), " ", 1).try_cast("date")
            )
        case T.TimestampType():
            return F.when(text.rlike(_TIMESTAMP), text.try_cast("timestamp"))
        case _:
            return _floating(text, kind.simpleString())


def _exact(text: Column, precision: int, scale: int) -> Column:
    """A decimal, where all its digits have a place."""
    # Zeros at its end need none.
    plain = rf"^\s*[+-]?(?=\.?\d)\d{{0,400}}(?:\.\d{{0,{scale}}}0{{0,400}})?\s*$"
    whole, fraction, exponent = (F.regexp_extract(text, _EXPONENT_PARTS, group) for group in (1, 2, 3))
    digits = F.concat(whole, fraction)
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    places = F.length(fraction) - zeros - exponent.try_cast("int")
    fits = text.rlike(_WITH_EXPONENT) & ((places <= scale) | text.rlike(_ZERO))
    number = text.try_cast(f"decimal({precision},{scale})")
    # Plain digits first, which most are.
    return F.when(text.rlike(plain), number).when(fits, number)


def _floating(text: Column, name: str) -> Column:
    """A floating-point number, rounded as such numbers are, but neither to zero nor to infinity."""
    number = text.try_cast(name)
    finite = F.abs(number) < F.lit(float("inf")).cast(name)
    kept = F.when(text.rlike(_NUMBER) & finite & ((number != 0) | text.rlike(_ZERO)), number)
    return F.coalesce(kept, F.when(text.rlike(_NO_FINITE), text.try_cast(name)))
