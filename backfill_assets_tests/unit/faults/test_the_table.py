"""The table of faults names tests that there are, and leaves out none of this folder's."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from backfill_assets_tests.faults import DOCUMENT, FAULTS, ROOT, UNIT, document

TESTS = ROOT / "backfill_assets_tests"
NAMED = {test for faults in FAULTS.values() for fault in faults for test in fault.tests}


@cache
def names_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_")


def test_the_table_is_the_one_in_the_documents() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python -m backfill_assets_tests.faults"


def test_every_test_that_the_table_names_exists() -> None:
    lost = [test for test in NAMED if test.split("::")[1] not in names_in(TESTS / test.split("::")[0])]
    assert lost == []


def test_every_fault_without_an_engine_stands_in_the_table() -> None:
    own = Path(__file__)
    files = [file for file in (TESTS / UNIT).glob("test_*.py") if file != own]
    known = {f"{UNIT}/{file.name}::{name}" for file in files for name in names_in(file)}
    assert known - NAMED == set()
