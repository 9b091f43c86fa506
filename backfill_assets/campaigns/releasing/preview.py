"""Previews: a dataset as it will be once a unit is released, for analysts and pinned dashboards to try."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from backfill_assets.core.errors import UnitError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.domain.reader_ports import Previews
from backfill_assets.ledger.ledger import Ledger


@dataclass(frozen=True)
class Shown:
    """A preview of one dataset: the view's name, the days that are new in it, and those that still are as published."""

    dataset: str
    view: str
    new: tuple[dt.date, ...]
    lacking: tuple[dt.date, ...]


@dataclass(frozen=True)
class Preview:
    """Creates previews of open units, and drops them when the units are over."""

    ledger: Ledger
    previews: Previews

    def show(self, unit_id: str) -> tuple[Shown, ...]:
        """Create or renew the preview of every dataset of an open unit.

        Days that have no passing evidence yet are shown as they are published; call it again for newer ones.

        Raises:
            UnitError: there is no such unit, or it is not open.
        """
        unit = self.ledger.unit(unit_id)
        if unit.state is not UnitState.open:
            raise UnitError(
                f"unit {unit_id} is {unit.state.value}: there is nothing to preview, its datasets are what they are"
            )
        return tuple(self._show(unit, name) for name in sorted(unit.targets))

    def drop(self, unit_id: str) -> tuple[str, ...]:
        """Drop the previews of a unit; the datasets that had one."""
        own = tuple(sorted(name for name, unit in self.previews.shown().items() if unit == unit_id))
        self.previews.drop(own)
        return own

    def tidy(self) -> tuple[str, ...]:
        """Drop the previews of units that are over, whose shadows are sealed or swept; the datasets that had one."""
        open_units = {unit.id for unit in self.ledger.units(states={UnitState.open})}
        over = tuple(sorted(name for name, unit in self.previews.shown().items() if unit not in open_units))
        self.previews.drop(over)
        return over

    def _show(self, unit: Unit, name: str) -> Shown:
        found = self.ledger.evidence(unit.id, name)
        good = [e for e in found.values() if e.verdicts and e.passed]
        new = tuple(sorted(e.day for e in good))
        lacking = tuple(sorted(set(unit.targets[name]) - set(new)))
        view = self.previews.show(name, unit.id, new, _shadows(good))
        return Shown(name, view, new, lacking)


def _shadows(evidence: Sequence[DayEvidence]) -> dict[str, list[dt.date]]:
    """Where the days stand; a day without data stands nowhere, and its attempt may have no table at all."""
    places: dict[str, list[dt.date]] = {}
    for found in evidence:
        if found.shadow_files:
            places.setdefault(found.folder, []).append(found.day)
    return places
