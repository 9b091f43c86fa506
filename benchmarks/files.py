"""Bytes on disk: what a dataset's layers hold, and what a release copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backfill_assets.storage.disk import path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location


@dataclass(frozen=True)
class Bytes:
    """Bytes of one layer: data files, and Delta logs with everything else."""

    data: int = 0
    logs: int = 0
    files: int = 0


def bytes_of(folder: Path) -> Bytes:
    """Size of a table's folder; all zero if there is none."""
    data = logs = files = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size = path.stat().st_size
            if path.suffix == ".parquet" and "_delta_log" not in path.parts:
                data, files = data + size, files + 1
            else:
                logs += size
    return Bytes(data, logs, files)


def layers_of(layout: Layout, dataset: str) -> Mapping[str, Bytes]:
    """Sizes of raw, staging and published (shadows included) of a dataset."""
    places = {
        "raw": layout.raw_path(dataset),
        "staging": layout.staging_path(dataset),
        "published": layout.published_path(dataset),
    }
    return {name: bytes_of(path_of(folder)) for name, folder in places.items()}


def data_files(place: Location) -> Mapping[tuple[int, str], int]:
    """Size of every data file by inode and path: a copy has another inode, a rename another path. Objects have no inode."""
    found = {}
    for file in place.files(place):
        if file.path.endswith(".parquet") and "_delta_log/" not in file.path:
            inode = 0 if place.storage_options else path_of(place / file.path).stat().st_ino
            found[inode, file.path] = file.size
    return found


def copied(before: Mapping[tuple[int, str], int], after: Mapping[tuple[int, str], int]) -> int:
    """Bytes of the data files that are new."""
    return sum(size for key, size in after.items() if key not in before)
