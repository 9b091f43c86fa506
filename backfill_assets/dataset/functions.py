"""SQL functions: which ones a text calls, and which ones a model must not call because equal inputs would give other rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.dataset.models import sql_tokens


@dataclass(frozen=True)
class Call:
    """A function that a model calls, by its name in lower case.

    `within` is the function that directly takes its result, `ordered` says whether its window or group has an order, and
    `arguments` whether it has arguments.
    """

    name: str
    within: str = ""
    ordered: bool = False
    arguments: bool = True


_CHANCE: Final = "gives a different result each time"
_CLOCK: Final = "gives the time of the run; take times from the data"
_PLACE: Final = "depends on who runs the model and where"
_FILES: Final = "depends on how the rows lie in files and partitions"
_OUTSIDE: Final = "reads what is not an input of the model"
_CLOSE: Final = (
    "gives an estimate that depends on how the rows lie in partitions; use an exact function, such as percentile"
)
_ANY: Final = "takes an arbitrary row; give it an order (OVER (… ORDER BY …)), or use min, max, min_by or max_by"
_UNSORTED: Final = (
    "gives its values in any order; sort them (sort_array(…)), or give them an order (OVER (… ORDER BY …))"
)
_UNJOINED: Final = "joins its values in any order; give them one: WITHIN GROUP (ORDER BY …)"
_NAMED: Final = "gets a name only when the model runs; write the name itself"
_OF_CATALOG: Final = "is a function of the catalog, which any user may change; write it out"


def _of(why: str, names: str) -> Mapping[str, str]:
    return dict.fromkeys(names.split(), why)


_REFUSED: Final[Mapping[str, str]] = {
    **_of(_CHANCE, "aes_encrypt rand randn random randstr shuffle uniform uuid"),
    **_of(_CLOCK, "curdate current_date current_time current_timestamp localtimestamp now"),
    **_of(
        _PLACE, "current_catalog current_database current_path current_schema current_user session_user user version"
    ),
    **_of(_FILES, "input_file_block_length input_file_block_start input_file_name"),
    **_of(_FILES, "monotonically_increasing_id spark_partition_id"),
    **_of(_OUTSIDE, "from_protobuf java_method python_worker_logs reflect table_changes table_changes_by_path"),
    **_of(_OUTSIDE, "to_protobuf try_reflect"),
    **_of(_CLOSE, "approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine histogram_numeric"),
    **_of(_CLOSE, "hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float"),
    **_of(_CLOSE, "kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float percentile_approx"),
    **_of(_CLOSE, "theta_intersection_agg theta_sketch_agg theta_union_agg tuple_intersection_agg_double"),
    **_of(_CLOSE, "tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer"),
    **_of(_CLOSE, "tuple_union_agg_double tuple_union_agg_integer"),
    "identifier": _NAMED,
}
_REFUSED_WITHOUT_ORDER: Final[Mapping[str, str]] = {
    **_of(_ANY, "any_value first first_value last last_value nth_value"),
    **_of(_UNSORTED, "array_agg collect_list collect_set"),
    **_of(_UNJOINED, "listagg string_agg"),
}
_ORDER_FREE: Final = frozenset(
    {"array_contains", "array_max", "array_min", "array_size", "array_sort", "cardinality", "size", "sort_array"}
)
"""Functions whose result does not depend on the order of an array."""

WITHOUT_BRACKETS: Final[Mapping[str, tuple[str, ...]]] = {
    "current_date": ("current_date",),
    "current_path": ("current_path",),
    "current_time": ("current_time",),
    "current_timestamp": ("current_timestamp",),
    "current_user": ("current_user",),
    "session_user": ("session_user", "current_user"),
    "user": ("user", "current_user"),
}
"""Functions that a bare word calls unless a column has its name, and their names in Spark's plans."""


def refusal(call: Call) -> str | None:
    """Why a model must not call it, as text that follows its name; None if it may."""
    *qualifiers, name = call.name.split(".")
    if qualifiers not in ([], ["builtin"], ["system", "builtin"]):
        return _OF_CATALOG
    if name == "unix_timestamp" and not call.arguments:
        return _CLOCK
    why = _REFUSED_WITHOUT_ORDER.get(name)
    if why is not None:
        fine = call.ordered or (why == _UNSORTED and call.within in _ORDER_FREE)
        return None if fine else why
    return _REFUSED.get(name)


_TYPED: Final = frozenset({"date", "timestamp", "timestamp_ltz", "timestamp_ntz", "time"})
_NOW: Final = re.compile(r"""[rR]?['"]\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)


class SqlCalls:
    """The calls in one text of SQL."""

    def __init__(self, text: str) -> None:
        self._tokens: Sequence[str] = tuple(sql_tokens(text))
        self._words: Sequence[str] = tuple(_name(token) for token in self._tokens)
        self._closes: Mapping[int, int] = _pairs(self._tokens)

    def calls(self) -> Iterator[Call]:
        """Every name followed by brackets, including keywords and types, which do no harm."""
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
        """Whether a name with brackets is a table with its columns: `AS t(a, b)`, `(…) t(a)`, `WITH t(a) AS (…)`."""
        aliased = self._word(at - 1) == "as" or self._at(at - 1) == ")"
        return aliased or (self._word(close + 1) == "as" and self._at(close + 2) == "(")

    def _at(self, at: int) -> str:
        return self._tokens[at] if 0 <= at < len(self._tokens) else ""

    def _word(self, at: int) -> str:
        return self._words[at] if 0 <= at < len(self._words) else ""

    def _close(self, opened: int) -> int:
        """The place of the bracket that closes the one opened there."""
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
    """For each opening bracket, the place of the one that closes it."""
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
