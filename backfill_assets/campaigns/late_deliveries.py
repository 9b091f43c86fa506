"""Late deliveries: source files that nobody has landed yet, for days that are published already."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.canonical import digest
from backfill_assets.domain.dataset import LateData
from backfill_assets.domain.days import ONE_DAY, day_range
from backfill_assets.domain.ports import Ledger, PublishedTable
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road import SourceFile, discover


@dataclass(frozen=True)
class LateDay:
    """A published day for which something new has been delivered.

    `deliveries` is a digest of the new files: equal as long as nothing else comes. `waits_for` says what keeps a live run
    from working on the day: an open unit's claim, or a hold; empty if nothing does.
    """

    dataset: str
    day: dt.date
    files: tuple[str, ...]
    deliveries: str
    waits_for: str = ""


@dataclass(frozen=True)
class LateDeliveries:
    """Looks for late deliveries in the days that a dataset watches; reads files and the ledger, lands nothing."""

    ledger: Ledger
    datasets: Mapping[str, LoadedDataset]
    tables: Mapping[str, PublishedTable]
    layout: Layout

    def of(self, name: str) -> tuple[LateDay, ...]:
        """The late days of one dataset; none before its first release, and none without a source."""
        loaded = self.datasets[name]
        dataset, table = loaded.dataset, self.tables[name]
        published = {day for day, files in table.active().items() if files} if table.exists() else set()
        if dataset.source is None or not published:
            return ()
        newest = max(published)
        watched = [d for d in day_range(newest - (dataset.live.watch_days - 1) * ONE_DAY, newest) if d >= dataset.start]
        new = self._new(loaded, dataset.delivery_days(tuple(watched)))
        days = {day: [f for d in dataset.delivery_days((day,)) for f in new.get(d, ())] for day in watched}
        waits = self._waits(name, tuple(day for day, files in days.items() if files))
        return tuple(
            LateDay(name, day, tuple(f.path for f in files), _digest(files), waits.get(day, ""))
            for day, files in days.items()
            if files
        )

    def _new(self, loaded: LoadedDataset, window: tuple[dt.date, ...]) -> Mapping[dt.date, list[SourceFile]]:
        known = {(d.day, d.path, d.fingerprint) for d in self.ledger.deliveries(loaded.name, window)}
        new: dict[dt.date, list[SourceFile]] = {}
        for file in discover(loaded, self.layout, window):
            if (file.day, file.path, file.fingerprint) not in known:
                new.setdefault(file.day, []).append(file)
        return new

    def _waits(self, name: str, days: tuple[dt.date, ...]) -> Mapping[dt.date, str]:
        held = {h.target[1]: f"on hold: {h.reason}" for h in self.ledger.holds(name, days)} if days else {}
        if self.datasets[name].dataset.late_data is LateData.publish:
            return held
        return {day: f"claimed by open unit {unit}" for day, unit in self.ledger.claims(name, days).items()} | held


def _digest(files: list[SourceFile]) -> str:
    return digest(sorted((file.path, file.fingerprint) for file in files))[:16]
