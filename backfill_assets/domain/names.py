"""Names that reach paths and SQL: one pattern, one refusal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backfill_assets.domain.errors import InvalidNameError

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""Lower-case ASCII letters, digits and underscores; begins with a letter; at most 63 characters."""


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


def checked_name(value: str, what: str) -> str:
    """Return `value` if it is a safe identifier; `what` says what it names in the refusal.

    Raises:
        InvalidNameError: the value does not match `NAME_PATTERN` as a whole.
    """
    if not NAME_PATTERN.fullmatch(value):
        raise InvalidNameError(
            f"{what} {value!r} is not a safe name: use a-z, 0-9 and _, begin with a letter, at most 63 characters"
        )
    return value
