"""Reach: which files a release touches, told from the Delta log, and that no file of another day is among them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import TimeTravelError
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind, layout_digest
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.delta.table import PublishedTable
from backfill_assets.domain.review import Reach
from backfill_assets.evidence.readiness import Survey

FilesByDay = Mapping[dt.date, tuple[DataFile, ...]]


@dataclass(frozen=True)
class Reaches:
    """Tells the reach of releases to come and of those that were made; reads only."""

    tables: Mapping[str, PublishedTable]

    def planned(self, survey: Survey) -> tuple[Reach, ...]:
        """What releasing a unit would touch, for each of its datasets."""
        return tuple(self._planned(survey, name) for name in sorted(survey.unit.targets))

    def made(self, record: ReleaseRecord) -> Reach | None:
        """What a release has touched: its version of the table against the one before it; none if it was never committed."""
        manifest, version = record.manifest, record.version
        table = self.tables.get(manifest.dataset)
        if table is None or version is None:
            return None
        verb = "put back" if manifest.kind is ReleaseKind.rollback else "brought"
        words = f"{manifest.release} {verb} {_swapped(manifest.days)}"
        try:
            before, after = table.at(version - 1), table.at(version)
        except TimeTravelError as error:
            words += f"; whether it left all else alone cannot be told any more: {error}"
            return replace(_reach(manifest, {}), held=None, words=words)
        days = frozenset(swap.day for swap in manifest.days)
        outside = {day: files for day, files in after.items() if day not in days}
        altered = _altered({day: files for day, files in before.items() if day not in days}, outside)
        wrong = tuple(s.day for s in manifest.days if layout_digest(after.get(s.day, ())) != layout_digest(s.add))
        words += f". Version {version} against version {version - 1} of the Delta log: {_outside(outside, altered)}"
        if wrong:
            words += f" {format_days(wrong, most=3)} show other files than the release brought."
        every = (*altered, *wrong)
        return replace(_reach(manifest, outside), altered=every, held=not every, words=words)

    def _planned(self, survey: Survey, name: str) -> Reach:
        days, swaps = frozenset(survey.unit.targets[name]), survey.swaps(name)
        outside = {day: files for day, files in self.tables[name].active().items() if day not in days}
        strangers = tuple(s.day for s in swaps if any(f.day != s.day for f in (*s.add, *s.remove)))
        words = (
            f"Publishing {name} brings {_swapped(swaps)}: exactly the files that these days have now. "
            f"{_kept(outside)} not touched."
        )
        if strangers:
            words = f"The shadow of {name} holds files of other days than its own: {format_days(strangers, most=3)}."
        counts = _counts(swaps, outside)
        return Reach(name, "", len(swaps), *counts, altered=strangers, held=not strangers, words=words)


def _reach(manifest: Manifest, outside: FilesByDay) -> Reach:
    counts = _counts(manifest.days, outside)
    return Reach(manifest.dataset, manifest.release, len(manifest.days), *counts, altered=(), held=True, words="")


def _counts(swaps: Sequence[DaySwap], outside: FilesByDay) -> tuple[int, int, int, int]:
    """Files that leave and come, files and days outside."""
    files = sum(len(found) for found in outside.values())
    return sum(len(s.remove) for s in swaps), sum(len(s.add) for s in swaps), files, len(outside)


def _altered(before: FilesByDay, after: FilesByDay) -> tuple[dt.date, ...]:
    days = sorted({*before, *after})
    return tuple(day for day in days if layout_digest(before.get(day, ())) != layout_digest(after.get(day, ())))


def _swapped(swaps: Sequence[DaySwap]) -> str:
    removed, added, *_ = _counts(swaps, {})
    days = number_of(len(swaps), "day")
    return f"{number_of(added, 'file')} for {days} in place of {number_of(removed, 'file')}"


def _kept(outside: FilesByDay) -> str:
    count = sum(len(files) for files in outside.values())
    if not count:
        return "There is no file of another day, so none is"
    return (
        f"The {number_of(count, 'file')} of the {number_of(len(outside), 'other day')} {'is' if count == 1 else 'are'}"
    )


def _outside(outside: FilesByDay, altered: Sequence[dt.date]) -> str:
    if altered:
        return f"outside of its days, {format_days(altered, most=3)} are not the same before and after."
    count = sum(len(files) for files in outside.values())
    if not count:
        return "there is no file of another day."
    return f"the {number_of(count, 'file')} of the {number_of(len(outside), 'other day')} are the very same."
