"""Reads rows of raw as `dataset.yaml` declares their source now, whenever they landed."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.delivery import Delivery, FileContent, TableDay
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.reading import form_of, reading_of
from backfill_assets.dataset.sources import NamedBy, Source, Undeclared
from backfill_assets.delta.opening import is_table, table_at
from backfill_assets.delta.reading import rows_by_day
from backfill_assets.evidence.inputs import idle_days, lost_days, surplus_days
from backfill_assets.evidence.raw_contents import DELIVERY_DAY, FORM, kinds_of_rows
from backfill_assets.pipeline.formats import INGESTED, cells_of, headers_of, raw_schema
from backfill_assets.pipeline.parse import CORRUPT, HEADER, LINE, NAMES, typed_rows
from backfill_assets.pipeline.tables import read_days, source_rows
from backfill_assets.pipeline.types import declared_type, spark_type, struct_of
from backfill_assets.spark.driver import room_for
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.storage.sources import discover

ORDER: Final = "_order"
"""The number of a row's delivery; a higher number is a newer delivery."""

_CONTENT: Final = {DELIVERY_DAY: "date", "_source_file": "string", "_fingerprint": "string"}
"""The columns of raw that identify the delivery of a row, like `Delivery.content`."""


@dataclass(frozen=True)
class Counts:
    """Rows and corrupt rows of a delivery, and the declared columns that none of its records has."""

    rows: int = 0
    corrupt: int = 0
    missing: tuple[str, ...] = ()


NOTHING_READ: Final = Counts()
"""The counts of a file without rows."""


@dataclass(frozen=True)
class _Stored:
    """What one version of raw has of some days: rows by delivery, and one file for each headline.

    `other_form` is a file that raw keeps in another form than needed; empty if there is none.
    """

    version: int
    rows: Mapping[FileContent, int]
    headlines: Mapping[bytes, str]
    other_form: str


def read_raw(spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date]) -> DataFrame:
    """All rows of some delivery days as `dataset.yaml` declares them now, including quarantined ones.

    There are no rows if nothing was ever landed.

    Raises:
        SourceError: raw does not have what `dataset.yaml` declares now.
    """
    path = layout.raw_path(loaded.name)
    if not is_table(path):
        return _no_rows(spark, loaded.dataset.landing)
    return _rows_of(spark, loaded, path, _stored(loaded, path, days), days)


def read_in_force(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], force: Iterable[Delivery]
) -> DataFrame:
    """Like `read_raw`, but only rows of the deliveries in force, each with the `_order` of its delivery.

    Superseded and withdrawn rows stay in raw and are left out, like rows that the ledger does not know. Rows are counted and
    read at one version of raw.

    Raises:
        SourceError: raw does not have what `dataset.yaml` declares now for these deliveries, or another number of rows than landed.
    """
    asked, path = frozenset(days), layout.raw_path(loaded.name)
    known = [d for d in force if d.day in asked]
    # The time of delivery comes from the ledger: the content may have been delivered again since.
    columns = {**_CONTENT, ORDER: "bigint", "_delivered_at": "timestamp"}
    those = _small_frame(spark, columns, [(*d.content, d.order, d.delivered_at) for d in known])
    if not loaded.dataset.lands_files:
        return _rows_of_table(spark, loaded, layout, known, those)
    stored = _stored(loaded, path, days, {d.content for d in known}) if known and is_table(path) else None
    for one in known:
        # Raw may have vanished since it was checked.
        if (rows := stored.rows.get(one.content, 0) if stored else 0) != one.rows:
            raise _not_as_landed(loaded, layout, one, rows)
    if stored is None:
        return _of(those, _no_rows(spark, loaded.dataset.landing))
    return _rows_of(spark, loaded, path, stored, days, those)


def _rows_of(
    spark: SparkSession,
    loaded: LoadedDataset,
    path: Location,
    stored: _Stored,
    days: Collection[dt.date],
    those: DataFrame | None = None,
) -> DataFrame:
    """The rows that raw has of some days: of all deliveries, or of `those`, joined with their columns."""
    source = loaded.dataset.landing
    frame = read_days(spark, path, DELIVERY_DAY, days, stored.version)
    require_layout(loaded.dataset, frame, path)
    if stored.other_form:
        raise SourceError(
            f"{stored.other_form}: it was landed when dataset.yaml declared its source differently, and raw does not keep what is "
            "needed to read it as declared now. Put exactly this file back among the sources if it is gone, and launch raw of "
            "its day, or: backfill reland; or set source in dataset.yaml back to what it was"
        )
    # Before anything is read: deliveries that do not count may have another form, or lack a column.
    frame = _of(those, frame)
    if not source.is_text:
        # Columns declared since these days landed are null. Cast by name: Spark would add a collation to a type object.
        missing = {
            name: F.lit(None).cast(spark_type(kind).simpleString())
            for name, kind in source.types.items()
            if name not in frame.columns
        }
        return frame.withColumns(missing) if missing else frame
    if source.undeclared is Undeclared.drop:
        source = source.as_kept
    headers = headers_of(source, stored.headlines)
    if headers == {}:
        return _of(those, _no_rows(spark, loaded.dataset.landing))
    return typed_rows(cells_of(frame, source, headers), source)


