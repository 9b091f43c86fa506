"""docs/tutorial.md, typed by a new user."""

from __future__ import annotations

from pathlib import Path

from backfill_assets_tests.dagster.reader import BLOCK, ROOT, Reader


def test_a_new_user_gets_from_an_empty_folder_to_an_undone_correction(tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")))
    assert blocks[0]["text"] == "backfill init shop\n"
    assert blocks[1]["text"] == "dagster dev\n"
    assert Reader(tmp_path).typed("backfill init shop").returncode == 0
    reader = Reader(tmp_path / "shop")
    fails = "backfill run returns"
    parts = [i for i, block in enumerate(blocks) if block["text"].startswith(fails)]
    try:
        for part in (blocks[2 : parts[0]], blocks[parts[0] :]):
            with reader.dagster():
                reader.walk(part, fails)
    finally:
        reader.typed("backfill spark stop")
