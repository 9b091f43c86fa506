"""The three versions of daily_sales in the campaign's story, and their differences."""

from __future__ import annotations

import difflib
from enum import StrEnum
from pathlib import Path
from typing import Final

from demo.sources import SHIPPED, compose

DATASET: Final = "daily_sales"
UPSTREAM: Final = "order_items"
_TEXTS: Final = Path(__file__).resolve().parent / "sales_as_it_was"


class Version(StrEnum):
    """Which model: with the tax in the revenue, with the tax subtracted twice, and the right one, which is today's."""

    as_it_was = "replacements.yaml"
    first_correction = "first_correction.yaml"
    today = ""


def put_datasets(target: Path) -> None:
    """Write order_items as it is, and daily_sales as it was, to folders below `target`.

    Raises:
        DatasetError: today's daily_sales no longer has the texts that are replaced.
    """
    for name in (UPSTREAM, DATASET):
        folder = target / name
        folder.mkdir(parents=True)
        for file in _files(SHIPPED / name):
            (folder / file.name).write_bytes(file.read_bytes())
    put_version(target, Version.as_it_was)


def put_version(target: Path, version: Version) -> str:
    """Make `target`/daily_sales another version of the dataset; returns the changes as a unified diff.

    Raises:
        DatasetError: today's daily_sales no longer has the texts that are replaced.
    """
    folder = target / DATASET
    before = _contents(folder)
    if version is Version.today:
        for file in _files(SHIPPED / DATASET):
            (folder / file.name).write_bytes(file.read_bytes())
    else:
        compose(SHIPPED / DATASET, _TEXTS / version.value, target)
    return "\n".join(difference(name, before.get(name, ""), text) for name, text in _contents(folder).items()).strip()


def difference(name: str, before: str, after: str) -> str:
    """The changes in a file, as a unified diff without context; empty if it is the same."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=0, lineterm="")
    return "\n".join(lines)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in _files(folder)}
