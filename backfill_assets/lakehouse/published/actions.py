"""What a manifest means in Delta's log: the actions of its commit."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake.transaction import AddAction, RemoveAction

from backfill_assets.domain.dataset import Dataset
from backfill_assets.domain.release import DataFile, Manifest

_DATA_CHANGE = True


def _partition(file: DataFile, dataset: Dataset) -> Mapping[str, str | None]:
    return {dataset.partition_column: file.day.isoformat()}


def removals(manifest: Manifest, dataset: Dataset, now: int) -> list[RemoveAction]:
    """What takes the old files of the days out of the table; `now` is in milliseconds since 1970."""
    return [RemoveAction(f.path, _DATA_CHANGE, now, f.size, dict(_partition(f, dataset))) for f in manifest.removed]


def additions(manifest: Manifest, dataset: Dataset) -> list[AddAction]:
    """What brings the new files into it."""
    return [
        # Null and not empty: one empty text makes delta-rs lose the statistics of all files.
        AddAction(f.path, f.size, _partition(f, dataset), f.modified, _DATA_CHANGE, f.stats or None)  # type: ignore[arg-type]
        for f in manifest.added
    ]
