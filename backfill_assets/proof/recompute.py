"""Recomputes days into scratch shadows, and takes prints of their rows that do not depend on order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.canonical import digest
from backfill_assets.core.certificate import INPUT_ROWS, NO_PRINTS, Prints, Recomputation
from backfill_assets.core.measured import NOTHING, ROW_COUNT, Figures, RowChange, RowCounts, Value
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.opening import is_table, table_at, tables_in
from backfill_assets.delta.reading import add_actions
from backfill_assets.evidence.basis import UpstreamDays, table_of_place
from backfill_assets.evidence.raw_contents import DELIVERY_DAY
from backfill_assets.pipeline.build import Audit, compute_shadow
from backfill_assets.pipeline.compare import (
    ADDED,
    CHANGED,
    COLUMNS,
    REMOVED,
    STATUS,
    Pair,
    Shape,
    counts_of,
    differing,
    new_column,
    old_column,
    tallies_of,
)
from backfill_assets.pipeline.differences import largest_of
from backfill_assets.pipeline.fingerprints import fingerprint_columns, fingerprint_of, hash_of
from backfill_assets.pipeline.frames import Frames, upstream_tables
from backfill_assets.pipeline.measure import figures_by_day
from backfill_assets.pipeline.run_models import reference_tables
from backfill_assets.pipeline.samples import json_value
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.stage import as_they_are, staged_rows
from backfill_assets.pipeline.tables import OnSpark, first_rows, read_days, types_to_hash, with_declared_columns
from backfill_assets.pipeline.types import is_numeric, ordered
from backfill_assets.proof.subjects import Sampled
from backfill_assets.storage.disk import EPOCH
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location


@dataclass(frozen=True)
class DayDifference:
    """A day as published and as the models would build it; `rows` is None if rows cannot be matched."""

    day: dt.date
    old: Figures
    new: Figures
    rows: RowCounts | None

    @property
    def moved(self) -> tuple[str, ...]:
        """The metrics that differ."""
        names = dict.fromkeys((*self.old, *self.new))
        return tuple(name for name in names if _differs(self.old.get(name), self.new.get(name)))

    @property
    def changes(self) -> bool:
        """Whether anything of the day would change."""
        return bool(self.moved) or (self.rows is not None and bool(self.rows.differing))


def _differs(old: Decimal | None, new: Decimal | None) -> bool:
    both_nan = old is not None and new is not None and old.is_nan() and new.is_nan()
    return not both_nan and old != new


def _rows(pair: Pair) -> tuple[Mapping[dt.date, Row], tuple[RowChange, ...]]:
    # Numbered: if a key occurs twice, each row is compared with one row.
    rows = differing(pair.old, pair.new, pair.shape, numbered=True).persist()
    try:
        counted = tallies_of(rows, pair)
        largest = largest_of(rows, pair) if counted else {}
    finally:
        rows.unpersist()
    return counted, tuple(change for changes in largest.values() for change in changes)


_MOST_ROWS: Final = 20
_SHUFFLED_INTO: Final = 5
_ROWS, _KEYS = "print:rows", "print:keys"
_BARE, _KEYED, _SUM = "bare:", "keyed:", "sum:"
_WIDE: Final = T.DecimalType(38, 0)
_PLACES: Final = T.DecimalType(38, 10)


class SparkRecomputations(OnSpark):
    """The port `Recomputations`, and comparisons with published days; with a separate session for each step."""

    def recompute(self, sampled: Sampled, folder: str, how: Recomputation) -> None:
        """Compute the days from raw and upstream, including staging, into a folder below the published table.

        Raises:
            ModelError: a model fails, or returns wrong columns or days.
            SourceError: raw or a reference does not fit what `dataset.yaml` declares.
        """
        loaded = self.datasets[sampled.dataset]
        places = [UpstreamDays(self.datasets[name], found) for name, found in sampled.upstream.items()]
        arrange = _shuffled if INPUT_ROWS in how.settings else as_they_are
        with self.opened(folder) as spark:
            for name, value in how.settings.items():
                if name != INPUT_ROWS:
                    spark.conf.set(name, value)
            references = reference_tables(
                spark, loaded, self.layout, loaded.dataset.days_read(sampled.days), sampled.references
            )
            tables = {**upstream_tables(spark, self.layout, places), **references}
            if loaded.dataset.source is not None:
                read = loaded.dataset.with_window(sampled.days)
                tables["staging"] = staged_rows(spark, loaded, self.layout, read, sampled.deliveries, arrange)
            arranged = {name: arrange(table) for name, table in tables.items()}
            # The audit columns of a scratch shadow are never read.
            audit = Audit(EPOCH, "", loaded.code_version)
            compute_shadow(Frames(spark, loaded, self.layout, folder, sampled.days), arranged, audit)

    def prints(self, dataset: str, days: Collection[dt.date], place: str) -> Mapping[dt.date, Prints]:
        """The prints of the days in a shadow's folder, or of the published rows if `place` is empty."""
        loaded = self.datasets[dataset]
        with self.opened(f"prints {dataset}") as spark:
            frame = _read(spark, loaded, self.layout, days, place)
            found = prints_of(frame, loaded.dataset) if frame is not None else {}
        return {day: found.get(day, NO_PRINTS) for day in days}

    def rows(
        self, dataset: str, days: Collection[dt.date], places: tuple[str, str]
    ) -> Mapping[dt.date, tuple[Mapping[str, Value], ...]]:
        """Up to twenty rows of each day in which two places differ; `old` is the value in the first place."""
        loaded = self.datasets[dataset]
        with self.opened(f"rows {dataset}") as spark:
            one, other = (_read(spark, loaded, self.layout, days, place) for place in places)
            if one is None or other is None:
                return {}
            return differing_rows(one, other, loaded.dataset)

    def differences(
        self, dataset: str, days: Collection[dt.date], folder: str
    ) -> tuple[tuple[DayDifference, ...], tuple[RowChange, ...]]:
        """Compare a shadow with published days: figures and rows by day, and the rows that change each measure most.

        Rows cannot be matched if the key has another type now.
        """
        loaded = self.datasets[dataset]
        with self.opened(f"differences {dataset}") as spark:
            frames = Frames(spark, loaded, self.layout, folder, tuple(days))
            old, new = frames.published(days), frames.shadow(days)
            before, after = figures_by_day(old, loaded.dataset), figures_by_day(new, loaded.dataset)
            pair = Pair(loaded.dataset, old, new)
            rows, largest = _rows(pair) if pair.comparable else ({}, ())
            counts = {day: RowCounts(unchanged=int(before.get(day, NOTHING.metrics)[ROW_COUNT] or 0)) for day in days}
            counts |= {day: counts_of(tally, counts[day].unchanged) for day, tally in rows.items()}
            found = tuple(
                DayDifference(
                    day,
                    before.get(day, NOTHING.metrics),
                    after.get(day, NOTHING.metrics),
                    counts[day] if pair.comparable else None,
                )
                for day in sorted(days)
            )
        return found, largest

    def layouts(self, dataset: str) -> Mapping[str, Mapping[dt.date, str]]:
        """Digests of the files of raw and staging, by table and then day."""
        loaded, found = self.datasets[dataset], dict[str, Mapping[dt.date, str]]()
        raw, staging = self.layout.raw_path(dataset), self.layout.staging_path(dataset)
        if is_table(raw):
            found["raw"] = _digests(raw, DELIVERY_DAY)
        for path in tables_in(staging):
            found[f"staging {path.name}"] = _digests(path, loaded.dataset.partition_column)
        return found


