"""Texts as values of declared types, in Spark's SQL: each type gets what the text says, or nothing.

SQL text, not Spark's functions: its client cannot send expressions as deep as those for values with parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Final

from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from backfill_assets.pipeline.sql_text import literal, quoted

# Digits are limited: a number with a million digits, or an exponent of a million, would keep Spark busy for hours.
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
_LOCAL: Final = rf"^\s*{_DAY}(?:[T ]{_CLOCK})?\s*$"
_BASE64: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

# Put around each number. Neither is a character, and neither has a meaning in JSON.
_LEFT, _RIGHT = "\ufdd0", "\ufdd1"
_FIRST, _LAST = f"{_LEFT}record", f"{_RIGHT}end"
_ESCAPED_MARK: Final = r"(?i)\\ufdd[01]"
_STRINGS_AND_NUMBERS: Final = r'("(?:[^"\\]++|\\.)*+")|(-?(?:\d[\d.eE+-]*+|NaN|Infinity))'
_LONE_SURROGATE: Final = (
    r"(?i)\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)
_OPTIONS: Final = "map('columnNameOfCorruptRecord', '_bad', 'allowSingleQuotes', 'false')"


def typed(text: str, kind: T.DataType, path: str = "", optional: Collection[str] = ()) -> str:
    """A text as a value of a type; null if the type would lose part of it. Values with parts are JSON, and bytes base64.

    A struct names all its fields, in any case, except for those whose paths, as in `Leaf`, are `optional`; `path` is that of the
    value. Other names in it are ignored.
    """
    return _Values(frozenset(optional)).typed(text, kind, path)


def parsed(text: str, kind: str) -> str:
    """JSON text that must be a single value of this type of Spark, as `alone` reads it; null for text that is no clean JSON.

    Numbers keep their text, between marks that `unmarked` removes.
    """
    numbers = f"regexp_replace({text}, {literal(_STRINGS_AND_NUMBERS)}, {literal(f'$1{_LEFT}$2{_RIGHT}')})"
    marked = _replaced(numbers, _LEFT + _RIGHT, "")
    for sign, within in ((_LEFT, f'"{_LEFT}'), (_RIGHT, f'{_RIGHT}"')):
        marked = _replaced(marked, sign, within)
    # It is the only element of a list, between two names that no text can contain. A text that closes the list early, or goes
    # on after it, yields other names or another number of elements.
    before, after = literal(f'{{"line":{{"{_FIRST}":['), literal(f'],"{_LAST}":[]}}}}')
    clean = [f"NOT contains({text}, '{_LEFT}')", f"NOT contains({text}, '{_RIGHT}')"]
    clean.append(f"NOT (contains({text}, {literal(chr(92) + 'u')}) AND {_matches(text, _ESCAPED_MARK)})")
    escapes = " OR ".join(f"contains({text}, {literal(chr(92) + escape)})" for escape in ("ud", "uD"))
    clean.append(f"NOT (({escapes}) AND {_matches(text, _LONE_SURROGATE)})")
    schema = literal(f"line map<string, array<{kind}>>, _bad string")
    return _when(" AND ".join(clean), f"from_json(concat({before}, {marked}, {after}), {schema}, {_OPTIONS})")


def alone(found: str) -> str:
    """The value of `parsed`; null if it is not of its type, or not alone."""
    values = f"get(map_values({found}.line), 0)"
    only = f"map_keys({found}.line) = array('{_FIRST}', '{_LAST}') AND size({values}) = 1"
    return _when(f"{only} AND {found}._bad IS NULL", f"get({values}, 0)")


def unmarked(value: str) -> str:
    """A text of `parsed` without the marks of numbers."""
    nested = _replaced(_replaced(value, f'"{_LEFT}', ""), f'{_RIGHT}"', "")
    return f"CASE WHEN contains({value}, '{_LEFT}') THEN translate({nested}, '{_LEFT}{_RIGHT}', '') ELSE {value} END"


class _Values:
    """Writes the SQL of one value; names of variables are unique in it."""

    def __init__(self, optional: frozenset[str]) -> None:
        self._names = (f"v{n}" for n in itertools.count())
        self._optional = optional

    def typed(self, text: str, kind: T.DataType, path: str) -> str:
        match kind:
            case T.ArrayType() | T.MapType() | T.StructType():
                return self._nested(text, kind, path)
            case T.StringType():
                return text
            case T.BooleanType():
                return f"CASE lower(trim({text})) WHEN 'true' THEN true WHEN 'false' THEN false END"
            case T.DecimalType():
                return _exact(text, kind.precision, kind.scale)
            case T.ShortType() | T.IntegerType() | T.LongType():
                name = kind.simpleString()
                number = f"try_cast({text} AS {name})"
                # Plain digits first, which most are. A cast alone ignores control characters, such as a crash's zeros.
                plain = _when(f"cast({number} AS string) = {text}", number)
                return f"coalesce({plain}, try_cast({_exact(text, 38, 0)} AS {name}))"
            case T.DateType():
                day = f"substring_index(translate(trim({text}), 'T', ' '), ' ', 1)"
                return _when(_matches(text, _DATE), f"try_cast({day} AS date)")
            case T.TimestampType():
                return _when(_matches(text, _TIMESTAMP), f"try_cast({text} AS timestamp)")
            case T.TimestampNTZType():
                return _when(_matches(text, _LOCAL), f"try_cast({text} AS timestamp_ntz)")
            case T.BinaryType():
                return _when(_matches(text, _BASE64), f"try_to_binary({text}, 'base64')")
            case _:
                return _floating(text, kind.simpleString())

    def _once(self, value: str, then: Callable[[str], str]) -> str:
        """What is made of a value, which is computed once however often `then` names it."""
        return f"get({self._each(f'array({value})', then)}, 0)"

    def _each(self, array: str, then: Callable[[str], str]) -> str:
        name = next(self._names)
        return f"transform({array}, {name} -> {then(name)})"

    def _nested(self, text: str, kind: T.ArrayType | T.MapType | T.StructType, path: str) -> str:
        """JSON text as a value with parts; null if it is none, or if one of its parts is not what it must be.

        JSON text in a string counts as what it says.
        """

        def value(found: str) -> str:
            match kind:
                case T.ArrayType():
                    return self._elements(found, kind.elementType, f"{path}.element")
                case T.MapType():
                    return self._entries(found, kind, path)
                case T.StructType():
                    return self._fields(found, kind, path)

        shape = "array<string>" if isinstance(kind, T.ArrayType) else "map<string, string>"
        return self._once(self._once(parsed(text, shape), alone), value)

    def _elements(self, texts: str, kind: T.DataType, path: str) -> str:
        """The elements of an array as values; null if one of them is no value of its type."""

        def values(pairs: str) -> str:
            name = next(self._names)
            good = f"NOT exists({pairs}, {name} -> {_is_bad(name)})"
            return _when(good, self._each(pairs, lambda pair: f"{pair}.value"))

        return self._once(self._each(texts, lambda text: self._pair(text, kind, path)), values)

    def _entries(self, record: str, kind: T.MapType, path: str) -> str:
        keys = self._elements(f"map_keys({record})", kind.keyType, f"{path}.key")
        values = self._elements(f"map_values({record})", kind.valueType, f"{path}.value")

        def made(found: str) -> str:
            unique = f"size({found}.own) = size(array_distinct({found}.own))"
            return _when(unique, f"map_from_arrays({found}.own, {found}.others)")

        return self._once(f"named_struct('own', {keys}, 'others', {values})", made)

    def _fields(self, record: str, kind: T.StructType, path: str) -> str:
        names = self._each(f"map_keys({record})", lambda name: f"lower({name})")

        def made(found: str) -> str:
            places = {f.name: f"array_position({found}.own, {literal(f.name.lower())}) - 1" for f in kind.fields}
            pairs = ", ".join(
                f"{literal(f.name)}, {self._pair(f'get({found}.others, {places[f.name]})', f.dataType, f'{path}.{f.name}')}"
                for f in kind.fields
            )
            good = [f"{found}.own IS NOT NULL", f"size({found}.own) = size(array_distinct({found}.own))"]
            needed = [f.name.lower() for f in kind.fields if f"{path}.{f.name}" not in self._optional]
            good += [f"array_contains({found}.own, {literal(name)})" for name in needed]
            return _when(" AND ".join(good), self._once(f"named_struct({pairs})", values))

        def values(pairs: str) -> str:
            of = {f.name: f"{pairs}.{quoted(f.name)}" for f in kind.fields}
            bad = " OR ".join(_is_bad(pair) for pair in of.values())
            own = ", ".join(f"{literal(name)}, {pair}.value" for name, pair in of.items())
            return _when(f"NOT ({bad})", f"named_struct({own})")

        return self._once(f"named_struct('own', {names}, 'others', map_values({record}))", made)

    def _pair(self, text: str, kind: T.DataType, path: str) -> str:
        """Whether there is a text, and its value: without both, nobody could tell a bad one from null."""
        return self._once(
            unmarked(text),
            lambda own: f"named_struct('there', {own} IS NOT NULL, 'value', {self.typed(own, kind, path)})",
        )


def _is_bad(pair: str) -> str:
    return f"({pair}.there AND {pair}.value IS NULL)"


def _exact(text: str, precision: int, scale: int) -> str:
    """A decimal, if the type has a place for all its digits; null otherwise."""
    # Trailing zeros need no place.
    plain = rf"^\s*[+-]?(?=\.?\d)\d{{0,400}}(?:\.\d{{0,{scale}}}0{{0,400}})?\s*$"
    whole, fraction, exponent = (f"regexp_extract({text}, {literal(_EXPONENT_PARTS)}, {group})" for group in (1, 2, 3))
    digits = f"concat({whole}, {fraction})"
    zeros = f"length({digits}) - length(trim(TRAILING '0' FROM {digits}))"
    places = f"length({fraction}) - ({zeros}) - try_cast({exponent} AS int)"
    fits = f"{_matches(text, _WITH_EXPONENT)} AND ({places} <= {scale} OR {_matches(text, _ZERO)})"
    number = f"try_cast({text} AS decimal({precision},{scale}))"
    # Most values are plain digits, so try them first.
    return f"CASE WHEN {_matches(text, plain)} THEN {number} WHEN {fits} THEN {number} END"


def _floating(text: str, name: str) -> str:
    """A floating-point number, rounded as usual, but never to zero or infinity."""
    number = f"try_cast({text} AS {name})"
    finite = f"abs({number}) < {name}('Infinity')"
    kept = _when(f"{_matches(text, _NUMBER)} AND {finite} AND ({number} <> 0 OR {_matches(text, _ZERO)})", number)
    return f"coalesce({kept}, {_when(_matches(text, _NO_FINITE), number)})"


def _when(condition: str, value: str) -> str:
    return f"CASE WHEN {condition} THEN {value} END"


def _matches(text: str, pattern: str) -> str:
    return f"rlike({text}, {literal(pattern)})"


def _replaced(text: str, old: str, new: str) -> str:
    return f"replace({text}, {literal(old)}, {literal(new)})"
