"""What a manifest means in Delta's log: the actions of its commit."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from backfill_assets.core.errors import BackfillError, PreconditionError, ReadBackError, StorageError
from backfill_assets.core.release import DataFile, Manifest
from backfill_assets.dataset.definition import Dataset
from backfill_assets.lakehouse.published.reading import said

_DATA_CHANGE = True


def _partition(file: DataFile, dataset: Dataset) -> Mapping[str, str | None]:
    return {dataset.partition_column: file.day.isoformat()}


def _removals(manifest: Manifest, dataset: Dataset, now: int) -> list[RemoveAction]:
    """What takes the old files of the days out of the table; `now` is in milliseconds since 1970."""
    return [RemoveAction(f.path, _DATA_CHANGE, now, f.size, dict(_partition(f, dataset))) for f in manifest.removed]


def _additions(manifest: Manifest, dataset: Dataset) -> list[AddAction]:
    """What brings the new files into it."""
    return [
        # Null and not empty: one empty text makes delta-rs lose the statistics of all files.
        AddAction(f.path, f.size, _partition(f, dataset), f.modified, _DATA_CHANGE, f.stats or None)  # type: ignore[arg-type]
        for f in manifest.added
    ]


def write(table: DeltaTable, manifest: Manifest, dataset: Dataset, at: dt.datetime) -> None:
    """Write the commit on exactly the version that was loaded; raises what delta-rs raises if it cannot."""
    metadata = manifest.metadata()
    note = json.dumps(metadata, sort_keys=True, ensure_ascii=False)
    table.create_write_transaction(
        [*_removals(manifest, dataset, int(at.timestamp() * 1000)), *_additions(manifest, dataset)],
        mode="append",
        schema=table.schema(),
        partition_by=[dataset.partition_column],
        commit_properties=CommitProperties(
            custom_metadata={**metadata, "userMetadata": note},
            app_transactions=[Transaction(manifest.release, table.version() + 1)],
            max_commit_retries=0,
        ),
    )


def refused(manifest: Manifest, root: Path, error: Exception) -> BackfillError:
    """Why a commit was not made, and what to do about it."""
    if isinstance(error, OSError):
        return StorageError(
            f"release {manifest.release}: its commit cannot be written ({said(error)}); make room for {root} or let this "
            "user write there, and repeat the command: nothing was changed"
        )
    return PreconditionError(f"release {manifest.release}: Delta refused the commit: {said(error)}")


@contextlib.contextmanager
def in_doubt(manifest: Manifest) -> Iterator[None]:
    """Once a commit has been tried, whatever keeps the log from being read must not pass for a commit that failed."""
    try:
        yield
    except (DeltaError, OSError, PreconditionError) as error:
        raise ReadBackError(
            f"release {manifest.release}: it may be committed, but what its table holds now cannot be read ({error}); "
            "see to that, and run: backfill reconcile"
        ) from error
