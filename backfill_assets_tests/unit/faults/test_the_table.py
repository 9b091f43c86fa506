"""The table of faults names existing tests, and all tests of this folder; each is run and reports what it found."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.faults import DOCUMENT, FAULTS, UNIT, document
from backfill_assets_tests.harness.named_tests import TESTS, functions_in, is_there, module_of

NAMED = {test for faults in FAULTS.values() for fault in faults for test in fault.tests}


def marks_of(test: str) -> Iterator[str]:
    """The marks of a test, from its module and from itself, without their arguments."""
    file, name = test.split("::")
    for node in module_of(TESTS / file).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            yield from (ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, ast.Attribute))
    yield from (ast.unparse(decorator).split("(")[0] for decorator in functions_in(TESTS / file)[name].decorator_list)


def test_the_table_is_the_one_in_the_documents() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python -m backfill_assets_tests.faults"


def test_every_test_that_the_table_names_exists() -> None:
    assert [test for test in NAMED if not is_there(test)] == []


def test_every_fault_without_an_engine_is_in_the_table() -> None:
    own = Path(__file__)
    files = [file for file in (TESTS / UNIT).glob("test_*.py") if file != own]
    known = {f"{UNIT}/{file.name}::{name}" for file in files for name in functions_in(file)}
    assert known - NAMED == set()


@pytest.mark.parametrize("test", sorted(NAMED))
def test_every_test_of_the_table_is_run_by_make_test_faults(test: str) -> None:
    assert "pytest.mark.faults" in set(marks_of(test))


@pytest.mark.parametrize("test", sorted(NAMED))
def test_every_test_of_the_table_says_what_it_injects_and_finds(test: str) -> None:
    file, name = test.split("::")
    function = functions_in(TESTS / file)[name]
    assert "observed" in {argument.arg for argument in function.args.args}
    # Directly, or by a helper that gets it.
    assert "observed" in {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
