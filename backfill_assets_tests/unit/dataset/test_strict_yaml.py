"""Strict YAML: plain values, line numbers, and refusals."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.errors import DatasetError
from backfill_assets.dataset.yaml import MAX_BYTES, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("010", "010"),
        ("1_000", "1_000"),
        (".nan", ".nan"),
        ("true", True),
        ("'true'", "true"),
        ("12", 12),
        ("-1.5e3", -1500.0),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ("|\n  a\n  b", "a\nb\n"),
    ],
)
def test_a_word_means_what_it_looks_like(text: str, value: object) -> None:
    assert read_yaml(f"a: {text}\n").value == {"a": value}


def test_each_key_has_its_line() -> None:
    lines = read_yaml("# first\na:\n  b: 1\n  c:\n    - x\n    - y: 2\n").lines
    assert lines[("a", "b")] == 3
    assert lines[("a", "c", 1, "y")] == 6


def test_every_duplicate_key_is_reported_and_the_first_one_counts() -> None:
    document = read_yaml("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert document.value == {"a": 1, "b": {"c": 1}}
    assert [(line, text) for line, _, text in document.problems] == [
        (2, "b.c is already set in line 2; keep one of them"),
        (3, "a is already set in line 1; keep one of them"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: &x 1\n", 1, "&x is an anchor"),
        ("a: &x {b: 1}\nc: *x\n", 2, "*x is an alias; write the value out"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "is a tag; remove it"),
        ("a: !!str 1\n", 1, "is a tag; remove it"),
        ("!!map {a: 1}\n", 1, "is a tag; remove it"),
        ("? !!str a\n: 1\n", 1, "the key 'a' has an anchor or a tag"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins here"),
    ],
)
def test_what_makes_yaml_clever_is_refused(text: str, line: int, message: str) -> None:
    problems = read_yaml(text).problems
    assert any(found == line and message in text for found, _, text in problems), problems


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: [1\nb: 2", "this is not valid YAML", 2),
        ("a:\tb\n\t- c", "this is not valid YAML", 2),
        ("a: \x01", "this is not valid YAML", None),
        ("? [a, b]\n: 1\n", "this key is not plain text", 1),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 32 levels", 1),
        ("a: " + "[" * 100_000, "nested deeper than 32 levels", 1),
        ("#" * (MAX_BYTES + 1), "larger than 1024 KiB", None),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_completely(text: str, message: str, line: int | None) -> None:
    with pytest.raises(DatasetError) as refused:
        read_yaml(text)
    assert message in refused.value.args[0]
    assert refused.value.args[1] == line


def test_a_bomb_of_aliases_stays_small() -> None:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 20))
    document = read_yaml(f"l0: &l0 boom\n{levels}\n")
    assert len(json.dumps(document.value)) < 10_000
    assert document.problems


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.text(st.characters(codec="ascii", min_codepoint=32)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_a_yaml_writer_writes_is_read_back(value: object) -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            return True

    document = read_yaml(yaml.dump({"value": value}, Dumper=Plain))
    assert document.value == {"value": value}
    assert document.problems == ()
