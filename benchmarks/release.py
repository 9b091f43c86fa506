"""How long a release and its rollback take, with all their checks of evidence, and what they copy."""

from __future__ import annotations

import time
from dataclasses import dataclass

from backfill_assets.application import Application
from backfill_assets.core.release import ReleaseKind
from backfill_assets.delta.opening import table_at
from benchmarks.files import copied, data_files
from benchmarks.installation import BenchmarkError


@dataclass(frozen=True)
class ReleaseTimes:
    """A release rolled back and made again: seconds, and bytes of data files that appeared meanwhile."""

    days: int
    files_swapped: int
    rollback_seconds: float
    publish_seconds: float
    bytes_copied: int


def time_release(application: Application, dataset: str) -> ReleaseTimes:
    """Roll the newest release of a dataset back and publish its unit again, as the commands do.

    Raises:
        BenchmarkError: readers do not see afterwards what they saw before.
    """
    releases = application.ledger.releases(dataset)
    newest = next(r.manifest for r in releases if r.manifest.kind is ReleaseKind.publish)
    folder = application.layout.published_path(dataset)
    shown, before = _active(application, dataset), data_files(folder)
    begin = time.perf_counter()
    application.rollback.execute(newest.release, "benchmark")
    rolled_back = time.perf_counter()
    gone = _active(application, dataset)
    again = time.perf_counter()
    application.publisher.release(newest.unit)
    end = time.perf_counter()
    if _active(application, dataset) != shown or gone & shown:
        raise BenchmarkError(f"{dataset}: publishing again after a rollback does not show the same files")
    swapped = sum(len(swap.add) + len(swap.remove) for swap in newest.days)
    new = copied(before, data_files(folder))
    return ReleaseTimes(len(newest.days), swapped, rolled_back - begin, end - again, new)


def _active(application: Application, dataset: str) -> set[str]:
    return set(table_at(application.layout.published_path(dataset)).file_uris())
