"""Surroundings: the tables of a dataset while its days are recomputed, of which nothing may change."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from backfill_assets.core.days import format_days
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.release import ReleaseState, layout_digest
from backfill_assets.core.unit import StagedDay
from backfill_assets.delta.table import PublishedTable
from backfill_assets.domain.proof_ports import Recomputations
from backfill_assets.ledger.ledger import Ledger

_Layouts = Mapping[dt.date, str]


@dataclass(frozen=True)
class Surroundings:
    """The layouts of a dataset's tables by day at one moment, and what the ledger knew of them."""

    published: _Layouts
    road: Mapping[str, _Layouts]
    releases: frozenset[str]
    deliveries: frozenset[Delivery]
    staged: Mapping[dt.date, StagedDay]


@dataclass(frozen=True)
class Watch:
    """Compares the surroundings of a recomputation; what releases, landings and stagings did meanwhile is theirs."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]

    def look(self, name: str, recomputations: Recomputations) -> Surroundings:
        """The surroundings now."""
        # What the ledger knows comes first: what is written between the two is known to neither, and looked up later.
        releases = {n for n, head in self.ledger.heads().items() if head.state is ReleaseState.finalized}
        road = recomputations.layouts(name)
        days = tuple({day for table, found in road.items() if table != "raw" for day in found})
        return Surroundings(
            self._published(name),
            road,
            frozenset(releases),
            frozenset(self.ledger.deliveries(name, tuple(road.get("raw", {})))),
            self.ledger.staged(name, days),
        )

    def touched(self, name: str, before: Surroundings, recomputations: Recomputations) -> tuple[str, ...]:
        """Tables and days that changed since, and that no release, landing or staging of somebody else accounts for."""
        found = list(self._moved(name, before, recomputations))
        return tuple(f"{table} {format_days(days)}" for table, days in found if days)

    def _moved(
        self, name: str, before: Surroundings, recomputations: Recomputations
    ) -> Iterator[tuple[str, frozenset[dt.date]]]:
        now, road = self._published(name), recomputations.layouts(name)
        moved = _changed(before.published, now)
        yield "published", moved - self._released(name, before) if moved else moved
        for table in sorted(before.road.keys() | road.keys()):
            moved = _changed(before.road.get(table, {}), road.get(table, {}))
            if not moved:
                continue
            yield table, moved - (self._landed if table == "raw" else self._staged)(name, before, moved)

    def _published(self, name: str) -> _Layouts:
        table = self.tables[name]
        return {day: layout_digest(files) for day, files in table.active().items()} if table.exists() else {}

    def _released(self, name: str, before: Surroundings) -> frozenset[dt.date]:
        since = (r.manifest for r in self.ledger.releases(name) if r.manifest.release not in before.releases)
        return frozenset(swap.day for manifest in since for swap in manifest.days)

    def _landed(self, name: str, before: Surroundings, days: frozenset[dt.date]) -> frozenset[dt.date]:
        return frozenset(d.day for d in self.ledger.deliveries(name, tuple(days)) if d not in before.deliveries)

    def _staged(self, name: str, before: Surroundings, days: frozenset[dt.date]) -> frozenset[dt.date]:
        now = self.ledger.staged(name, tuple(days))
        return frozenset(day for day, staged in now.items() if staged != before.staged.get(day))


def _changed(before: _Layouts, now: _Layouts) -> frozenset[dt.date]:
    return frozenset(day for day in before.keys() | now.keys() if before.get(day) != now.get(day))
