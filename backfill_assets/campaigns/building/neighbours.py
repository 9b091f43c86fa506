"""The days around a batch: the seams that it brings in at the edges of its unit and where months begin."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.days import ONE_DAY, day_range
from backfill_assets.domain.measurement import Figures, Side
from backfill_assets.domain.ports import WorkLedger
from backfill_assets.domain.seams import Seam, places, seams
from backfill_assets.domain.units import Unit
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road import Sides, published_figures

_SPAN: Final = 28
"""How many days on either side tell which steps are usual: four weeks."""

Days = tuple[dt.date, ...]


@dataclass(frozen=True)
class Neighbours:
    """Finds seams between the days of a batch and those around it."""

    ledger: WorkLedger
    datasets: Mapping[str, LoadedDataset]
    layout: Layout

    def seams(
        self, spark: SparkSession, unit: Unit, name: str, batch: Mapping[dt.date, Sides]
    ) -> Mapping[dt.date, tuple[Seam, ...]]:
        """The steps at the places of the unit that the batch has part in, by the day of the batch that has to answer for them.

        Only steps into or out of days whose published content changes are looked at; where there is none, nothing is read.
        Days that the unit holds count as they have been built; those that have not been yet are left out.
        """
        at = _places(unit.targets[name], batch)
        if not at:
            return {}
        old, new = self._series(spark, unit, name, (at, batch))
        found: dict[dt.date, list[Seam]] = {}
        for seam in seams(name, old, new, at):
            found.setdefault(seam.day if seam.day in batch else seam.day - ONE_DAY, []).append(seam)
        return {day: tuple(own) for day, own in found.items()}

    def _series(
        self, spark: SparkSession, unit: Unit, name: str, wanted: tuple[Days, Mapping[dt.date, Sides]]
    ) -> tuple[dict[dt.date, Figures], dict[dt.date, Figures]]:
        at, batch = wanted
        window = {day for place in at for day in day_range(place - ONE_DAY * _SPAN, place + ONE_DAY * (_SPAN - 1))}
        others = window - set(batch)
        held = others & set(unit.targets[name])
        around = published_figures(spark, self.datasets[name], self.layout, sorted(others - held))
        old, new = {**around}, {**around}
        for (_, day), evidence in self.ledger.evidence(unit.id, name, sorted(held)).items() if held else ():
            if evidence.verdicts:
                _add(day, evidence.measured.published, old)
                _add(day, evidence.measured.shadow, new)
        for day, sides in batch.items():
            _add(day, sides.published, old)
            _add(day, sides.shadow, new)
        return old, new


def _places(held: Collection[dt.date], batch: Mapping[dt.date, Sides]) -> Days:
    changed = {d for d, s in batch.items() if s.published.rows and s.published.fingerprint != s.shadow.fingerprint}
    return tuple(place for place in places(held) if place in changed or place - ONE_DAY in changed)


def _add(day: dt.date, side: Side, series: dict[dt.date, Figures]) -> None:
    if side.rows:
        series[day] = side.metrics
