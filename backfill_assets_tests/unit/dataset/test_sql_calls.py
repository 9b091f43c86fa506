"""Functions that an SQL text calls, found by its tokens; spark/pipeline/test_reads.py tests what only Spark can decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.dataset.functions import Call, SqlCalls, refusal
from backfill_assets.dataset.models import has_nested_comment

PIECES = [*"(),.'\"`\\\r\n ", "--", "/*", "*/", "first", "over", "w", "as", "order by", "window", "x"]


def refused(text: str) -> list[str]:
    return [call.name for call in SqlCalls(text).calls() if refusal(call)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT sort_array(collect_set(x) FILTER (WHERE y)), z", []),
        ("SELECT sort_array(collect_set(x)[1])", ["collect_set"]),
        ("SELECT sort_array(first(x))", ["first"]),
        ("SELECT first(x) OVER (PARTITION BY (SELECT 1 ORDER BY 2))", ["first"]),
        ("SELECT first(x) OVER w FROM t WINDOW w AS (ORDER BY y)", []),
        (
            "SELECT first(x) OVER w, (SELECT last(y) OVER w FROM u WINDOW w AS (PARTITION BY a)) FROM t WINDOW w AS (ORDER BY y)",
            ["first", "last"],
        ),
        ("SELECT first (x), `first`(x), a.b.first(x)", ["first", "first", "a.b.first"]),
        ("SELECT unix_timestamp( /* now */ ), unix_timestamp(x)", ["unix_timestamp"]),
        ("WITH a AS (SELECT 1), rand(x) AS (SELECT 2) SELECT * FROM (SELECT 3) uuid(y), (SELECT 4) AS now(z)", []),
    ],
)
def test_calls_that_are_refused_are_found(text: str, found: list[str]) -> None:
    assert refused(text) == found


@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_every_text_can_be_checked(text: str) -> None:
    asked = SqlCalls(text)
    for found in (asked.calls(), asked.bare_words(), asked.clocks()):
        list(found)
    assert has_nested_comment(text) in {True, False}


@given(st.text(alphabet="abc'\\-/* \n", max_size=40))
def test_a_call_after_a_string_is_found_whatever_the_string_contains(inner: str) -> None:
    literal = "'" + inner.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert refused(f"SELECT {literal}, rand(), {literal}") == ["rand"]
    assert refused(f"SELECT {literal}, '{'rand()'}'") == []


def test_functions_in_the_namespace_of_spark_are_those_without_one() -> None:
    assert refusal(Call("builtin.abs")) is refusal(Call("system.builtin.abs")) is None
    assert refusal(Call("default.abs")) == refusal(Call("system.session.abs"))
    assert refusal(Call("default.abs")) is not None
