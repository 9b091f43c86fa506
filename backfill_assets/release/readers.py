"""What readers see beside the published table: previews, the table of releases, and who changed a day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Protocol

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import TimeTravelError, UnitError
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.core.release import EXTRA, DaySwap, ReleaseKind, ReleaseState, restorable_until
from backfill_assets.core.unit import LOCK_WAIT, ReleaseRecord, Unit, UnitState
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.releases_table import ReleasesTable, by_name, differing, is_of, projection
from backfill_assets.ledger.open import Ledger
from backfill_assets.release.finish import is_rollback, taken_back
from backfill_assets.warehouse import OnWarehouse


class Previews(Protocol):
    """Views of datasets as they will be once a unit is released."""

    def show(self, dataset: str, unit: str, days: Sequence[dt.date], shadows: Mapping[str, Sequence[dt.date]]) -> str:
        """Create or replace the view of a dataset and return its full name.

        It shows `days` from the unit's `shadows` (folder to days), and all other days from the published table.
        """
        ...

    def shown(self) -> Mapping[str, str]:
        """The datasets that have a preview, and the unit that it shows."""
        ...

    def drop(self, datasets: Sequence[str]) -> None:
        """Drop the views of these datasets; does nothing where there is none."""
        ...


@dataclass(frozen=True)
class ShownPreview:
    """A preview of one dataset: the view's name, its new days, and the days that it still shows as published."""

    dataset: str
    view: str
    new: tuple[dt.date, ...]
    missing: tuple[dt.date, ...]


@dataclass(frozen=True)
class Preview:
    """Creates previews of open units, and drops them when the units are no longer open."""

    ledger: Ledger
    previews: Previews

    def show(self, unit_id: str) -> tuple[ShownPreview, ...]:
        """Create or replace the preview of every dataset of an open unit.

        It shows days without passing evidence as they are published; call it again to include newer days.

        Raises:
            UnitError: there is no such unit, or it is not open.
        """
        unit = self.ledger.unit(unit_id)
        if unit.state is not UnitState.open:
            raise UnitError(
                f"unit {unit_id} is {unit.state.value}: there is nothing to preview, only open units have previews"
            )
        return tuple(self._show(unit, name) for name in sorted(unit.targets))

    def drop(self, unit_id: str) -> tuple[str, ...]:
        """Drop the previews of a unit; returns the datasets that had one."""
        own = tuple(sorted(name for name, unit in self.previews.shown().items() if unit == unit_id))
        self.previews.drop(own)
        return own

    def tidy(self) -> tuple[str, ...]:
        """Drop the previews of units that are not open (shadows sealed or swept); returns the datasets that had one."""
        open_units = {unit.id for unit in self.ledger.units(states={UnitState.open})}
        over = tuple(sorted(name for name, unit in self.previews.shown().items() if unit not in open_units))
        self.previews.drop(over)
        return over

    def _show(self, unit: Unit, name: str) -> ShownPreview:
        found = self.ledger.evidence(unit.id, name)
        good = [e for e in found.values() if e.verdicts and e.passed]
        new = tuple(sorted(e.day for e in good))
        missing = tuple(sorted(set(unit.targets[name]) - set(new)))
        view = self.previews.show(name, unit.id, new, _shadows(good))
        return ShownPreview(name, view, new, missing)


def _shadows(evidence: Sequence[DayEvidence]) -> dict[str, list[dt.date]]:
    """The days by shadow folder; leaves out days without data, because their attempt may have no table."""
    places: dict[str, list[dt.date]] = {}
    for found in evidence:
        if found.shadow_files:
            places.setdefault(found.folder, []).append(found.day)
    return places