def prints_of(frame: DataFrame, dataset: Dataset) -> Mapping[dt.date, Prints]:
    """The prints of every day of a frame with the dataset's columns, in one pass."""
    key = list(dict.fromkeys((dataset.partition_column, *dataset.key)))
    types = types_to_hash(frame, dataset)
    rows = frame.groupBy(dataset.partition_column).agg(
        F.count("*").alias(_ROWS),
        F.count_distinct(F.struct(*key)).alias(_KEYS),
        *_hashes(types, key),
        *_sums(frame, dataset),
        *fingerprint_columns(types),
    )
    return {row[dataset.partition_column]: _prints(row, dataset) for row in rows.collect()}


def differing_rows(
    old: DataFrame, new: DataFrame, dataset: Dataset
) -> Mapping[dt.date, tuple[Mapping[str, Value], ...]]:
    """Up to twenty rows by day in which two frames differ: the key, and `<column>: old` and `<column>: new` if they differ."""
    partition = dataset.partition_column
    others = {name: Decimal(0) for name in dataset.columns if name not in {partition, *dataset.key}}
    shape = Shape(partition, dataset.key, others, to_the_bit=True)
    # Numbered: if a key occurs twice, each row is compared with one row.
    found = differing(old, new, shape, numbered=True)
    order = [F.col(name) for name in (*shape.match, STATUS)]
    first = first_rows(found, [partition], order, _MOST_ROWS)
    return {day: tuple(_difference(row, shape.match, tuple(others)) for row in rows) for (day,), rows in first.items()}


