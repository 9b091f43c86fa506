"""`docs/proof.md` names for each way to be wrong and green a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "backfill_assets_tests"
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_each_way_to_be_wrong_and_green_has_a_test() -> None:
    document = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    _, _, section = document.partition("\n## Ways to be wrong and green\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert rows
    for row in rows:
        named = _TEST.findall(row)
        assert named, row
        for file, name in named:
            tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, name)
