"""The days around a batch: the seams that it brings in at the edges of its unit and where months begin."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.measured import Figures, NullRise, Seam, Side
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.domain.null_shares import SPAN, Files, null_rises
from backfill_assets.domain.seams import places, seams
from backfill_assets.lakehouse.road.measure import Sides, published_figures
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.storage.layout import Layout

_SPAN: Final = 28
"""How many days on either side tell which steps are usual: four weeks."""

Days = tuple[dt.date, ...]


@dataclass(frozen=True)
class Neighbours:
    """Finds seams and risen shares of nulls between the days of a batch and those around it."""

    ledger: Ledger
    datasets: Mapping[str, LoadedDataset]
    layout: Layout

    def seams(
        self, spark: SparkSession, unit: Unit, name: str, batch: Mapping[dt.date, Sides]
    ) -> Mapping[dt.date, tuple[Seam, ...]]:
        """The steps at the places of the unit that the batch has part in, by the day of the batch that has to answer for them.

        Only steps into or out of days whose published content changes are looked at; where there is none, no table is read.
        Days that the unit holds count as they have been built; those that have not been yet are left out. Of other days
        only row counts and sums are known, so percentiles and distinct counts have steps among the unit's days alone.
        """
        at = self._places(unit, name, batch)
        if not at:
            return {}
        old, new = self._series(spark, unit, name, (at, batch))
        found: dict[dt.date, list[Seam]] = {}
        for seam in seams(name, old, new, at):
            found.setdefault(seam.day if seam.day in batch else seam.day - ONE_DAY, []).append(seam)
        return {day: tuple(own) for day, own in found.items()}

    def null_rises(
        self, unit: Unit, name: str, built: Files, published: Files
    ) -> Mapping[dt.date, tuple[NullRise, ...]]:
        """The columns of the batch's days that are null more often than before; `published` are those days and a week around."""
        dataset = self.datasets[name].dataset
        around = {day for one in built for day in week_around(one)}
        held = sorted((around - built.keys()) & set(unit.targets[name]))
        evidence = self.ledger.evidence(unit.id, name, held) if held else {}
        columns = dataset.columns.keys() - set(dataset.required_columns)
        return null_rises(sorted(columns), built, published, {day: e.shadow_files for (_, day), e in evidence.items()})

    def _places(self, unit: Unit, name: str, batch: Mapping[dt.date, Sides]) -> Days:
        held = unit.targets[name]
        own = {place: {place, place - ONE_DAY} for place in places(held)}
        own = {place: both for place, both in own.items() if both & set(batch)}
        # Whichever side of a step is built last has to answer for it, though it stays as it was itself.
        beside = sorted({day for both in own.values() for day in both} & set(held) - set(batch))
        built = self.ledger.evidence(unit.id, name, beside) if beside else {}
        changed = {day for day, sides in batch.items() if _is_changed(sides.published, sides.shadow)}
        changed |= {
            day for (_, day), e in built.items() if e.verdicts and _is_changed(e.measured.published, e.measured.shadow)
        }
        return tuple(place for place, both in own.items() if both & changed)

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


def week_around(day: dt.date) -> Days:
    """The days of a week before and after a day, and itself."""
    return day_range(day - SPAN * ONE_DAY, day + SPAN * ONE_DAY)


def _is_changed(published: Side, shadow: Side) -> bool:
    return published.rows > 0 and published.fingerprint != shadow.fingerprint


def _add(day: dt.date, side: Side, series: dict[dt.date, Figures]) -> None:
    if side.rows:
        series[day] = side.metrics
