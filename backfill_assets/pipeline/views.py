"""Views of published tables, previews, sandboxes, and the queries of consumers, in Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.errors import DatasetError, LayoutError, StorageError
from backfill_assets.core.measured import Figures
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.opening import is_table
from backfill_assets.pipeline.sql_text import literal, quoted
from backfill_assets.pipeline.tables import (
    OnSpark,
    condition_of,
    days_condition,
    figure,
    read_days,
    read_table,
    renamed,
    with_declared_columns,
)
from backfill_assets.pipeline.types import is_numeric, spark_type
from backfill_assets.storage.layout import ORIGIN, Layout
from backfill_assets.storage.location import Location, remove_all

DATABASE: Final = "published"
"""The database in Spark's catalog that holds the published views."""
PREVIEW: Final = "preview"
"""The database that holds the previews: views of datasets as they will be after a release."""


SANDBOX: Final = "sandbox"
"""The database that holds the sandboxes: copies of published days that their users may change."""


def ensure_views(spark: SparkSession, datasets: Iterable[LoadedDataset], layout: Layout) -> None:
    """Create or replace the view of every dataset with a published table; a view has the business columns, and `is_provisional`.

    A declared column that the table does not have yet appears with the first release that adds it. The view `data_releases`
    lists every release.
    """
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(DATABASE)}")
    releases = layout.data_releases_path()
    if is_table(releases):
        _ensure(spark, DATA_RELEASES, f"SELECT * FROM delta.{quoted(releases.for_spark)}")
    for loaded in datasets:
        try:
            path = layout.published_path(loaded.name)
            if not is_table(path):
                continue
        except (LayoutError, StorageError):
            continue  # an adopted table that is out of reach must not stop the others
        there = read_table(spark, path).columns
        columns = ", ".join(quoted(name) for name in loaded.dataset.shown(there) if name in there)
        _ensure(spark, loaded.name, f"SELECT {columns} FROM delta.{quoted(path.for_spark)}")
    _ensure_sandboxes(spark, layout)


def _ensure_sandboxes(spark: SparkSession, layout: Layout) -> None:
    """Give every sandbox its name in the catalog, and take those away whose folder is gone."""
    there = {place.name: place for place in layout.sandboxes() if is_table(place)}
    if not there and not spark.catalog.databaseExists(SANDBOX):
        return
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(SANDBOX)}")
    known = {row.tableName for row in spark.sql(f"SHOW TABLES IN {quoted(SANDBOX)}").collect()}
    for name in sorted(known - there.keys()):
        spark.sql(f"DROP TABLE IF EXISTS {quoted(SANDBOX)}.{quoted(name)}")
    for name in sorted(there.keys() - known):
        place = literal(there[name].for_spark)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {quoted(SANDBOX)}.{quoted(name)} USING delta LOCATION {place}")


def _ensure(spark: SparkSession, name: str, query: str) -> None:
    view = f"{quoted(DATABASE)}.{quoted(name)}"
    # Not CREATE OR REPLACE: Spark would drop the view for a moment, and a reader would find none.
    renew = f"ALTER VIEW {view} AS {query}"
    if spark.catalog.tableExists(view):
        spark.sql(renew)
        return
    try:
        spark.sql(f"CREATE VIEW {view} AS {query}")
    except AnalysisException as error:
        if condition_of(error) != "TABLE_OR_VIEW_ALREADY_EXISTS":
            raise
        # Another process created it meanwhile.
        spark.sql(renew)


class SparkPreviews(OnSpark):
    """The port `Previews` in the Spark catalog.

    A folder of the warehouse also lists the previews, so that checking for them needs no Spark.
    """

    def show(self, dataset: str, unit: str, days: Sequence[dt.date], shadows: Mapping[str, Sequence[dt.date]]) -> str:
        """Create or replace the preview of a dataset; returns its full name.

        It shows the unit's `shadows` (folder to days) for these `days`, and the published table for all others.
        """
        loaded, home = self.datasets[dataset], self.layout.published_path(dataset)
        partition, name = loaded.dataset.partition_column, f"{quoted(PREVIEW)}.{quoted(dataset)}"
        # Noted first: a view without a note would never be dropped.
        self.layout.preview_note(dataset).write(unit)
        with self.opened("previews") as spark:
            others = f"NOT ({days_condition(partition, days)})"
            places = {home: others} if is_table(home) else {}
            places |= {
                self.layout.shadow_path(dataset, folder): days_condition(partition, own)
                for folder, own in sorted(shadows.items())
            }
            there = {place: read_table(spark, place).columns for place in places}
            shown = loaded.dataset.shown(there.get(home, ()))
            parts = (
                f"SELECT {_columns(shown, columns)} FROM delta.{quoted(place.for_spark)} WHERE {places[place]}"
                for place, columns in there.items()
            )
            query = " UNION ALL ".join(parts) or f"SELECT {_columns(shown, ())} WHERE false"
            about = literal(f"as it will be once unit {unit} is released")
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(PREVIEW)}")
            spark.sql(f"CREATE OR REPLACE VIEW {name} COMMENT {about} AS " + query)
        return f"{PREVIEW}.{dataset}"

    def shown(self) -> Mapping[str, str]:
        """The datasets with a preview, and the unit that each shows."""
        return {note.name: note.text() for note in self.layout.preview_notes()}

    def drop(self, datasets: Sequence[str]) -> None:
        """Drop the previews of these datasets; missing ones are ignored."""
        if not datasets:
            return
        with self.opened("previews") as spark:
            if spark.catalog.databaseExists(PREVIEW):
                for name in datasets:
                    spark.sql(f"DROP VIEW IF EXISTS {quoted(PREVIEW)}.{quoted(name)}")
        for name in datasets:
            self.layout.preview_note(name).remove()


