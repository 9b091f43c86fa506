"""Faults: what is wrong with a dataset folder or another YAML file, each with its file, line, key, value and remedy."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from backfill_assets.core.errors import MisfitError
from backfill_assets.core.text import NOT_SHOWN, may_hold_secret, shortened, visible, without_secrets

MOST_FAULTS = 100
"""Nobody reads more of them."""
_LONGEST_KEY = 200
_LONGEST_PATH = 1_000
_REMEDIES: Final = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "write true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "write a whole number"),
    **dict.fromkeys(("list_type", "tuple_type"), "write a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "write a mapping of key: value lines"),
    **dict.fromkeys(("enum", "literal_error"), "use {expected}"),
    "string_type": "write text; a number or true/false that is meant as text needs quotes",
    "too_short": "name at least {min_length}",
    "greater_than": "write a number above {gt}",
    "greater_than_equal": "write a number of at least {ge}",
    "less_than": "write a number below {lt}",
    "less_than_equal": "write a number of at most {le}",
}
"""What to write instead, by pydantic's name of an error; in braces what pydantic tells besides."""

KeyPath = tuple[str | int, ...]
"""Where a value stands in a YAML document: keys and list positions."""


@dataclass(frozen=True)
class DatasetFault:
    """One thing that is wrong with a dataset folder.

    `file` is the file or folder that it is about, `line` counts from 1, `key` is the key's path with dots.
    """

    dataset: str
    file: Path
    message: str
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        """One line for people: file, line, what is wrong and what to do."""
        place = shown_path(self.file) + (f":{self.line}" if self.line else "")
        return f"{place}: {without_secrets(self.message)}"


def shown_path(path: Path) -> str:
    """The path as people look for it: relative to the working folder where it lies below it; of a giant the beginning."""
    absolute = path.absolute()
    text = str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)
    return visible(shortened(text, _LONGEST_PATH))


def shown_key(path: Iterable[str | int]) -> str:
    """A key path as people write it: `columns.dep_time.type`, `key[0]`."""
    text = ""
    for part in path:
        shown = NOT_SHOWN if isinstance(part, str) and may_hold_secret(part) else part
        text += f"[{shown}]" if isinstance(part, int) else f".{shown}" if text else str(shown)
    return visible(shortened(text, _LONGEST_KEY))


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """The line of a key, or of the nearest key above it that is in the file."""
    return next((lines[path[:i]] for i in range(len(path), -1, -1) if path[:i] in lines), None)


def validation_faults(
    error: ValidationError, root: type[BaseModel], lines: Mapping[KeyPath, int]
) -> tuple[tuple[KeyPath, int | None, str], ...]:
    """Every error of pydantic as key path, line and a message that says what to write instead."""
    found: list[tuple[KeyPath, str]] = []
    for detail in islice(error.errors(include_url=False), MOST_FAULTS):
        path: KeyPath = tuple(detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, MisfitError):
            found += [((*path, *where), text) for where, text in cause.faults]
        elif path and path[-1] == "[key]":
            found.append((path[:-1], f"{shown_key(path[:-2])}: {_remedy(detail)}"))
        else:
            found.append((path, _message(detail, path, root)))
    placed = [(path, line_of(path, lines), text) for path, text in found]
    return tuple(sorted(placed, key=lambda fault: fault[1] or 0))


def _message(detail: Any, path: KeyPath, root: type[BaseModel]) -> str:
    key = shown_key(path)
    if detail["type"] == "missing":
        return f"{key} is missing; add it{_purpose(path, root)}"
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key}{_suggestion(str(path[-1]), _keys_at(path[:-1], root))}"
    remedy = _remedy(detail)
    # A model's own refusal names the key itself, and its value would be the whole mapping.
    if isinstance(detail["input"], Mapping) and detail["type"] == "value_error":
        return f"{key}: {remedy}" if key else remedy
    if path[:1] == ("notify",) and path[1:2] != ("on",):
        # Where a webhook is expected, any text may be one.
        return f"{key}: {remedy}"
    return f"{key} = {shown_value(detail['input'])}: {remedy}" if key else remedy


def _remedy(detail: Any) -> str:
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind.startswith("date"):
        return "write an ISO date, such as 2013-01-01"
    remedy = _REMEDIES.get(kind)
    return remedy.format_map(context) if remedy else str(detail["msg"]).removeprefix("Input ")


def shown_value(value: object, most: int = 60) -> str:
    """A value as it may stand in a message: as in YAML, and short."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case Mapping():
            return "a mapping"
        case list():
            return "a list" if value else "an empty list"
        case str() if may_hold_secret(value):
            return NOT_SHOWN
        case _:
            return shortened(repr(value), most)


def _suggestion(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]}? There are" if close else "; there are"
    return f"{hint}: {', '.join(known)}" if known else "; remove it"


def _purpose(path: KeyPath, root: type[BaseModel]) -> str:
    parent = _model_at(path[:-1], root)
    field = parent.model_fields.get(str(path[-1])) if parent else None
    return f" ({field.description.rstrip('.')})" if field and field.description else ""


def _keys_at(path: KeyPath, root: type[BaseModel]) -> tuple[str, ...]:
    model = _model_at(path, root)
    return tuple(field.alias or name for name, field in model.model_fields.items()) if model else ()


def _model_at(path: KeyPath, root: type[BaseModel]) -> type[BaseModel] | None:
    """The model that describes the mapping at a path."""
    current: Any = root
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
        elif get_origin(current) is dict:
            current = get_args(current)[1]
        else:
            return None
        if get_origin(current) in (Union, types.UnionType):
            current = next((a for a in get_args(current) if a is not type(None)), None)
    is_model = isinstance(current, type) and issubclass(current, BaseModel) and not issubclass(current, Enum)
    return current if is_model else None
