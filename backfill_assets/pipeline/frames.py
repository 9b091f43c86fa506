"""Opens the tables that the steps after staging read, each once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.content import UNKNOWN_ORIGIN
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import in_one_line
from backfill_assets.dataset.consistency import IS_PROVISIONAL
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.references import seen_by_day
from backfill_assets.delta.opening import is_table, table_at
from backfill_assets.delta.reading import files_of_days
from backfill_assets.evidence.basis import CurrentBasis, UpstreamDays, table_of_place
from backfill_assets.evidence.references import FingerprintsByDay
from backfill_assets.pipeline.run_models import reference_tables
from backfill_assets.pipeline.stage import staged_table
from backfill_assets.pipeline.tables import in_days, read_days, read_table, with_declared_columns
from backfill_assets.pipeline.types import struct_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location


@dataclass(frozen=True)
class Frames:
    """The tables for some days of a shadow, each opened on first use and then kept.

    `folder` is the shadow's folder below the published table; `upstreams` are the upstream days that it was built from, and
    `prints` the fingerprints of its references by day and name.
    """

    spark: SparkSession
    loaded: LoadedDataset
    layout: Layout
    folder: str
    days: tuple[dt.date, ...]
    upstreams: Sequence[UpstreamDays] = ()
    prints: FingerprintsByDay = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        """The dataset of the shadow."""
        return self.loaded.dataset

    def shadow(self, days: Collection[dt.date]) -> DataFrame:
        """The shadow's rows of some days."""
        return self._shadow.where(in_days(self.dataset.partition_column, days))

    @property
    def is_published(self) -> bool:
        """Whether there is a published table."""
        return is_table(self.layout.published_path(self.loaded.name))

    def published(self, days: Collection[dt.date]) -> DataFrame:
        """The published rows of some days, not only those of the shadow."""
        return self._published.where(in_days(self.dataset.partition_column, days))

    def staging(self, days: Collection[dt.date]) -> DataFrame:
        """The staged rows of some days, not only those of the shadow.

        Raises:
            SourceError: nothing was ever staged with the columns that the staging model returns now.
        """
        return self._staging.where(in_days(self.dataset.partition_column, days))

    @cached_property
    def references(self) -> Mapping[str, DataFrame]:
        """Every reference by name, for all days of the shadow and of their windows; see `reference_tables`."""
        return reference_tables(self.spark, self.loaded, self.layout, self.dataset.days_read(self.days), self.prints)

    @cached_property
    def upstream(self) -> Mapping[str, DataFrame]:
        """The upstreams by name, as the shadow was built from them."""
        return upstream_tables(self.spark, self.layout, self.upstreams)

    def model_tables(self, days: tuple[dt.date, ...], upstream: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
        """The tables that the fact model reads to build some days, by their names there; `upstream` are its upstreams.

        Raises:
            SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
        """
        staged = {"staging": self.staging(self.dataset.with_window(days))} if self.dataset.source else {}
        return {**staged, **upstream, **{name: self._reference(name, days) for name in self.references}}

    def _reference(self, name: str, days: tuple[dt.date, ...]) -> DataFrame:
        table = self.references[name]
        if name not in seen_by_day(self.dataset.references) or days == self.days:
            return table
        return table.where(in_days(self.dataset.partition_column, self.dataset.days_read(days)))

    @cached_property
    def _shadow(self) -> DataFrame:
        return read_table(self.spark, self.layout.shadow_path(self.loaded.name, self.folder))

    @cached_property
    def _published(self) -> DataFrame:
        return read_table(self.spark, self.layout.published_path(self.loaded.name))

    @cached_property
    def _staging(self) -> DataFrame:
        return staged_table(self.spark, self.loaded, self.layout)


def waited_for(frames: Frames, basis: CurrentBasis, days: Collection[dt.date]) -> Mapping[dt.date, frozenset[str]]:
    """What published days awaited, as in `CurrentBasis.provisional`; where nobody knows it, the mark in their rows counts."""
    known, partition = basis.provisional(frames.loaded.name, days), frames.dataset.partition_column
    if not (unknown := basis.of_unknown_origin(frames.loaded.name, days)):
        return known
    marked = frames.published(unknown).where(F.col(IS_PROVISIONAL)).select(partition).distinct().collect()
    return {**known, **{row[partition]: frozenset({UNKNOWN_ORIGIN}) for row in marked}}


def upstream_tables(
    spark: SparkSession, layout: Layout, upstreams: Collection[UpstreamDays]
) -> Mapping[str, DataFrame]:
    """The upstream tables by the names that models use."""
    return {upstream.loaded.name: _upstream_rows(spark, layout, upstream) for upstream in upstreams}


def _upstream_rows(spark: SparkSession, layout: Layout, upstream: UpstreamDays) -> DataFrame:
    """The business columns of these days; no rows if there is no table."""
    dataset = upstream.loaded.dataset
    frames = [
        with_declared_columns(read_days(spark, path, dataset.partition_column, days), dataset)
        for path, days in _upstream_tables(layout, upstream)
    ]
    if not frames:
        return spark.createDataFrame([], struct_of(dataset.types))
    return reduce(DataFrame.unionByName, (frame.select(*dataset.columns) for frame in frames))


def require_declared_columns(layout: Layout, upstreams: Collection[UpstreamDays]) -> None:
    """Refuse upstream days that were built without a column that is declared now: Delta would fill it with null.

    A shadow writes every declared column, even if it is null in each row. The footer of each file of these days is read.

    Raises:
        SourceError: a column is missing in files of some days, or they cannot be read.
    """
    for upstream in upstreams:
        missing: dict[str, set[dt.date]] = {}
        for path, days in _upstream_tables(layout, upstream):
            for column, day in _missing(path, days, upstream.loaded.dataset):
                missing.setdefault(column, set()).add(day)
        if missing:
            name = upstream.loaded.name
            found = ", ".join(f"{column} of {format_days(days)}" for column, days in sorted(missing.items()))
            raise SourceError(
                f"{name} was built without columns that its dataset.yaml declares now, which would be read as null: {found}; "
                f"launch {name} for these days as well"
            )


def _upstream_tables(layout: Layout, upstream: UpstreamDays) -> Iterator[tuple[Location, tuple[dt.date, ...]]]:
    """The tables that days of an upstream are read from, each with its days."""
    loaded = upstream.loaded
    for place, days in sorted(upstream.places.items()):
        path = table_of_place(layout, loaded.name, place)
        if days and is_table(path):
            yield path, days


def _missing(path: Location, days: Collection[dt.date], dataset: Dataset) -> Iterator[tuple[str, dt.date]]:
    """The declared columns that are missing in files of a table, each with the day of the file."""
    # The day is in the path of a file, not in the file.
    declared = dataset.columns.keys() - {dataset.partition_column}
    for file, day in files_of_days(table_at(path), dataset.partition_column, days).items():
        try:
            with (path / file).reader() as opened, parquet.ParquetFile(opened) as read:
                schema = read.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{path / file}: cannot be read: {in_one_line(error)}; see: backfill doctor") from error
        yield from ((column, day) for column in declared - set(schema.names))
