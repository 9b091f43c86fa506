"""The table `data_releases`: every release, for SQL users."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from backfill_assets.core.unit import ReleaseHead, ReleaseRecord
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.opening import is_table, reached, rows_of, table_at
from backfill_assets.delta.shadows import set_aside_torn
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import sync


@dataclass(frozen=True)
class ReleaseRow:
    """One release as SQL users see it; values that do not apply are null."""

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
    """The row of one release; `published_at` is the time of its commit, `version` that of its dataset's table."""
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
    """Whether a row has the current state of its release; all else comes from the manifest, which never changes."""
    return (row.state, row.version, row.published_at) == (head.state.value, head.version, head.committed_at)


def projection(records: Iterable[ReleaseRecord]) -> tuple[ReleaseRow, ...]:
    """The rows of all releases, sorted by dataset and release."""
    return tuple(sorted(map(release_row, records), key=by_name))


def by_name(row: ReleaseRow) -> tuple[str, str]:
    """The sort key of rows: dataset and release."""
    return row.dataset, row.release


def differing(ledger: Sequence[ReleaseRow], table: Sequence[ReleaseRow]) -> tuple[str, ...]:
    """Names of the releases that are missing in the table, twice in it, extra in it, or different from the ledger."""
    wanted, found = ({row.release: row for row in rows} for rows in (ledger, table))
    twice = {name for name, count in Counter(row.release for row in table).items() if count > 1}
    return tuple(sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name) or name in twice))


_ARROW: Final = {
    "published_at": pa.timestamp("us", "UTC"),
    "first_day": pa.date32(),
    "last_day": pa.date32(),
    "days": pa.int64(),
    "version": pa.int64(),
}
_SCHEMA: Final = pa.schema([(field.name, _ARROW.get(field.name, pa.string())) for field in fields(ReleaseRow)])
_KEPT: Final = dt.timedelta(days=7)
"""How long overwritten versions stay readable."""


_MOST_FILES: Final = 50
"""The follow-up of each release appends a file; with so many, the next one writes all rows into one file."""
_UNREADABLE: Final = (DeltaError, OSError, pa.ArrowException)
"""Such a table is written again: the ledger has all that is in it."""


def _arrow(rows: Sequence[ReleaseRow]) -> pa.Table:
    return pa.Table.from_pylist([vars(row) for row in rows], schema=_SCHEMA)


class ReleasesTable:
    """The table `data_releases` of the warehouse."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.data_releases_path()
        self._aside = layout.aside_path(DATA_RELEASES)

    def read(self) -> tuple[ReleaseRow, ...] | None:
        """All rows; None if there is no table, or it cannot be read or has other columns."""
        if not is_table(self._root):
            return None
        try:
            found = rows_of(self._root)
        except _UNREADABLE:
            return None
        if set(found.column_names) != set(_SCHEMA.names):
            return None
        return tuple(ReleaseRow(**row) for row in found.select(_SCHEMA.names).cast(_SCHEMA).to_pylist())

    def states(self) -> Mapping[str, str] | None:
        """The state of each release in the table by name; None if it has to be written again before rows are appended."""
        if not is_table(self._root):
            return None
        try:
            table = table_at(self._root)
            fits = pa.schema(table.schema()).equals(_SCHEMA) and len(table.file_uris()) < _MOST_FILES
            found = rows_of(self._root, ["release", "state"]) if fits else None
        except _UNREADABLE:
            return None
        if found is None:
            return None
        states = dict(zip(found["release"].to_pylist(), found["state"].to_pylist(), strict=True))
        # A process that came back after its lease had ended may have appended a row once more.
        return states if len(states) == found.num_rows else None

    def append(self, rows: Sequence[ReleaseRow]) -> None:
        """Add these rows in one commit."""
        with reached(self._root):
            write_deltalake(str(self._root), _arrow(rows), mode="append", storage_options=self._root.storage_options)

    def write(self, rows: Sequence[ReleaseRow]) -> None:
        """Replace the table with these rows in one commit."""
        self._root.parent.make_folder()
        set_aside_torn(self._root, self._aside, sync)
        with reached(self._root):
            write_deltalake(
                str(self._root),
                _arrow(rows),
                mode="overwrite",
                schema_mode="overwrite",
                storage_options=self._root.storage_options,
                configuration={"delta.logRetentionDuration": f"interval {_KEPT.days} days"},
            )
            table_at(self._root).vacuum(_KEPT // dt.timedelta(hours=1), dry_run=False)
