"""Strict YAML: one plain document, no surprises of YAML 1.1, the line of every key, and a limit on what is read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.text import hidden_in
from backfill_assets.dataset.faults import KeyPath, shown_key

MAX_BYTES: Final = 1024 * 1024


def content_of(file: Path, most: int = MAX_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        DatasetError: it cannot be read, is a pipe or a device, or has more than `most` bytes; `args` are the message and
            no line.
    """
    try:
        # A pipe that nobody writes to would be waited for, and a device may never end.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:  # noqa: PTH123  # the descriptor tells what was opened; the path may have changed
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DatasetError("this is no regular file; name one", None)
            content = opened.read(most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DatasetError(
            f"the file cannot be read: {reason}; name one that is there and may be read", None
        ) from error
    if len(content) > most:
        raise DatasetError(
            f"the file is larger than {most // 1024} KiB; such a file is some pages long: take out what is not needed",
            None,
        )
    return content


def decoded(content: bytes) -> str:
    """The text of a file.

    Raises:
        DatasetError: it is no UTF-8; `args` are the message and the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"byte {error.start} is no UTF-8; save the file as UTF-8", line) from error


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
    """A YAML document: its value, the line of every key, and faults as (line, key path, message)."""

    value: object
    lines: Mapping[KeyPath, int]
    faults: tuple[tuple[int, KeyPath, str], ...]


def read_yaml(text: str) -> Document:
    """Read one document; faults that leave the rest readable are collected.

    Raises:
        DatasetError: the text is too large, no YAML, or holds what one cannot see; `args` are the message and the line
            (or nothing).
    """
    if len(text.encode()) > MAX_BYTES:
        raise DatasetError(f"the file is larger than {MAX_BYTES // 1024} KiB; such a file is a page long", None)
    if hidden := hidden_in(text):
        at, name = hidden
        raise DatasetError(f"this line holds {name}, which one cannot see; remove it", text.count("\n", 0, at) + 1)
    reader = _Reader(yaml.parse(text, Loader=_LOADER))
    try:
        value = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be parsed"
        raise DatasetError(f"this is no YAML: {problem}", mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError) as error:
        raise DatasetError(f"this is no YAML: {' '.join(str(error).split())}", None) from error
    return Document(value, reader.lines, tuple(reader.faults))


@dataclass
class _Reader:
    """Turns the parser's events into plain values."""

    events: Iterator[Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[tuple[int, KeyPath, str]] = field(default_factory=list)
    read: int = 0

    def document(self) -> object:
        value: object = None
        documents = 0
        for event in self.events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            documents += 1
            if documents > 1:
                self.faults.append((_line(event), (), "a second document begins here; remove all after ---"))
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
            self.faults.append(
                (_line(event), path, f"*{shown_key((str(event.anchor),))} is an alias; write the value out")
            )
            return None
        if event.anchor:
            self.faults.append((_line(event), path, f"&{shown_key((event.anchor,))} is an anchor; remove it"))
        if event.tag:
            self.faults.append((_line(event), path, f"{shown_key((event.tag,))} is a tag; remove it"))
        if len(path) >= MAX_DEPTH:
            raise DatasetError(f"the values are nested deeper than {MAX_DEPTH} levels", _line(event))
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(path)
        # The text itself was looked at as a whole; what is left are escapes, such as "\u202e".
        if hidden := hidden_in(event.value):
            self.faults.append(
                (_line(event), path, f"{shown_key(path)} holds {hidden[1]}, which one cannot see; remove it")
            )
        return event.value if event.style else _plain(event.value)

    def mapping(self, path: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise DatasetError("this key is no plain text; quote it or write a mapping", _line(event))
            key = str(event.value)
            here = (*path, key)
            if event.anchor or event.tag:
                self.faults.append(
                    (_line(event), here, f"the key {shown_key((key,))!r} has an anchor or a tag; remove it")
                )
            if key in found:
                first = self.lines[here]
                text = f"{shown_key(here)} stands here again; it is already set in line {first}"
                self.faults.append((_line(event), here, f"{text}; keep one of them"))
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
