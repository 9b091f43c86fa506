"""What readers see of a unit's days and around them: which release brought what, and what was measured of it."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Final

from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.measured import ROW_COUNT, Figures
from backfill_assets.core.release import (
    DataFile,
    DaySwap,
    Manifest,
    ReleaseKind,
    ReleaseState,
    layout_digest,
    restorable_until,
)
from backfill_assets.core.unit import ReleaseRecord, Unit
from backfill_assets.delta.table import PublishedTable
from backfill_assets.domain.review import DayState
from backfill_assets.domain.series import Surroundings
from backfill_assets.evidence.contents import effective
from backfill_assets.ledger.ledger import Ledger

CONTEXT: Final = dt.timedelta(days=60)
"""How far before and after a unit's days its neighbours are shown: enough steps to tell a usual one."""


@dataclass(frozen=True)
class Shown:
    """What readers see of one dataset now, beside a unit's days; reads only."""

    ledger: Ledger
    table: PublishedTable
    dataset: str
    unit: Unit

    @cached_property
    def files(self) -> Mapping[dt.date, tuple[DataFile, ...]]:
        """The files of every day."""
        return self.table.active()

    @cached_property
    def records(self) -> Sequence[ReleaseRecord]:
        """The releases of the dataset that are true, newest first."""
        return self.ledger.releases(self.dataset, states={ReleaseState.finalized})

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {record.manifest.release: record.number for record in self.records}

    @cached_property
    def standing(self) -> Mapping[dt.date, Manifest]:
        """The publication of each day that has not been rolled back, as `effective` has it."""
        return effective(self.records)

    def undoable(self, now: dt.datetime) -> frozenset[str]:
        """The publications of the unit that a rollback could undo, at least for some of their days."""
        standing, kept = {manifest.release for manifest in self.standing.values()}, self.table.keep_for
        return frozenset(
            record.manifest.release
            for record in self.records
            if record.manifest.release in standing
            and record.manifest.unit == self.unit.id
            and record.since is not None
            and now <= restorable_until(record.since, kept)
        )

    @cached_property
    def origins(self) -> Mapping[dt.date, tuple[Manifest, DaySwap]]:
        """The publication that each day shows, and what it did to it; days that show what none has brought lack."""
        swaps = {m.release: {swap.day: swap for swap in m.days} for m in self.standing.values()}
        found = {day: (manifest, swaps[manifest.release][day]) for day, manifest in self.standing.items()}
        return {
            day: (manifest, swap)
            for day, (manifest, swap) in found.items()
            if layout_digest(swap.add) == layout_digest(self.files.get(day, ()))
        }

    @cached_property
    def live(self) -> frozenset[dt.date]:
        """The days that live runs have published since the unit was opened."""
        units = {one.id for one in self.ledger.units(self.dataset) if one.live and one.opened_at >= self.unit.opened_at}
        units.discard(self.unit.id)
        return frozenset(day for day, (manifest, _) in self.origins.items() if manifest.unit in units)

    def around(self) -> Surroundings:
        """The published figures of the days around the unit's own, and in the gaps between them."""
        own = frozenset(self.unit.targets[self.dataset])
        first, last = min(own) - CONTEXT, max(own) + CONTEXT
        days = [day for day in self.files if first <= day <= last and day not in own]
        return Surroundings(self._figures(days), self.live)

    def became(self) -> Mapping[DatasetDay, DayState]:
        """What readers see of each of the unit's days, once it was published."""
        undone: dict[dt.date, int] = {}
        for record in reversed(self.records):
            manifest = record.manifest
            if manifest.kind is ReleaseKind.rollback and manifest.unit == self.unit.id:
                undone |= {swap.day: record.number for swap in manifest.days}
        return {(self.dataset, day): self._became(day, undone.get(day)) for day in self.unit.targets[self.dataset]}

    def _became(self, day: dt.date, undone: int | None) -> DayState:
        manifest, _ = self.origins.get(day, (None, None))
        if manifest is not None and manifest.unit == self.unit.id:
            return DayState.published
        # What lies under a rollback is older than it; a day without a file shows what no release has brought.
        untouched = self._numbers[manifest.release] < undone if manifest and undone else not self.files.get(day)
        return DayState.rolled_back if undone is not None and untouched else DayState.rewritten

    def _figures(self, days: Collection[dt.date]) -> Mapping[dt.date, Figures]:
        """What was measured when each day was published; of a day of which that is not known only the number of rows."""
        by_unit: dict[str, list[dt.date]] = defaultdict(list)
        for day in days:
            if day in self.origins:
                by_unit[self.origins[day][0].unit].append(day)
        found: dict[dt.date, Figures] = {}
        for unit, some in by_unit.items():
            for (_, day), evidence in self.ledger.evidence(unit, self.dataset, some).items():
                if evidence.hash == self.origins[day][1].evidence:
                    found[day] = evidence.measured.shadow.metrics
        for day in days:
            rows = [file.rows for file in self.files[day]]
            if day not in found and None not in rows:
                found[day] = {ROW_COUNT: Decimal(sum(row for row in rows if row is not None))}
        return found