@dataclass(frozen=True)
class DataReleases:
    """Projects the ledger's releases into the table; the ledger remains the source of truth.

    If a row has the current state of its release, its other columns are trusted too, because there are ever more
    manifests and they are long. A repair compares the `whole` table with the manifests.
    """

    ledger: Ledger
    table: ReleasesTable
    wait: dt.timedelta = LOCK_WAIT
    whole: bool = False

    def differing(self) -> tuple[str, ...]:
        """Releases whose rows in the table differ from the ledger; changes nothing."""
        return differing(projection(self.ledger.releases()), self.table.read() or ())

    def refresh(self, made: Collection[str] = ()) -> bool:
        """Write to the table what is missing of the ledger; returns whether it differed.

        If only the releases just `made` are missing, their rows are appended, and of all others only the states are compared.

        Raises:
            LedgerError: another process has been writing it for too long.
        """
        # Reads and writes under one lock: an older state must not overwrite a newer one.
        with self.ledger.lock(DATA_RELEASES, self.wait):
            if made and not self.whole and self._appended(made):
                return True
            found, heads = self.table.read(), self.ledger.heads()
            trusted = {} if self.whole else {row.release: row for row in found or ()}
            rows = [row for name, row in trusted.items() if name in heads and is_of(row, heads[name])]
            missing = heads.keys() - {row.release for row in rows}
            rows = sorted([*rows, *projection(self.ledger.release(name) for name in missing)], key=by_name)
            if found is not None and sorted(found, key=by_name) == rows:
                return False
            self.table.write(rows)
        return True

    def _appended(self, made: Collection[str]) -> bool:
        """Append the rows of these releases, unless more than them is missing in the table."""
        known, now = self.table.states(), self.ledger.states()
        if known is None or not known.keys().isdisjoint(made):
            return False
        then = {*known, *made}
        # Releases on their way in other processes are left to their own follow-up.
        wanted = {name: state for name, state in now.items() if name in then or state is not ReleaseState.intent}
        if {**known, **{name: now.get(name) for name in made}} != wanted:
            return False
        self.table.append(projection(self.ledger.release(name) for name in made))
        return True


Pair = tuple[Decimal | None, Decimal | None]
"""A figure before and after."""


@dataclass(frozen=True)
class DayChange:
    """What one release did to one day; rows are None if they were not counted.

    `measures` holds all metrics except the rows, before and after, from the release's evidence; it is empty if that
    evidence has been replaced since. `ended_hold` is the rollback that had put the day on hold; this publication ended
    the hold unless a user had lifted it earlier.
    """

    dataset: str
    day: dt.date
    release: str
    kind: ReleaseKind
    by: str
    at: dt.datetime
    reason: str
    rows_before: int | None
    rows_after: int | None
    measures: Mapping[str, Pair] = field(default_factory=dict)
    campaign: str = ""
    approved_by: str = ""
    undoes: str = ""
    unit: str = ""
    ended_hold: str = ""


@dataclass(frozen=True)
class History:
    """Shows what happened to days, from the releases and their evidence; reads only."""

    ledger: Ledger

    def of(self, dataset: str, days: Collection[dt.date] | None = None) -> tuple[DayChange, ...]:
        """Every change of a dataset's days (all unless some are named), newest first, days in order."""
        wanted = None if days is None else frozenset(days)
        records = self.ledger.releases(dataset)
        undone = taken_back(records)
        changes: list[DayChange] = []
        rolled_back: dict[dt.date, str] = {}
        for record in reversed(records):
            if record.state is not ReleaseState.finalized:
                continue
            own = self._changes(record, wanted)
            if is_rollback(record):
                rolled_back |= dict.fromkeys((c.day for c in own), record.manifest.release)
            elif record.manifest.kind is ReleaseKind.publish and record.manifest.release not in undone:
                own = [replace(c, ended_hold=rolled_back.pop(c.day, "")) for c in own]
            changes = own + changes
        return tuple(changes)

    def _changes(self, record: ReleaseRecord, wanted: frozenset[dt.date] | None) -> list[DayChange]:
        manifest = record.manifest
        swaps = [s for s in manifest.days if wanted is None or s.day in wanted]
        evidence = self.ledger.evidence(manifest.unit, manifest.dataset, {s.day for s in swaps}) if swaps else {}
        return [_change(record, swap, evidence) for swap in sorted(swaps, key=lambda s: s.day)]


