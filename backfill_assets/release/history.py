"""Who changed a day, when, why, from what to what; which version of a table a release made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import TimeTravelError
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.core.release import EXTRA, DaySwap, ReleaseKind, ReleaseState, restorable_until
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.release.finish import is_rollback, taken_back

Pair = tuple[Decimal | None, Decimal | None]
"""A figure before and after."""


@dataclass(frozen=True)
class DayChange:
    """What one release did to one day; rows are none where nobody counted them.

    `measures` holds every metric but the rows, before and after, as the release's evidence has them; it is empty where
    the day's evidence has been replaced since. `repairs` is the rollback that had put the day on hold: this publication
    has ended the hold, if nobody had lifted it before.
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
    repairs: str = ""


@dataclass(frozen=True)
class History:
    """Tells what happened to days, from the releases and the evidence behind them; reads only."""

    ledger: Ledger

    def of(self, dataset: str, days: Collection[dt.date] | None = None) -> tuple[DayChange, ...]:
        """Every change of a dataset's days (of all unless some are named), the newest first, days in order."""
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
                own = [replace(c, repairs=rolled_back.pop(c.day, "")) for c in own]
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
        # Somebody had rewritten the day in between: nobody has measured what the rollback took away.
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
    """The whole table as it was right after a release, and until when nothing cleans that version up."""

    release: str
    kind: ReleaseKind
    dataset: str
    version: int
    released_at: dt.datetime
    kept_until: dt.datetime


@dataclass(frozen=True)
class TimeTravel:
    """Finds the version that a release made, for readers who want the table as it was then."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]

    def to_release(self, dataset: str, release: str) -> ReleasedVersion:
        """The version of a dataset's published table that a release (or a rollback) made; every file of it is there.

        Raises:
            UnitError: there is no such release.
            TimeTravelError: the release is another dataset's or was never committed, or its version has been cleaned up.
        """
        record = self.ledger.release(release)
        manifest, table = record.manifest, self.tables[dataset]
        if manifest.dataset != dataset:
            raise TimeTravelError(
                f"release {release} is one of {manifest.dataset}, not of {dataset}; see: backfill releases {dataset}"
            )
        # The log is the truth: the ledger may not have heard of a commit whose run died right after it.
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
                f"release {release}: version {version} of {dataset} can no longer be read whole, "
                f"{len(lost)} of its {len(needed)} files have been cleaned up ({format_days({f.day for f in lost}, most=3)}); "
                f"read the newest version, at: backfill path {dataset}"
            )