def _rows_of_table(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, known: Collection[Delivery], those: DataFrame
) -> DataFrame:
    """The rows of `known` days of a source table, all at the version in which these days were found, joined with `those`."""
    if known:
        (version,) = {one.version for one in known if isinstance(one, TableDay)}
        rows = source_rows(spark, loaded, layout, {one.day for one in known}, version, DELIVERY_DAY)
    else:
        rows = spark.createDataFrame([], struct_of({DELIVERY_DAY: "date", **loaded.dataset.feed.types}))
    return rows.withColumn(CORRUPT, F.lit(None).cast("string")).join(those, [DELIVERY_DAY])


def read_again(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, deliveries: Iterable[Delivery]
) -> tuple[Delivery, ...]:
    """Deliveries with their counts as `dataset.yaml` declares their source now; reads only raw.

    Deliveries whose rows raw has lost are left out.

    Raises:
        SourceError: raw does not have what this reading needs or has more rows than were landed, or a column that is declared now
            is missing in a file.
    """
    known, source = tuple(deliveries), loaded.dataset.landing
    found = measured_rows(spark, loaded, layout, [d.content for d in known])
    again, now = [], reading_of(source)
    for delivery in known:
        counts = found.get(delivery.content, NOTHING_READ)
        if counts.rows < delivery.rows:
            continue
        if counts.rows > delivery.rows:
            raise _not_as_landed(loaded, layout, delivery, counts.rows)
        if counts.missing and counts.rows > counts.corrupt:
            raise SourceError(
                f"{delivery.path}: none of its records has {', '.join(counts.missing)}; correct source.columns in dataset.yaml, or "
                "list columns that some files do not have in source.optional"
            )
        again.append(replace(delivery, rows=counts.rows, corrupt_rows=counts.corrupt, reading=now))
    return tuple(again)


def measured_rows(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, only: Collection[FileContent]
) -> Mapping[FileContent, Counts]:
    """Counts of what raw holds of some deliveries, read as `dataset.yaml` declares them now."""
    source, path = loaded.dataset.landing, layout.raw_path(loaded.name)
    if not only or not is_table(path):
        return {}
    days = {day for day, _, _ in only}
    stored = _stored(loaded, path, days, frozenset(only))
    rows = _rows_of(spark, loaded, path, stored, days, _small_frame(spark, _CONTENT, only))
    by_key = source.named_by is NamedBy.record and source.undeclared is Undeclared.keep
    has = {f"_has_{i}": name for i, name in enumerate(source.required if by_key else ())}
    own = source.headers
    seen = [F.coalesce(F.bool_or(F.array_contains(NAMES, own[n])), F.lit(False)).alias(c) for c, n in has.items()]
    counts = [F.count("*").alias("rows"), F.count(CORRUPT).alias("corrupt")]
    with room_for(str(path)):
        found = rows.groupBy(*_CONTENT).agg(*counts, *seen).collect()
    return {
        (r[DELIVERY_DAY], r["_source_file"], r["_fingerprint"]): Counts(
            r["rows"], r["corrupt"], tuple(source.shown(name) for c, name in has.items() if not r[c])
        )
        for r in found
    }


def lost_from_raw(loaded: LoadedDataset, layout: Layout, known: Iterable[Delivery]) -> frozenset[dt.date]:
    """The delivery days for which raw has fewer rows than were landed; reads only raw's log."""
    deliveries, path = tuple(known), layout.raw_path(loaded.name)
    days = {delivery.day for delivery in deliveries if delivery.rows}
    return lost_days(deliveries, rows_by_day(path, DELIVERY_DAY, days) if days and is_table(path) else {})


def times_in_raw(path: Location, days: Collection[dt.date]) -> Mapping[FileContent, dt.datetime]:
    """When the last row of each delivery of these days was read into raw; read without Spark.

    Raises:
        SourceError: raw has deletion vectors, so rows may be deleted while their files stay.
    """
    found: dict[FileContent, dt.datetime] = {}
    for content, kind, _ in kinds_of_rows(table_at(path), path, days, INGESTED) if is_table(path) else ():
        found[content] = max(found.get(content, kind[INGESTED]), kind[INGESTED])
    return found


def _not_as_landed(loaded: LoadedDataset, layout: Layout, one: Delivery, rows: int) -> SourceError:
    return SourceError(
        f"{layout.raw_path(loaded.name)}: raw has {rows} rows of {one.path}, but {one.rows} were landed. Put this file back among "
        f"the sources if it is gone, and: backfill reland {loaded.name} --prefix {one.path} --reason …; or withdraw it, or "
        "restore raw from a backup"
    )


