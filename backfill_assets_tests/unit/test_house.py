"""The house is measured, and changes that make it larger or tangled are found."""

from __future__ import annotations

from pathlib import Path

import pytest

import tools.house
from tools.house import PICTURE, House, picture

TYPED = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from backfill_assets.one.typed_too import Other\n"
LAYERS = '[tool.importlinter]\n[[tool.importlinter.contracts]]\nid = "rooms"\nlayers = ["one", "other"]\n'


def test_the_house_is_in_order_and_its_picture_is_the_one_in_the_documents() -> None:
    house = House()
    assert list(house.faults()) == []
    assert PICTURE.read_text(encoding="utf-8") == picture(house), "draw it again: python -m tools.house --picture"


def test_modules_and_rooms_that_import_each_other_and_names_that_mean_two_things_are_found(tmp_path: Path) -> None:
    for room, imported in (("one", "other"), ("other", "one")):
        folder = tmp_path / "backfill_assets" / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        imports = f"from backfill_assets.{imported}.module import Thing as Other\n"
        (folder / "module.py").write_text(f"{imports}\n\nclass Thing(Other):\n    pass\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(LAYERS, encoding="utf-8")
    found = "\n".join(House(tmp_path).faults())
    assert "2 classes are called Thing" in found
    assert "rooms import each other: one and other" in found
    assert "backfill_assets.one.module → backfill_assets.other.module → backfill_assets.one.module" in found


def test_what_is_too_long_is_found_and_what_a_function_imports_closes_no_ring(tmp_path: Path) -> None:
    folder = tmp_path / "backfill_assets" / "one"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    lines = "\n".join(f"    x{number} = {number}" for number in range(400))
    (folder / "long.py").write_text(
        f"def long() -> None:\n{lines}\n    from backfill_assets.one import other\n", "utf-8"
    )
    (folder / "other.py").write_text("from backfill_assets.one.long import long\n", encoding="utf-8")
    (folder / "typed.py").write_text(TYPED, encoding="utf-8")
    house = House(tmp_path)
    assert sorted(house.faults()) == [
        "backfill_assets.one.long has 402 lines; a module has at most 400",
        "backfill_assets.one.long.long has 402 lines; a function has at most 50",
    ]
    assert house.importers["backfill_assets.one.other"] == {"backfill_assets.one.long"}


def test_a_house_that_grows_past_its_limits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.house, "MOST_MODULES", 100)
    monkeypatch.setattr(tools.house, "MOST_LINES", 1_000)
    modules, lines = House().faults()
    assert "modules; at most 100" in modules
    assert "lines; at most 1,000" in lines
    with pytest.raises(FileNotFoundError, match="there is no module"):
        House(Path("nowhere"))
