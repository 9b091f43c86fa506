"""What published days hold: the release that each should show, and the content of its files, also after a compaction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from backfill_assets.core.content import UNKNOWN_ORIGIN, Content
from backfill_assets.core.release import DataFile, Manifest, ReleaseKind, ReleaseState, layout_digest
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.known_deliveries import SourceFingerprints
from backfill_assets.ledger.open import Ledger
from backfill_assets.warehouse import OnWarehouse


def effective(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, Manifest]:
    """The release that each day should show: the newest one that has not been rolled back for that day.

    `records` are all releases of one dataset, newest first.
    """
    return {day: stack[-1] for day, stack in _standing(records).items()}


def building(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, Manifest | None]:
    """The release that built what each day should show: None if no release did, only the table was adopted with it."""
    return {
        day: next((one for one in reversed(stack) if one.kind is ReleaseKind.publish), None)
        for day, stack in _standing(records).items()
    }


def _standing(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, Sequence[Manifest]]:
    """The releases of each day that have not been rolled back, oldest first; days without any are left out."""
    stacks: dict[dt.date, list[Manifest]] = {}
    for record in reversed(records):
        manifest = record.manifest
        if record.state is not ReleaseState.finalized:
            continue
        for swap in manifest.days:
            stack = stacks.setdefault(swap.day, [])
            names = [below.release for below in stack]
            if manifest.kind is not ReleaseKind.rollback:
                stack.append(manifest)
            elif manifest.undoes in names:
                # The rollback also removes all releases on top of the undone one.
                del stack[names.index(manifest.undoes) :]
    return {day: stack for day, stack in stacks.items() if stack}


def published_among(
    ledger: Ledger, table: PublishedTable, dataset: str, days: Collection[dt.date]
) -> frozenset[dt.date]:
    """The days that are published: readers see rows of them, or a release states that they have none."""
    active = table.active(days) if days and table.exists() else {}
    filled = frozenset(day for day, files in active.items() if files)
    rest = frozenset(days) - filled
    # Manifests of long histories are big, so they are read only for days without a file.
    return filled | (rest & effective(ledger.releases(dataset)).keys() if rest else frozenset())


class ContentFingerprints(SourceFingerprints, Protocol):
    """Reads content when the layout of files changed: only changed content makes evidence stale."""

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Order-independent fingerprints of the published days, as in `Side.fingerprint`."""
        ...


_Files = Mapping[dt.date, tuple[DataFile, ...]]


@dataclass(frozen=True)
class Contents(OnWarehouse):
    """Finds the content of published days; it is empty for a day without files.

    Without `fingerprints`, no rows are read: files that were never measured equal only themselves.
    """

    fingerprints: ContentFingerprints | None = None

    def of(self, name: str, days: Collection[dt.date]) -> dict[dt.date, str]:
        """The actual contents; files that were never measured are read once, and the result is stored."""
        known, unknown = self._known_and_unknown(name, days)
        if unknown and self.fingerprints is not None:
            known |= self._measured(name, unknown, self.fingerprints)
        return _by_day(days, known, unknown)

    def supposed(self, name: str, days: Collection[dt.date]) -> dict[dt.date, str]:
        """The same without reading rows: unmeasured files count as the released content if they have as many rows."""
        known, unknown = self._known_and_unknown(name, days)
        return _by_day(days, known | self._alike(name, unknown), unknown)

    def supposed_contents(self, name: str, days: Collection[dt.date]) -> dict[dt.date, Content]:
        """The same with what they were built from; days of which nothing is known are left out."""
        known, unknown = self._known_and_unknown(name, days)
        return known | self._alike(name, unknown)

    def _alike(self, name: str, unknown: _Files) -> dict[dt.date, Content]:
        released = self._released(name, unknown)
        alike = {day: files for day, files in released.items() if _rows(files) == _rows(unknown[day]) is not None}
        return self._known(name, alike)

    def _known_and_unknown(self, name: str, days: Collection[dt.date]) -> tuple[dict[dt.date, Content], _Files]:
        """The known contents, and the files of days that were never measured."""
        active = self._active(name, days)
        known = self._known(name, active)
        return known, {day: files for day, files in active.items() if day not in known}

    def _measured(self, name: str, unknown: _Files, fingerprints: ContentFingerprints) -> dict[dt.date, Content]:
        before = self._known(name, self._released(name, unknown))
        found = fingerprints.of(name, tuple(unknown))
        # List the files again after the reading: if they changed, it is unknown which ones were read.
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
        """The files that the release behind each of these days added."""
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


def _by_day(days: Collection[dt.date], known: Mapping[dt.date, Content], unknown: _Files) -> dict[dt.date, str]:
    unlike_all = {day: f"files {layout_digest(files)}" for day, files in unknown.items()}
    return dict.fromkeys(days, "") | unlike_all | {day: content.fingerprint for day, content in known.items()}