def require_layout(dataset: Dataset, stored: DataFrame, path: Location) -> None:
    """Refuse a raw table whose columns do not fit what is declared now.

    Raises:
        SourceError: says what is wrong with the table, and what to do.
    """
    found = {field.name: declared_type(field.dataType) for field in stored.schema.fields}
    lines = dataset.landing.is_text
    if FORM not in found or (LINE in found) is not lines:
        wanted = "lines, as of text files" if lines else "columns, as of Parquet"
        back = (
            "or set source.format in dataset.yaml back to what it was" if FORM in found else "an older version wrote it"
        )
        raise SourceError(
            f"{path}: raw does not keep {wanted}. Move this folder away and launch raw of all days, which lands them again from "
            f"the sources; {back}"
        )
    for name, declared in () if lines else dataset.landing.types.items():
        if found.get(name, declared) != declared:
            raise SourceError(
                f"{path}: column {name}: expected {declared}, found {found[name]}. Raw keeps what was landed: set "
                f"source.columns.{name} back to {found[name]} and cast in the staging model"
            )


def _no_rows(spark: SparkSession, source: Source) -> DataFrame:
    lineage = [
        field for field in raw_schema(source).fields if field.name not in {LINE, HEADER, CORRUPT, *source.columns}
    ]
    names = T.StructField(NAMES, T.ArrayType(T.StringType()))
    columns = struct_of({**source.types, CORRUPT: "string"}).fields
    return spark.createDataFrame([], T.StructType([*columns, names, *lineage]))


def _small_frame(spark: SparkSession, columns: Mapping[str, str], rows: Iterable[tuple[object, ...]]) -> DataFrame:
    return F.broadcast(spark.createDataFrame(list(rows), ", ".join(f"{name} {kind}" for name, kind in columns.items())))


def _of(those: DataFrame | None, rows: DataFrame) -> DataFrame:
    """The rows of raw that belong to some deliveries, joined with the columns of `those`; all rows if `those` is None."""
    if those is None:
        return rows
    return rows.drop("_delivered_at").join(those, list(_CONTENT))


def _stored(
    loaded: LoadedDataset, path: Location, days: Collection[dt.date], only: Collection[FileContent] | None = None
) -> _Stored:
    """What raw has of some days now, of some deliveries or of all; read without Spark.

    Raises:
        SourceError: raw has deletion vectors, so rows may be deleted while their files stay.
    """
    table, form = table_at(path), form_of(reading_of(loaded.dataset.landing))
    rows, headlines, other_form = Counter[FileContent](), dict[bytes, str](), ""
    for content, kind, count in kinds_of_rows(table, path, days, FORM, HEADER):
        if only is not None and content not in only:
            continue
        if kind.get(FORM) != form:
            other_form = kind["_source_file"]
        rows[content] += count
        if kind.get(HEADER) is not None:
            headlines[kind[HEADER]] = kind["_source_file"]
    return _Stored(table.version(), rows, headlines, other_form)


def require_known(
    loaded: LoadedDataset, layout: Layout, delivery_days: Collection[dt.date], known: Iterable[Delivery]
) -> None:
    """Refuse to read raw if the ledger does not know the newest content at a path and the file is gone: it cannot be landed.

    If a file is still at the path, it counts whatever its content, and a landing records it. So a landing that is running or
    died before it recorded its files is no reason to refuse; nor is content that was superseded since.

    Raises:
        SourceError: names a file, and the first digits of the fingerprint of the newest content there.
    """
    deliveries, path = tuple(known), layout.raw_path(loaded.name)
    over = surplus_days(deliveries, rows_by_day(path, DELIVERY_DAY, delivery_days) if is_table(path) else {})
    over |= idle_days(loaded.dataset, deliveries)
    if not over:
        return
    contents, times = {d.content for d in deliveries}, times_in_raw(path, over)
    last = {one[:2]: one for one in sorted(times, key=lambda one: times[one])}
    if not (new := [one for one in last.values() if one not in contents]):
        return
    # To look at the sources reads their files.
    there = {(f.day, f.path) for f in discover(loaded, layout, {one[0] for one in new})}
    if unknown := sorted(one for one in new if one[:2] not in there):
        day, file, fingerprint = unknown[0]
        more = f" and of {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise SourceError(
            f"{path}: raw has rows of {file} ({fingerprint[:8]}){more} that the ledger does not know as landed, and this file "
            "is no longer among the sources: the ledger may be older than raw. Restore a newer ledger, or put the file back with "
            f"this content, the newest there, and launch raw of {day}. If its rows must not count, delete them from raw as "
            "docs/deliveries.md says"
        )
