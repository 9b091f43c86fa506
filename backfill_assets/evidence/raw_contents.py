"""What raw has of each delivery; read without Spark."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from backfill_assets.core.delivery import FileContent
from backfill_assets.core.errors import SourceError
from backfill_assets.delta.opening import DeltaTable, is_table, table_at
from backfill_assets.delta.reading import files_of_days
from backfill_assets.storage.location import Location

DELIVERY_DAY: Final = "_delivery_day"
"""The partition column of raw."""
FORM: Final = "_form"
"""The form in which raw keeps a row's file, see `form_of`."""


def rows_in_raw(path: Location, days: Collection[dt.date], form: str | None = None) -> Mapping[FileContent, int]:
    """How many rows raw has of each delivery of these days, in one form or in any; read without Spark.

    Raises:
        SourceError: raw has deletion vectors, so rows may be deleted while their files stay.
    """
    found = Counter[FileContent]()
    for content, kind, rows in kinds_of_rows(table_at(path), path, days, FORM) if is_table(path) else ():
        if form is None or kind.get(FORM) == form:
            found[content] += rows
    return found


def contents_of_file(file: Location, day: dt.date) -> frozenset[FileContent]:
    """The deliveries that a data file of raw has rows of; `day` is its delivery day."""
    return frozenset((day, kind["_source_file"], kind["_fingerprint"]) for kind in _kinds_in(file))


def kinds_of_rows(
    table: DeltaTable, path: Location, days: Collection[dt.date], *columns: str
) -> Iterator[tuple[FileContent, dict[str, Any], int]]:
    """Delivery, values of some columns and number of rows of what raw has of some days; a delivery may come several times.

    Raises:
        SourceError: raw has deletion vectors, so rows may be deleted while their files stay.
    """
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise SourceError(
            f"{path}: raw has deletion vectors switched on, which delete rows while their files stay as they are; rewrite its "
            "files (REORG TABLE … APPLY (PURGE)), then ALTER TABLE … DROP FEATURE deletionVectors"
        )
    for file, day in files_of_days(table, DELIVERY_DAY, days).items():
        for kind in _kinds_in(path / file, *columns):
            yield (day, kind["_source_file"], kind["_fingerprint"]), kind, kind["count_all"]


def _kinds_in(file: Location, *columns: str) -> Iterator[dict[str, Any]]:
    with file.reader() as opened, parquet.ParquetFile(opened) as read:
        names = [n for n in (*columns, "_source_file", "_fingerprint") if n in read.schema_arrow.names]
        # One batch at a time: each row repeats its headline.
        for batch in read.iter_batches(columns=names):
            yield from pa.Table.from_batches([batch]).group_by(names).aggregate([([], "count_all")]).to_pylist()
