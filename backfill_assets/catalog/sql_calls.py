"""The functions that a text in SQL calls, found by its tokens: strings, comments and columns are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from backfill_assets.catalog.models import sql_tokens
from backfill_assets.domain.spark_functions import WITHOUT_BRACKETS, Call

_TYPED: Final = frozenset({"date", "timestamp", "timestamp_ltz", "timestamp_ntz", "time"})
_NOW: Final = re.compile(r"""[rR]?['"]\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)


class SqlCalls:
    """One text in SQL, to be asked what it calls."""

    def __init__(self, text: str) -> None:
        self._tokens: Sequence[str] = tuple(sql_tokens(text))
        self._words: Sequence[str] = tuple(_name(token) for token in self._tokens)
        self._closes: Mapping[int, int] = _pairs(self._tokens)

    def calls(self) -> Iterator[Call]:
        """Every name with brackets behind it; keywords and types are among them, and do no harm."""
        for at, word in enumerate(self._words):
            if word and self._at(at + 1) == "(":
                close = self._close(at + 1)
                if self._is_list_of_columns(at, close):
                    continue
                ordered, end = self._ordered(close + 1)
                first = at
                while self._at(first - 1) == "." and self._word(first - 2):
                    first -= 2
                outer = self._word(first - 2) if self._at(first - 1) == "(" and self._at(end) in {",", ")"} else ""
                name = ".".join(self._words[first : at + 1 : 2])
                yield Call(name, outer, ordered, arguments=close > at + 2)

    def bare_words(self) -> Iterator[str]:
        """Words that call a function without brackets, unless a column has their name."""
        for at, word in enumerate(self._words):
            if word in WITHOUT_BRACKETS and self._at(at + 1) != "(" and self._at(at - 1) != ".":
                yield word

    def clocks(self) -> Iterator[str]:
        """Typed literals that stand for the time of the run, such as `DATE 'today'`."""
        for at, token in enumerate(self._tokens):
            if self._word(at - 1) in _TYPED and _NOW.match(token):
                yield f"{self._tokens[at - 1].upper()} {token}"

    def _is_list_of_columns(self, at: int, close: int) -> bool:
        """Whether a name with brackets is that of a table with its columns: `AS t(a, b)`, `(…) t(a)`, `WITH t(a) AS (…)`."""
        aliased = self._word(at - 1) == "as" or self._at(at - 1) == ")"
        return aliased or (self._word(close + 1) == "as" and self._at(close + 2) == "(")

    def _at(self, at: int) -> str:
        return self._tokens[at] if 0 <= at < len(self._tokens) else ""

    def _word(self, at: int) -> str:
        return self._words[at] if 0 <= at < len(self._words) else ""

    def _close(self, opened: int) -> int:
        """Where the bracket that opens there is closed."""
        return self._closes.get(opened, len(self._tokens))

    def _ordered(self, at: int) -> tuple[bool, int]:
        """Whether what follows a call gives it an order, and where that ends."""
        ordered = False
        while True:
            if self._word(at) in {"ignore", "respect"} and self._word(at + 1) == "nulls":
                at += 2
            elif self._word(at) in {"filter", "over"} and self._at(at + 1) == "(":
                end = self._close(at + 1)
                ordered |= self._word(at) == "over" and self._has_order(at + 1, end)
                at = end + 1
            elif self._word(at) == "within" and self._at(at + 2) == "(":
                end = self._close(at + 2)
                ordered |= self._has_order(at + 2, end)
                at = end + 1
            elif self._word(at) == "over":
                return ordered or self._window_has_order(self._word(at + 1)), at + 2
            else:
                return ordered, at

    def _has_order(self, opened: int, close: int) -> bool:
        if close == opened + 2:
            return self._window_has_order(self._word(opened + 1))
        depth = 0
        for at in range(opened, close):
            depth += (self._tokens[at] == "(") - (self._tokens[at] == ")")
            if depth == 1 and self._word(at) in {"order", "sort"} and self._word(at + 1) == "by":
                return True
        return False

    def _window_has_order(self, name: str) -> bool:
        """Whether all windows of that name have an order."""
        places = [
            at + 2
            for at, word in enumerate(self._words)
            if word == name and self._word(at + 1) == "as" and self._at(at + 2) == "("
            if self._word(at - 1) == "window" or self._at(at - 1) == ","
        ]
        return bool(name and places) and all(
            self._close(at) > at + 2 and self._has_order(at, self._close(at)) for at in places
        )


def _pairs(tokens: Sequence[str]) -> Mapping[int, int]:
    """By opening bracket the place of the one that closes it."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for at, piece in enumerate(tokens):
        if piece == "(":
            opened.append(at)
        elif piece == ")" and opened:
            pairs[opened.pop()] = at
    return pairs


def _name(token: str) -> str:
    """The name that a token is, in lower case; empty for a string or a sign."""
    if token.startswith("`"):
        return token.strip("`").lower()
    return token.lower() if token[0].isalpha() or token[0] == "_" else ""