def _change(record: ReleaseRecord, swap: DaySwap, evidence: Mapping[DatasetDay, DayEvidence]) -> DayChange:
    manifest = record.manifest
    found = evidence.get((manifest.dataset, swap.day))
    seen = found if found is not None and found.hash == swap.evidence else None
    back = manifest.kind is ReleaseKind.rollback
    if back and seen is not None and {f.path for f in swap.remove} != {f.path for f in seen.shadow_files}:
        # The day was rewritten in between, so the rows that the rollback removed were never measured.
        seen = None
    return DayChange(
        dataset=manifest.dataset,
        day=swap.day,
        release=manifest.release,
        kind=manifest.kind,
        by=manifest.by,
        at=record.committed_at or manifest.created_at,
        reason=manifest.reason,
        rows_before=_rows(swap, coming=False),
        rows_after=_rows(swap, coming=True),
        measures={} if seen is None else _measures(seen, back=back),
        campaign=manifest.campaign,
        approved_by=manifest.approved_by,
        undoes=manifest.undoes,
        unit=manifest.unit,
    )


def _rows(swap: DaySwap, *, coming: bool) -> int | None:
    rows = [f.rows for f in (swap.add if coming else swap.remove)]
    return None if None in rows else sum(r for r in rows if r is not None)


def _measures(evidence: DayEvidence, *, back: bool) -> dict[str, Pair]:
    sides = (evidence.measured.published.metrics, evidence.measured.shadow.metrics)
    before, after = reversed(sides) if back else sides
    names = [name for name in dict.fromkeys([*before, *after]) if name != ROW_COUNT]
    return {name: (before.get(name), after.get(name)) for name in names}


@dataclass(frozen=True)
class ReleasedVersion:
    """The complete table as it was right after a release, and until when that version is kept."""

    release: str
    kind: ReleaseKind
    dataset: str
    version: int
    released_at: dt.datetime
    kept_until: dt.datetime


@dataclass(frozen=True)
class TimeTravel(OnWarehouse):
    """Finds the version of the table that a release made."""

    def to_release(self, dataset: str, release: str) -> ReleasedVersion:
        """The version of a dataset's published table that a release or rollback made; all its files exist.

        Raises:
            UnitError: there is no such release.
            TimeTravelError: the release is of another dataset, was never committed, or its version has been cleaned up.
        """
        record = self.ledger.release(release)
        manifest, table = record.manifest, self.tables[dataset]
        if manifest.dataset != dataset:
            raise TimeTravelError(
                f"release {release} is of {manifest.dataset}, not of {dataset}; see: backfill releases {dataset}"
            )
        # The log wins: a run may have died after its commit, before the ledger knew of it.
        version = table.committed(release)
        if version is None:
            raise TimeTravelError(
                f"release {release} of {dataset} was never committed ({record.state.value}), so no version shows it; "
                f"see: backfill releases {dataset}"
            )
        self._require_whole(dataset, release, version)
        at, since = record.committed_at or manifest.created_at, record.since or manifest.created_at
        return ReleasedVersion(
            release, manifest.kind, dataset, version, at, restorable_until(since, table.keep_for + EXTRA)
        )

    def _require_whole(self, dataset: str, release: str, version: int) -> None:
        table = self.tables[dataset]
        needed = [file for files in table.at(version).values() for file in files]
        if lost := table.missing_files(needed):
            raise TimeTravelError(
                f"release {release}: version {version} of {dataset} can no longer be read completely, "
                f"{len(lost)} of its {len(needed)} files have been cleaned up ({format_days({f.day for f in lost}, most=3)}); "
                f"read the newest version, at: backfill path {dataset}"
            )
