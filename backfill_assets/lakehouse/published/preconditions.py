"""What must be true before a release is committed: the commit API itself checks almost none of it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.release import DataFile, Manifest
from backfill_assets.lakehouse.published.files import SHADOW, missing, plain_path

Active = Mapping[dt.date, Sequence[DataFile]]


def require_own_dataset(manifest: Manifest, dataset: str) -> None:
    """A manifest is for one dataset: refuse another one's."""
    if manifest.dataset != dataset:
        raise PreconditionError(
            f"release {manifest.release}: expected a manifest of {dataset}, found one of {manifest.dataset}"
        )


def require_each_day_once(manifest: Manifest) -> None:
    """Refuse a manifest without a day, or that swaps a day twice."""
    counts = Counter(swap.day for swap in manifest.days)
    twice = [day for day, count in counts.items() if count > 1]
    if twice or not counts:
        raise PreconditionError(
            f"release {manifest.release}: expected each day once, found {format_days(twice)} twice"
            if twice
            else f"release {manifest.release}: expected at least one day, found none"
        )


def require_files_of_their_day(manifest: Manifest) -> None:
    """Refuse a file whose partition is not the day that it is swapped into or out of."""
    for swap in manifest.days:
        for file in (*swap.add, *swap.remove):
            if file.day != swap.day:
                raise PreconditionError(
                    f"release {manifest.release}: file {file.path}: expected the day {swap.day}, found {file.day}"
                )


def require_files_of_the_unit(manifest: Manifest) -> None:
    """Refuse to publish a file that is not below the shadows of the release's own unit."""
    prefix = f"{SHADOW}/{manifest.unit}/"
    for file in manifest.added:
        if not plain_path(file.path).startswith(prefix):
            raise PreconditionError(
                f"release {manifest.release}: file {file.path}: expected a file of the unit, below {prefix}"
            )


def require_exactly_the_active_files(manifest: Manifest, active: Active) -> None:
    """Refuse unless what leaves each day is exactly what readers see of it now; names each day that differs."""
    lines = []
    for swap in manifest.days:
        expected = {f.identity for f in swap.remove}
        found = {f.identity for f in active.get(swap.day, ())}
        if expected != found:
            lines.append(f"{swap.day}: expected {_paths(expected)}, found {_paths(found)}")
    if lines:
        raise PreconditionError(
            f"release {manifest.release}: the published files are not those that it was planned to replace: "
            f"{'; '.join(lines)}. Check these days again and release anew"
        )


def require_new_files(manifest: Manifest, active: Active) -> None:
    """Refuse files that readers see already, or that are added twice."""
    seen = {f.path for files in active.values() for f in files}
    twice = {path for path, count in Counter(f.path for f in manifest.added).items() if count > 1}
    for file in manifest.added:
        if file.path in seen or file.path in twice:
            found = "it is active already" if file.path in seen else "it is added twice"
            raise PreconditionError(
                f"release {manifest.release}: file {file.path}: expected a file that is not in the table, found that {found}"
            )


def require_files_on_disk(manifest: Manifest, root: Path) -> None:
    """Refuse files that are not there with their size."""
    lost = missing(root, manifest.added)
    if lost:
        names = ", ".join(f"{f.path} ({f.size} bytes)" for f in lost[:5])
        raise PreconditionError(
            f"release {manifest.release}: expected {len(manifest.added)} files below {root}, found that {len(lost)} are "
            f"missing or altered: {names}. Build {format_days(f.day for f in lost)} again"
        )


def _paths(identities: Iterable[tuple[str, int, str]]) -> str:
    return ", ".join(f"{path} ({size} bytes)" for path, size, _ in sorted(identities)) or "no file"
