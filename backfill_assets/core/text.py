"""Names, sizes and durations: how they are read, checked and shown."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from backfill_assets.core.errors import InvalidNameError

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""Lower-case ASCII letters, digits and underscores; begins with a letter; at most 63 characters."""

_HIDDEN = re.compile(
    "[\x85\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
    "|\r(?!\n)"
)
"""Marks that change the direction of text, end a line only for some programs, or are invisible; not joiners of letters."""
_SEEN = "LMNPS"
"""Letters, marks, numbers, punctuation and symbols; those that are invisible all the same are in `_BLANK`."""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\u2800\U0001bca0-\U0001bca3\U000e0100-\U000e01ef]"
)

_SHOWN = 100
_LONGEST_ERROR = 300
_JOINERS = "\u200c\u200d"
"""They are part of how letters and emoji are written."""


def hidden_in(text: str) -> tuple[int, str] | None:
    """The place and the name of the first character that makes a text differ from what one sees."""
    found = _HIDDEN.search(text)
    return (found.start(), _named(found[0])) if found else None


def hidden_in_name(text: str) -> str | None:
    """The name of the first invisible character in a person's name: two names that look the same can be two people."""
    found = (c for c in text if c != " " and (unicodedata.category(c)[0] not in _SEEN or _BLANK.match(c)))
    return next(map(_named, found), None)


def _named(character: str) -> str:
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'a control character')})"


def visible(text: str) -> str:
    """The text with every character that a terminal would act on, or not show, written as an escape.

    For names that others have chosen, above all of files, which may contain any bytes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text)


def in_one_line(error: object) -> str:
    """A library's error message in one printable line: it may quote the file that the library could not read."""
    return visible(" ".join(str(error).split()))[:_LONGEST_ERROR]


def shortened(text: str, most: int) -> str:
    """The text; a longer one is truncated to `most` characters, the last of which is an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


NOT_SHOWN = "a URL (not shown: it may hold a secret)"
# Both check each character a bounded number of times: the input may be of any length.
_ANY_URL = re.compile(r"[A-Za-z][\w.+:-]{0,30}://[^\s']+")
_SECRET_SCHEME = re.compile(r"(https?|sc|jdbc[^/]{0,60}|postgres[^/]{0,60})://", re.IGNORECASE)


def may_hold_secret(text: str) -> bool:
    """Whether a text is a URL of a kind that carries tokens, passwords or secret paths; messages do not show it."""
    _, mark, rest = text.partition("://")
    if not mark:
        return False
    return "@" in rest or "?" in rest or ";" in rest or bool(_SECRET_SCHEME.search(text))


def without_secrets(text: str) -> str:
    """The text with every URL in it that may hold a secret left out."""
    return _ANY_URL.sub(lambda found: NOT_SHOWN if may_hold_secret(found[0]) else found[0], text)


def in_words(names: Sequence[str]) -> str:
    """Names as people list them: `raw, staging and shadow`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def number_of(count: int, what: str) -> str:
    """A number of things for people: `1 batch` is `number_of(1, "batch")`, `2,000 batches` is `number_of(2000, "batch")`."""
    if count == 1:
        return f"1 {what}"
    plural = f"{what[:-1]}ies" if what.endswith("ary") else f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {plural}"


def is_name(value: str) -> bool:
    """Whether `checked_name` accepts it."""
    return NAME_PATTERN.fullmatch(value) is not None


def checked_name(value: str, what: str) -> str:
    """Return `value` if it is a safe identifier; the error calls it `what`.

    Raises:
        InvalidNameError: the value does not match `NAME_PATTERN` completely.
    """
    if not is_name(value):
        raise InvalidNameError(
            f"{what} {value[:_SHOWN]!r} is not a safe name: use a-z, 0-9 and _, begin with a letter, at most 63 characters"
        )
    return value


_SIZE_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGTP", 1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
SIZE_PATTERN = r"\s*(\d{1,19}(?:\.\d{1,3})?)\s*([KMGTP]i?B|B)\s*"
"""The format of a size in YAML."""
_SIZE = re.compile(SIZE_PATTERN, re.ASCII)
_LARGEST_SIZE = 10**18


def parse_size(value: object) -> int:
    """Read a size with its unit as bytes; KB is 1000 bytes, KiB 1024. The number 0 stands for itself.

    Raises:
        ValueError: the value is anything else: it is unclear what a bare 500 is.
    """
    if value == 0 and not isinstance(value, bool):
        return 0
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a size with its unit, such as 500GB, 1.5TB or 512MiB")
    size = int(Decimal(match[1]) * _SIZE_UNITS[match[2]])
    if size > _LARGEST_SIZE:
        raise ValueError(f"write a size of at most {format_size(_LARGEST_SIZE)}")
    return size


def format_size(value: int) -> str:
    """Write bytes in the largest unit that gives a whole number: `500GB`, `512MiB`."""
    unit = max((u for u, size in _SIZE_UNITS.items() if value % size == 0), key=_SIZE_UNITS.__getitem__)
    return f"{value // _SIZE_UNITS[unit]}{unit}" if value else "0B"


_DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"(\d{1,6})\s*([smhd])", re.ASCII)


def parse_duration(value: object) -> dt.timedelta:
    """Read `<number><s|m|h|d>`; a `timedelta` passes through.

    Raises:
        ValueError: the text is anything else (pydantic turns it into its own error with the key).
    """
    if isinstance(value, dt.timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as a number and s, m, h or d, such as 36h or 14d")
    return dt.timedelta(**{_DURATION_UNITS[match[2]]: int(match[1])})


def format_duration(value: dt.timedelta) -> str:
    """Write a duration in the largest unit that gives a whole number: `36h`, `14d`."""
    seconds = int(value.total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
