"""What readers are shown beside the published table: previews, and the table of releases."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from backfill_assets.core.errors import UnitError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.unit import LOCK_WAIT, Unit, UnitState
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.releases_table import ReleasesTable, by_name, differing, is_of, projection
from backfill_assets.ledger.ledger import Ledger


class Previews(Protocol):
    """Views of datasets as they will be once a unit is released."""

    def show(self, dataset: str, unit: str, days: Sequence[dt.date], shadows: Mapping[str, Sequence[dt.date]]) -> str:
        """Create or renew the view of a dataset; its full name.

        It shows the published table outside of `days`, and of these what stands in the unit's `shadows` (folder to days).
        """
        ...

    def shown(self) -> Mapping[str, str]:
        """The datasets that have such a view, and the unit that it shows."""
        ...

    def drop(self, datasets: Sequence[str]) -> None:
        """Drop the views of these datasets; one that is not there is fine."""
        ...


@dataclass(frozen=True)
class ShownPreview:
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

    def show(self, unit_id: str) -> tuple[ShownPreview, ...]:
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

    def _show(self, unit: Unit, name: str) -> ShownPreview:
        found = self.ledger.evidence(unit.id, name)
        good = [e for e in found.values() if e.verdicts and e.passed]
        new = tuple(sorted(e.day for e in good))
        lacking = tuple(sorted(set(unit.targets[name]) - set(new)))
        view = self.previews.show(name, unit.id, new, _shadows(good))
        return ShownPreview(name, view, new, lacking)


def _shadows(evidence: Sequence[DayEvidence]) -> dict[str, list[dt.date]]:
    """Where the days stand; a day without data stands nowhere, and its attempt may have no table at all."""
    places: dict[str, list[dt.date]] = {}
    for found in evidence:
        if found.shadow_files:
            places.setdefault(found.folder, []).append(found.day)
    return places


@dataclass(frozen=True)
class DataReleases:
    """Projects the ledger's releases into the table; the ledger stays the one that counts.

    A row that says how its release stands is trusted in all else, because manifests are long and there are ever more of
    them; a repair compares the `whole` table with them.
    """

    ledger: Ledger
    table: ReleasesTable
    wait: dt.timedelta = LOCK_WAIT
    whole: bool = False

    def differing(self) -> tuple[str, ...]:
        """Releases of which the table does not say what the ledger says; changes nothing."""
        return differing(projection(self.ledger.releases()), self.table.read() or ())

    def refresh(self) -> bool:
        """Write the table again if it differs from the ledger; whether it did.

        Raises:
            LedgerError: somebody else has been writing it for too long.
        """
        # Read and written under one lock: an older reading must not come after a newer one.
        with self.ledger.lock(DATA_RELEASES, self.wait):
            found, heads = self.table.read(), self.ledger.heads()
            trusted = () if self.whole else found or ()
            rows = [row for row in trusted if row.release in heads and is_of(row, heads[row.release])]
            lacking = heads.keys() - {row.release for row in rows}
            rows = sorted([*rows, *projection(self.ledger.release(name) for name in lacking)], key=by_name)
            if found is not None and sorted(found, key=by_name) == rows:
                return False
            self.table.write(rows)
        return True
