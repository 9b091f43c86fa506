"""The table `data_releases`: what every release was, for whoever reads SQL; a projection of the ledger."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backfill_assets.core.unit import ReleaseHead, ReleaseRecord


@dataclass(frozen=True)
class ReleaseRow:
    """One release as readers of SQL see it; what does not apply is null."""

    dataset: str
    release: str
    kind: str
    state: str
    published_at: dt.datetime | None
    first_day: dt.date | None
    last_day: dt.date | None
    days: int
    source_range: str | None
    code_version: str
    released_by: str
    approved_by: str | None
    evidence: str
    campaign: str | None
    unit: str
    undoes: str | None
    reason: str | None
    version: int | None


def release_row(record: ReleaseRecord) -> ReleaseRow:
    """The row of one release; `published_at` is when it was committed, `version` that of its dataset's table."""
    manifest = record.manifest
    days = sorted(swap.day for swap in manifest.days)
    return ReleaseRow(
        dataset=manifest.dataset,
        release=manifest.release,
        kind=manifest.kind.value,
        state=record.state.value,
        published_at=record.committed_at,
        first_day=days[0] if days else None,
        last_day=days[-1] if days else None,
        days=len(days),
        source_range=manifest.source_range or None,
        code_version=manifest.code_version,
        released_by=manifest.by,
        approved_by=manifest.approved_by or None,
        evidence=manifest.evidence,
        campaign=manifest.campaign or None,
        unit=manifest.unit,
        undoes=manifest.undoes or None,
        reason=manifest.reason or None,
        version=record.version,
    )


def is_of(row: ReleaseRow, head: ReleaseHead) -> bool:
    """Whether a row says how its release stands now; all else that it says comes from the manifest, which never changes."""
    return (row.state, row.version, row.published_at) == (head.state.value, head.version, head.committed_at)


def projection(records: Iterable[ReleaseRecord]) -> tuple[ReleaseRow, ...]:
    """The rows of all releases, by dataset and release."""
    return tuple(sorted(map(release_row, records), key=by_name))


def by_name(row: ReleaseRow) -> tuple[str, str]:
    """What rows are sorted by: dataset and release."""
    return row.dataset, row.release


def differing(ledger: Sequence[ReleaseRow], table: Sequence[ReleaseRow]) -> tuple[str, ...]:
    """Names of the releases that the table lacks, has besides, or shows otherwise than the ledger."""
    wanted, found = ({row.release: row for row in rows} for rows in (ledger, table))
    return tuple(sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name)))
