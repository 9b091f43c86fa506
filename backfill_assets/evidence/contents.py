"""What stands published, by content and not by files, so that a compaction by somebody else changes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from backfill_assets.core.release import DataFile, Manifest, ReleaseKind, ReleaseState, layout_digest
from backfill_assets.core.unit import UNKNOWN_ORIGIN, Content, ReleaseRecord
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger


def effective(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, Manifest]:
    """The release whose state each day should show: the newest one that has not been rolled back for that day.

    `records` are all releases of one dataset, newest first.
    """
    stacks: dict[dt.date, list[Manifest]] = {}
    for record in reversed(records):
        manifest = record.manifest
        if record.state is not ReleaseState.finalized:
            continue
        for swap in manifest.days:
            stack = stacks.setdefault(swap.day, [])
            names = [below.release for below in stack]
            if manifest.kind is ReleaseKind.publish:
                stack.append(manifest)
            elif manifest.undoes in names:
                # Whatever a ledger holds on top of it went with it.
                del stack[names.index(manifest.undoes) :]
    return {day: stack[-1] for day, stack in stacks.items() if stack}


def published_among(
    ledger: Ledger, table: PublishedTable, dataset: str, days: Collection[dt.date]
) -> frozenset[dt.date]:
    """Those of the days that are published: readers see rows of them, or a release said that they have none."""
    active = table.active(days) if days and table.exists() else {}
    filled = frozenset(day for day, files in active.items() if files)
    rest = frozenset(days) - filled
    # Manifests of long histories are big: they are read only for days without a file.
    return filled | (rest & effective(ledger.releases(dataset)).keys() if rest else frozenset())


class ContentFingerprints(Protocol):
    """Reads content when a layout moved: only changed content makes evidence stale."""

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Order-independent fingerprints of the published days, as in `Side.fingerprint`."""
        ...


_Files = Mapping[dt.date, tuple[DataFile, ...]]


@dataclass(frozen=True)
class Contents:
    """Finds the content of published days: empty for a day without files.

    Without `fingerprints` nothing is ever read: files that nobody measured only equal themselves.
    """

    ledger: Ledger
    tables: Mapping[str, PublishedTable]
    fingerprints: ContentFingerprints | None = None

    def of(self, name: str, days: Collection[dt.date]) -> dict[dt.date, str]:
        """The contents as they are; files that nobody has measured are read once, and remembered."""
        known, unknown = self._looked(name, days)
        if unknown and self.fingerprints is not None:
            known |= self._measured(name, unknown, self.fingerprints)
        return _told(days, known, unknown)

    def supposed(self, name: str, days: Collection[dt.date]) -> dict[dt.date, str]:
        """The same without reading any rows: unmeasured files with as many rows as were released count as what was released."""
        known, unknown = self._looked(name, days)
        released = self._released(name, unknown)
        alike = {day: files for day, files in released.items() if _rows(files) == _rows(unknown[day]) is not None}
        known |= self._known(name, alike)
        return _told(days, known, unknown)

    def _looked(self, name: str, days: Collection[dt.date]) -> tuple[dict[dt.date, Content], _Files]:
        """The contents that are known, and the files of days that nobody has measured."""
        active = self._active(name, days)
        known = self._known(name, active)
        return known, {day: files for day, files in active.items() if day not in known}

    def _measured(self, name: str, unknown: _Files, fingerprints: ContentFingerprints) -> dict[dt.date, Content]:
        before = self._known(name, self._released(name, unknown))
        found = fingerprints.of(name, tuple(unknown))
        # Read after the files were listed: where these have moved since, nobody knows which ones were read.
        still = self._active(name, unknown)
        measured = {
            day: before[day]
            if day in before and before[day].fingerprint == found[day]
            else Content(found[day], UNKNOWN_ORIGIN)
            for day, files in unknown.items()
            if layout_digest(still.get(day, ())) == layout_digest(files)
        }
        self.ledger.add_contents(name, {day: (layout_digest(unknown[day]), c) for day, c in measured.items()})
        return measured

    def _active(self, name: str, days: Collection[dt.date]) -> _Files:
        table = self.tables[name]
        active = table.active(days) if days and table.exists() else {}
        return {day: files for day, files in active.items() if files}

    def _known(self, name: str, files: _Files) -> dict[dt.date, Content]:
        return dict(self.ledger.contents(name, {day: layout_digest(own) for day, own in files.items()}))

    def _released(self, name: str, days: Collection[dt.date]) -> _Files:
        """The files that the release behind each of these days brought."""
        if not days:
            return {}
        standing = effective(self.ledger.releases(name))
        wanted = {release.release: release for day in days if (release := standing.get(day)) is not None}
        return {
            swap.day: swap.add
            for release in wanted.values()
            for swap in release.days
            if swap.day in days and standing[swap.day] is release and swap.add
        }


def _rows(files: Collection[DataFile]) -> int | None:
    counts = [file.rows for file in files]
    return None if None in counts else sum(count or 0 for count in counts)


def _told(days: Collection[dt.date], known: Mapping[dt.date, Content], unknown: _Files) -> dict[dt.date, str]:
    unlike_all = {day: f"files {layout_digest(files)}" for day, files in unknown.items()}
    return dict.fromkeys(days, "") | unlike_all | {day: content.fingerprint for day, content in known.items()}


PUBLISHED: Final = ""
"""The place of days that are read from the published table; all other places are shadow folders."""


@dataclass(frozen=True)
class UpstreamDays:
    """Days of an upstream by the place where they stand: a shadow's folder below its published table, or `PUBLISHED`."""

    loaded: LoadedDataset
    places: Mapping[str, tuple[dt.date, ...]]