def _read(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], place: str
) -> DataFrame | None:
    path = table_of_place(layout, loaded.name, place)
    if not is_table(path):
        return None
    frame = read_days(spark, path, loaded.dataset.partition_column, days)
    return with_declared_columns(frame, loaded.dataset).select(*loaded.dataset.columns)


def _shuffled(table: DataFrame) -> DataFrame:
    """The same rows in an order and partitions that are unrelated to those of the files."""
    columns = (F.expr(ordered(quoted(field.name), field.dataType)) for field in table.schema.fields)
    salted = F.xxhash64(F.lit("another order"), *columns)
    return table.repartition(_SHUFFLED_INTO, salted).sortWithinPartitions(salted)


def _hashes(types: Mapping[str, str], key: list[str]) -> Iterator[Column]:
    def hashed(*names: str) -> Column:
        return F.sum(hash_of(types, *names).cast(_WIDE))

    for name in types:
        yield hashed(name).alias(_BARE + name)
        if name not in key:
            yield hashed(*key, name).alias(_KEYED + name)


def _sums(frame: DataFrame, dataset: Dataset) -> Iterator[Column]:
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name, measure in dataset.measures.items():
        if name in types and measure.sum and is_numeric(types[name]):
            column, kind = F.col(name), types[name]
            exact = column if isinstance(kind, T.DecimalType) else column.try_cast(_exactly(kind))
            yield F.try_sum(exact).alias(_SUM + name)


def _exactly(kind: T.DataType) -> T.DataType:
    # A sum of floats depends on their order; a sum of rounded floats does not.
    return _PLACES if isinstance(kind, T.FractionalType) else _WIDE


def _prints(row: Row, dataset: Dataset) -> Prints:
    values = row.asDict()
    columns = {name: _column_print(values, name) for name in dataset.columns}
    sums = {
        name.removeprefix(_SUM): f"{value}"
        for name, value in values.items()
        if name.startswith(_SUM) and value is not None
    }
    return Prints(values[_ROWS], values[_KEYS], columns, sums, fingerprint_of(row))


def _column_print(values: Mapping[str, object], name: str) -> str:
    keyed = values.get(_KEYED + name)
    return f"{values[_BARE + name]}" if keyed is None else f"{values[_BARE + name]}:{keyed}"


def _difference(row: Mapping[str, Any], key: tuple[str, ...], others: tuple[str, ...]) -> Mapping[str, Value]:
    status = row[STATUS]
    shown = row[COLUMNS] if status == CHANGED else others
    sides = {
        **({"old": old_column} if status in {CHANGED, REMOVED} else {}),
        **({"new": new_column} if status in {CHANGED, ADDED} else {}),
    }
    values = {f"{name}: {side}": json_value(row[column(name)]) for name in shown for side, column in sides.items()}
    return {**{name: json_value(row[name]) for name in key}, **values}


def _digests(path: Location, partition: str) -> Mapping[dt.date, str]:
    files: dict[dt.date, list[tuple[str, int]]] = {}
    for add in add_actions(table_at(path), "path", "size_bytes", "partition"):
        files.setdefault(add["partition"][partition], []).append((add["path"], add["size_bytes"]))
    return {day: digest(sorted(found)) for day, found in files.items()}