def _as_shown(frame: DataFrame, loaded: LoadedDataset) -> DataFrame:
    whole, shown = with_declared_columns(frame, loaded.dataset), loaded.dataset.shown(frame.columns)
    return whole.select(*(name for name in shown if name in whole.columns))


def _columns(shown: Mapping[str, str], there: Sequence[str]) -> str:
    """Every shown column; columns missing in a table are null, as readers will see them."""
    return ", ".join(
        quoted(name) if name in there else f"CAST(NULL AS {spark_type(kind).simpleString()}) AS {quoted(name)}"
        for name, kind in shown.items()
    )


class SparkSandboxes(OnSpark):
    """Copies of published days, for people who try a model on them: tables of their own, apart from all layers."""

    def copy(self, dataset: str, days: Collection[dt.date], version: int, name: str, about: str) -> int:
        """Copy these days of a version of the published table into a new sandbox; returns the number of rows.

        Raises:
            LayoutError: there is a sandbox of that name.
        """
        loaded, place = self.datasets[dataset], self.layout.sandbox_path(name)
        if is_table(place):
            raise LayoutError(
                f"sandbox {name!r} is there already; choose another name, or: backfill sandbox --drop {name}"
            )
        partition = loaded.dataset.partition_column
        # Noted first: a copy without a note would never be listed, nor dropped.
        (place / ORIGIN).write(about)
        with self.opened(f"sandbox {name}") as spark:
            rows = read_days(spark, self.layout.published_path(dataset), partition, days, version)
            _as_shown(rows, loaded).write.format("delta").partitionBy(partition).mode("error").save(place.for_spark)
            _ensure_sandboxes(spark, self.layout)
            return read_table(spark, place).count()

    def listed(self) -> Mapping[str, str]:
        """The sandboxes, and what each was copied from."""
        return {place.name: (place / ORIGIN).text() for place in self.layout.sandboxes()}

    def drop(self, name: str) -> None:
        """Remove a sandbox with all its files.

        Raises:
            LayoutError: there is none of that name.
        """
        place = self.layout.sandbox_path(name)
        if name not in self.listed():
            raise LayoutError(f"there is no sandbox {name!r}; see: backfill sandbox")
        files = [place / one.path for one in place.files(place, links=True) if one.path != ORIGIN]
        remove_all(place, files, tuple(_folders_in(place)))
        # Last: what a crash leaves is still listed.
        remove_all(place, [place / ORIGIN], [place])


def _folders_in(place: Location) -> Iterator[Location]:
    for entry in place.listed():
        if entry.is_folder() and entry.target() is None:
            yield entry
            yield from _folders_in(entry)


class SparkConsumers(OnSpark):
    """The port `ConsumerQueries` on the published tables."""

    def figures(self, dataset: str, versions: Sequence[int], through: dt.date) -> Mapping[int, Mapping[str, Figures]]:
        """The figures of each consumer's query by version and consumer, over the days up to `through`.

        Queries use the dataset's name for the published table at a version.

        Raises:
            DatasetError: a query of dataset.yaml fails, or returns anything but one row of numbers.
        """
        with self.opened(f"consumers {dataset}") as spark:
            return {version: self._at(spark, dataset, version, through) for version in dict.fromkeys(versions)}

    def _at(self, spark: SparkSession, name: str, version: int, through: dt.date) -> Mapping[str, Figures]:
        loaded, path = self.datasets[name], self.layout.published_path(name)
        dataset = loaded.dataset
        table = spark.read.format("delta").option("versionAsOf", version).load(path.for_spark)
        known = _as_shown(table, loaded)
        known.where(F.col(dataset.partition_column) <= F.lit(through)).createOrReplaceTempView(name)
        figures = {}
        for consumer, query in dataset.consumers.items():
            where = f"{loaded.folder / 'dataset.yaml'}: consumers.{consumer}.sql"
            with renamed(DatasetError, where):
                figures[consumer] = _one_row(spark.sql(query.sql), where)
        return figures


def _one_row(frame: DataFrame, where: str) -> Figures:
    other = [field.name for field in frame.schema.fields if not is_numeric(field.dataType)]
    if other:
        raise DatasetError(f"{where}: column {other[0]!r} is no number; return numbers only")
    rows = frame.limit(2).collect()
    if len(rows) != 1:
        found = "no row" if not rows else "several rows"
        raise DatasetError(
            f"{where}: returns {found}; a consumer's query returns one row, such as SELECT sum(amount) …"
        )
    return {name: figure(value) for name, value in rows[0].asDict().items()}
