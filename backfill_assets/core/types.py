"""The types of columns, as `dataset.yaml` writes them: plain values, and arrays, maps and structs of any depth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

PLAIN: Final = (
    "string", "boolean", "smallint", "integer", "long", "float", "double", "date", "timestamp", "timestamp_ntz", "binary",
)  # fmt: skip
PATTERN: Final = rf"{'|'.join(PLAIN)}|decimal\(\d{{1,2}}, ?\d{{1,2}}\)|(?:array|map|struct)<.+>"
"""What each type looks like; not all that look so are types."""

_NUMERIC: Final = ("smallint", "integer", "long", "float", "double", "decimal")
_KEYS: Final = ("string", "smallint", "integer", "long", "date")
"""The types of a map's keys: those of which equal values look the same everywhere."""
_DEEPEST: Final = 8
_WIDEST: Final = 38
"""Digits of a decimal."""
_LONGEST: Final = 10_000
_TOKEN: Final = re.compile(r" *([A-Za-z_][A-Za-z0-9_]{0,254}|\d{1,2}|[<>(),:]) *", re.ASCII)
_USE: Final = (
    f"use {', '.join(PLAIN)}, decimal(p,s) with s <= p <= {_WIDEST}, array<TYPE>, map<TYPE,TYPE> "
    "or struct<NAME:TYPE,...>"
)


@dataclass(frozen=True)
class Plain:
    """A type without parts, such as `long`; `precision` and `scale` are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True)
class Array:
    """A list of elements of one type."""

    element: Kind

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class Map:
    """Values of one type by key; the keys are plain."""

    key: Plain
    value: Kind

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class Struct:
    """Named fields, each with its type, in order."""

    fields: tuple[tuple[str, Kind], ...]

    @property
    def by_name(self) -> Mapping[str, Kind]:
        """The types of the fields."""
        return dict(self.fields)

    def __str__(self) -> str:
        return f"struct<{','.join(f'{name}:{kind}' for name, kind in self.fields)}>"


Kind = Plain | Array | Map | Struct


@lru_cache(maxsize=10_000)
def kind_of(declared: str) -> Kind:
    """Read a type; `str` of the result writes it without spaces.

    Raises:
        ValueError: it is no type; says what to write.
    """
    if len(declared) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST:,} characters")
    if declared != declared.strip():
        raise ValueError(_USE)
    tokens, at = [], 0
    while at < len(declared):
        found = _TOKEN.match(declared, at)
        if found is None:
            raise ValueError(_USE)
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens)
    kind = reader.kind(0)
    if reader.tokens:
        raise ValueError(_USE)
    return kind


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def kind(self, depth: int) -> Kind:
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        match name := self._next():
            case "array":
                self._expect("<")
                found: Kind = Array(self.kind(depth + 1))
            case "map":
                self._expect("<")
                key = self.kind(depth + 1)
                if not isinstance(key, Plain) or key.name not in _KEYS:
                    raise ValueError(f"the keys of a map are {', '.join(_KEYS)}, not {key}")
                self._expect(",")
                found = Map(key, self.kind(depth + 1))
            case "struct":
                self._expect("<")
                found = Struct(self._fields(depth + 1))
            case "decimal":
                return self._decimal()
            case _ if name in PLAIN:
                return Plain(name)
            case _:
                raise ValueError(_USE)
        self._expect(">")
        return found

    def _fields(self, depth: int) -> tuple[tuple[str, Kind], ...]:
        fields: dict[str, Kind] = {}
        while True:
            name = self._next()
            if not name[0].isalpha() and name[0] != "_":
                raise ValueError(_USE)
            if name.lower() in {known.lower() for known in fields}:
                raise ValueError(f"a struct has two fields called {name}; engines do not tell them apart by case")
            self._expect(":")
            fields[name] = self.kind(depth)
            if self.tokens[:1] != [","]:
                return tuple(fields.items())
            self._next()

    def _decimal(self) -> Plain:
        self._expect("(")
        precision = self._next()
        self._expect(",")
        scale = self._next()
        self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal() and 1 <= int(precision) <= _WIDEST):
            raise ValueError(_USE)
        if int(scale) > int(precision):
            raise ValueError(_USE)
        return Plain("decimal", int(precision), int(scale))

    def _next(self) -> str:
        if not self.tokens:
            raise ValueError(_USE)
        return self.tokens.pop(0)

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise ValueError(_USE)


def is_numeric(declared: str) -> bool:
    """Whether a column of this declared type holds numbers."""
    return declared.startswith(_NUMERIC)


def is_nested(declared: str) -> bool:
    """Whether a column of this declared type holds arrays, maps or structs."""
    return declared.startswith(("array<", "map<", "struct<"))


def fields_of(path: str, kind: Kind) -> Iterator[str]:
    """The paths of all fields of structs in a value, such as `items.element.price`; `path` is that of the value."""
    match kind:
        case Array():
            yield from fields_of(f"{path}.element", kind.element)
        case Map():
            yield from fields_of(f"{path}.value", kind.value)
        case Struct():
            for name, own in kind.fields:
                yield f"{path}.{name}"
                yield from fields_of(f"{path}.{name}", own)
        case Plain():
            return
