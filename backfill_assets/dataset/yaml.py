"""Read strict YAML with line numbers, and report its problems in words."""

from __future__ import annotations

import difflib
import os
import re
import stat
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from backfill_assets.core.errors import DatasetError, MisfitError
from backfill_assets.core.text import NOT_SHOWN, hidden_in, may_hold_secret, shortened, visible, without_secrets

MOST_PROBLEMS = 100
"""The most problems that are reported at a time."""
_LONGEST_KEY = 200
_LONGEST_VALUE = 60
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
"""What to write instead, by pydantic's name of an error; braces hold values from pydantic."""

KeyPath = tuple[str | int, ...]
"""The place of a value in a YAML document: keys and list positions."""


@dataclass(frozen=True)
class FileProblem:
    """One thing that is wrong with a file or folder that people write.

    `line` counts from 1, `key` is the key's path with dots; `dataset` is the one that cannot be used because of it, if any.
    """

    file: Path
    message: str
    line: int | None = None
    key: str = ""
    dataset: str = ""

    def __str__(self) -> str:
        """One line for people: file, line, what is wrong and what to do."""
        place = shown_path(self.file) + (f":{self.line}" if self.line else "")
        return f"{place}: {without_secrets(self.message)}"


def shown_path(path: Path) -> str:
    """The path, relative to the working folder if it is below it; long paths are truncated."""
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


def validation_problems(
    error: ValidationError, root: type[BaseModel], lines: Mapping[KeyPath, int]
) -> tuple[tuple[KeyPath, int | None, str], ...]:
    """Every error of pydantic as key path, line and a message that says what to write instead."""
    found: list[tuple[KeyPath, str]] = []
    for detail in islice(error.errors(include_url=False), MOST_PROBLEMS):
        path: KeyPath = tuple(detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, MisfitError):
            found += [((*path, *where), text) for where, text in cause.problems]
        elif path and path[-1] == "[key]":
            found.append((path[:-1], f"{shown_key(path[:-2])}: {_remedy(detail)}"))
        else:
            found.append((path, _message(detail, path, root)))
    placed = [(path, line_of(path, lines), text) for path, text in found]
    return tuple(sorted(placed, key=lambda problem: problem[1] or 0))


def _message(detail: Any, path: KeyPath, root: type[BaseModel]) -> str:
    key = shown_key(path)
    if detail["type"] == "missing":
        return f"{key} is missing; add it{_purpose(path, root)}"
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key}{_suggestion(str(path[-1]), _keys_at(path[:-1], root))}"
    remedy = _remedy(detail)
    # A model's own error names the key itself, and its value would be the complete mapping.
    if isinstance(detail["input"], Mapping) and detail["type"] == "value_error":
        return f"{key}: {remedy}" if key else remedy
    if path[:1] == ("notify",) and path[1:2] != ("on",):
        # Any text in a webhook's place may be one, which is a secret.
        return f"{key}: {remedy}"
    return f"{key} = {_shown_value(detail['input'])}: {remedy}" if key else remedy


def _remedy(detail: Any) -> str:
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind.startswith("date"):
        return "write an ISO date, such as 2013-01-01"
    remedy = _REMEDIES.get(kind)
    return remedy.format_map(context) if remedy else str(detail["msg"]).removeprefix("Input ")


def _shown_value(value: object) -> str:
    """A value for a message: as in YAML, and short."""
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
            return shortened(repr(value), _LONGEST_VALUE)


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


MAX_BYTES: Final = 1024 * 1024


def content_of(file: Path, most: int = MAX_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        DatasetError: it cannot be read, is a pipe or a device, or has more than `most` bytes; `args` are the message and
            no line.
    """
    try:
        # Opening a pipe without a writer would wait, and a device may never end.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:  # noqa: PTH123  # the descriptor shows what was opened; the path may have changed
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DatasetError("this is not a regular file; name one", None)
            content = opened.read(most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DatasetError(f"the file cannot be read: {reason}; name one that exists and is readable", None) from error
    if len(content) > most:
        raise DatasetError(
            f"the file is larger than {most // 1024} KiB; such a file has a few pages: remove what is not needed",
            None,
        )
    return content


def decoded(content: bytes) -> str:
    """The text of a file.

    Raises:
        DatasetError: it is not UTF-8; `args` are the message and the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"byte {error.start} is not valid UTF-8; save the file as UTF-8", line) from error


