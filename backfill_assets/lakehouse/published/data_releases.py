"""The Delta table `data_releases`: written whole by delta-rs, read by whoever reads Delta tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.domain.data_releases import ReleaseRow
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.published.durable import set_aside_torn, sync
from backfill_assets.lakehouse.published.reading import rows_of

_ARROW: Final = {
    "published_at": pa.timestamp("us", "UTC"),
    "first_day": pa.date32(),
    "last_day": pa.date32(),
    "days": pa.int64(),
    "version": pa.int64(),
}
_SCHEMA: Final = pa.schema([(field.name, _ARROW.get(field.name, pa.string())) for field in fields(ReleaseRow)])
_KEPT: Final = dt.timedelta(days=7)
"""How long versions that were overwritten stay readable."""


class DeltaReleasesTable:
    """The port `ReleasesTable` on a Delta table in the warehouse."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.data_releases_path()
        self._aside = layout.aside_path(DATA_RELEASES)

    def read(self) -> tuple[ReleaseRow, ...] | None:
        """All rows; none while there is no table, or one that cannot be read or has other columns."""
        if not DeltaTable.is_deltatable(str(self._root)):
            return None
        try:
            found = rows_of(self._root)
        except DeltaError:
            return None
        if set(found.column_names) != set(_SCHEMA.names):
            return None
        return tuple(ReleaseRow(**row) for row in found.select(_SCHEMA.names).cast(_SCHEMA).to_pylist())

    def write(self, rows: Sequence[ReleaseRow]) -> None:
        """Replace the table by these rows, in one commit."""
        self._root.parent.mkdir(parents=True, exist_ok=True)
        set_aside_torn(self._root, self._aside, sync)
        write_deltalake(
            self._root,
            pa.Table.from_pylist([asdict(row) for row in rows], schema=_SCHEMA),
            mode="overwrite",
            schema_mode="overwrite",
            configuration={"delta.logRetentionDuration": f"interval {_KEPT.days} days"},
        )
        DeltaTable(self._root).vacuum(_KEPT // dt.timedelta(hours=1), dry_run=False)
