"""`docs/proof.md` names an existing test for each way to be wrong and green."""

from __future__ import annotations

import re

from backfill_assets_tests.harness.named_tests import TESTS, is_there

_TEST = re.compile(r"`([\w/]+\.py::\w+)`")


def test_each_way_to_be_wrong_and_green_has_a_test() -> None:
    document = (TESTS.parent / "docs" / "proof.md").read_text(encoding="utf-8")
    _, _, section = document.partition("\n## Ways to be wrong and green\n")
    _, *rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        named = _TEST.findall(row)
        assert named, row
        assert [test for test in named if not is_there(test)] == []