MAX_DEPTH: Final = 32
MAX_VALUES: Final = 20_000
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[+-]?([0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})([eE][+-]?[0-9]{1,3})?")
_WORDS: Final[Mapping[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
# The C parser reads a hundred datasets in a fraction of a second; the Python one gives the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Document:
    """A YAML document: its value, the line of every key, and problems as (line, key path, message)."""

    value: object
    lines: Mapping[KeyPath, int]
    problems: tuple[tuple[int, KeyPath, str], ...]


def read_yaml(text: str) -> Document:
    """Read one document; problems that leave the rest readable are collected.

    Raises:
        DatasetError: the text is too large, not YAML, or contains an invisible character; `args` are the message and the
            line (or None).
    """
    if len(text.encode()) > MAX_BYTES:
        raise DatasetError(f"the file is larger than {MAX_BYTES // 1024} KiB; such a file is a page long", None)
    if hidden := hidden_in(text):
        at, name = hidden
        raise DatasetError(f"this line contains the invisible character {name}; remove it", text.count("\n", 0, at) + 1)
    reader = _Reader(yaml.parse(text, Loader=_LOADER))
    try:
        value = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be parsed"
        raise DatasetError(f"this is not valid YAML: {problem}", mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError) as error:
        raise DatasetError(f"this is not valid YAML: {' '.join(str(error).split())}", None) from error
    return Document(value, reader.lines, tuple(reader.problems))


@dataclass
class _Reader:
    """Turns the parser's events into plain values."""

    events: Iterator[Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[int, KeyPath, str]] = field(default_factory=list)
    read: int = 0

    def problem(self, event: Any, path: KeyPath, text: str) -> None:
        self.problems.append((_line(event), path, text))

    def document(self) -> object:
        value: object = None
        documents = 0
        for event in self.events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            documents += 1
            if documents > 1:
                self.problem(event, (), "a second document begins here; remove all after ---")
                break
            value = self.value(next(self.events), ())
        return value

    def value(self, event: Any, path: KeyPath) -> object:
        self.read += 1
        if self.read > MAX_VALUES:
            raise DatasetError(
                f"the file holds more than {MAX_VALUES:,} values; such a file is a page long", _line(event)
            )
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            self.problem(event, path, f"*{shown_key((str(event.anchor),))} is an alias; write the value out")
            return None
        if event.anchor:
            self.problem(event, path, f"&{shown_key((event.anchor,))} is an anchor; remove it")
        if event.tag:
            self.problem(event, path, f"{shown_key((event.tag,))} is a tag; remove it")
        if len(path) >= MAX_DEPTH:
            raise DatasetError(f"the values are nested deeper than {MAX_DEPTH} levels", _line(event))
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(path)
        # The text itself was already checked; only escapes remain, such as "\u202e".
        if hidden := hidden_in(event.value):
            self.problem(event, path, f"{shown_key(path)} contains the invisible character {hidden[1]}; remove it")
        return event.value if event.style else _plain(event.value)

    def mapping(self, path: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise DatasetError("this key is not plain text; quote it or write a mapping", _line(event))
            key = str(event.value)
            here = (*path, key)
            if event.anchor or event.tag:
                self.problem(event, here, f"the key {shown_key((key,))!r} has an anchor or a tag; remove it")
            if key in found:
                text = f"{shown_key(here)} is already set in line {self.lines[here]}"
                self.problem(event, here, f"{text}; keep one of them")
            self.lines.setdefault(here, _line(event))
            value = self.value(next(self.events), here)
            found.setdefault(key, value)
        return found

    def sequence(self, path: KeyPath) -> list[object]:
        found: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found.append(self.value(event, (*path, len(found))))
        return found


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _plain(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
