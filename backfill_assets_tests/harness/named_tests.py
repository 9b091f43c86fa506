"""Tests that a document names, as `folder/file.py::name` below the folder of tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


@cache
def module_of(file: Path) -> ast.Module:
    """The parsed text of a test file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def functions_in(file: Path) -> dict[str, ast.FunctionDef]:
    """The test functions of a file by name."""
    found = [node for node in module_of(file).body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in found if node.name.startswith("test_")}


def is_there(test: str) -> bool:
    """Whether a named test exists."""
    file, name = test.split("::")
    return (TESTS / file).is_file() and name in functions_in(TESTS / file)
