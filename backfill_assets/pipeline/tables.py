"""Our layer on Spark: names, errors and figures; reads and replaces days of Delta tables."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import runs_of_days
from backfill_assets.core.errors import BackfillError, SourceError
from backfill_assets.core.layers import Layer
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.opening import LOG, MarkedCommit, commits, is_table
from backfill_assets.evidence.known_deliveries import source_key, table_of
from backfill_assets.ledger.open import Ledger
from backfill_assets.pipeline.fingerprints import fingerprint_columns, fingerprint_of
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.types import declared_type, is_nested, key_twice, spark_type
from backfill_assets.spark.driver import driver_of, is_of_data, room_for, stopped
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

_PREFIX: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_RANK: Final = "_rank"
_MOST_RANGES: Final = 20
"""Spark's time grows with the square of the terms of an OR, and not with the days of an IN."""
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+")


def days_condition(column: str, days: Collection[dt.date], written: str = "DATE'{}'") -> str:
    """SQL that is true for rows of these days, `written` so; only what `replaceWhere` and partition pruning understand."""
    name, runs = quoted(column), runs_of_days(days)
    if len(runs) > _MOST_RANGES:
        return f"{name} IN ({', '.join(map(written.format, sorted(set(days))))})"
    ranges = [f"({name} >= {written.format(first)} AND {name} <= {written.format(last)})" for first, last in runs]
    return " OR ".join(ranges) or "false"


def in_days(column: str, days: Collection[dt.date]) -> Column:
    """`days_condition` as a column."""
    return F.expr(days_condition(column, days))


def is_true(condition: Column) -> Column:
    """The condition, with null counted as false."""
    return F.coalesce(condition, F.expr("false"))


def first_rows(
    frame: DataFrame, group: Sequence[str], order: Sequence[Column], most: int
) -> Mapping[tuple[Any, ...], list[dict[str, Any]]]:
    """The first rows of each group in this order, by the values of the group's columns, which are never null."""
    rank = F.row_number().over(Window.partitionBy(*group).orderBy(*order))
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    # Sorted here: Spark would sort everything again, in a separate job.
    ranked = frame.withColumn(_RANK, rank).where(F.col(_RANK) <= most).collect()
    for row in sorted(ranked, key=lambda row: (*(row[name] for name in group), row[_RANK])):
        values = {name: value for name, value in row.asDict().items() if name != _RANK}
        found.setdefault(tuple(row[name] for name in group), []).append(values)
    return found


def condition_of(error: PySparkException) -> str:
    """The name of Spark's or Delta's error, such as `DELTA_CONCURRENT_APPEND`; empty if it has none."""
    return error.getCondition() or ""


def reason(error: PySparkException, lines_before: int = 0) -> str:
    """The first line of Spark's message; line numbers count from the start of the model, `lines_before` lines down."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = _SQLSTATE.sub("", _PREFIX.sub("", lines[0])).rstrip("; ")

    def moved(match: re.Match[str]) -> str:
        return f"line {max(int(match[1]) - lines_before, 1)}"

    return re.sub(r"\bline (\d+)", moved, text) if lines_before else text


@contextmanager
def renamed(
    kind: type[BackfillError], where: str, lines_before: int = 0, also: tuple[str, ...] = (), remedy: str = ""
) -> Iterator[None]:
    """Turn Spark's errors about data and SQL, and those that `also` names, into one of our errors that begins with `where`.

    A full disk becomes a StorageError. All other errors pass unchanged.
    """
    try:
        with room_for(where):
            yield
    except PySparkException as error:
        # A lost or interrupted engine is not the model's fault; its own handler names it.
        if not is_of_data(error) and not condition_of(error).startswith(also):
            raise
        text = f"{where}: {reason(error, lines_before)}"
        raise kind(f"{text.rstrip('. ')}; {remedy}" if remedy else text) from None


def equal_keys(mine: Column, theirs: Column, *, of_one_type: bool) -> Column:
    """Whether two parts of keys are equal, nulls included; if a model gives them different types, by their text.

    So text that is no number causes no error.
    """
    return mine.eqNullSafe(theirs) if of_one_type else mine.cast("string").eqNullSafe(theirs.cast("string"))


def figures_of(values: Mapping[str, object]) -> tuple[dict[str, Decimal | None], tuple[str, ...]]:
    """The figures by name, and the sorted names of those that Spark computed in floating point."""
    floating = sorted(name for name, value in values.items() if isinstance(value, float))
    return {name: figure(value) for name, value in values.items()}, tuple(floating)


def figure(value: object) -> Decimal | None:
    """A number from Spark as the exact figure that it shows; None for null."""
    if value is None:
        return None
    if isinstance(value, float):
        # Differences cannot compare infinities: like NaN, they equal nothing.
        return Decimal(repr(value)) if math.isfinite(value) else Decimal("NaN")
    return Decimal(str(value))


_PLAIN: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.enableRowTracking": "false",
    "delta.columnMapping.mode": "none",
}
"""Switches off what a remote server may enable by default and delta-rs or a swap of files cannot handle."""
_NEEDS_A_FEATURE: Final = "DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT"
"""Delta's error where a table gets its first column of type `timestamp_ntz`; a new table may have one anyway."""
_RACES: Final = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_TRIES: Final = 5
_LAST_COMMIT: Final = "spark.databricks.delta.lastCommitVersionInSession"
"""Where Delta says in a session which version it committed last, of whatever table."""
_WRITES: Final = itertools.count()
"""Numbers the writes of this process."""
_LOOKED_AT: Final = 10
"""In how many of the newest commits one is looked for of which Spark did not say that it made it."""


def read_table(spark: SparkSession, path: Location) -> DataFrame:
    """Read the newest version of a Delta table."""
    return spark.read.format("delta").load(path.for_spark)


def read_days(
    spark: SparkSession, path: Location, partition: str, days: Collection[dt.date], version: int | None = None
) -> DataFrame:
    """Read some days of a Delta table at its newest or a given version; files of other days are not opened."""
    reader = spark.read.format("delta")
    table = reader if version is None else reader.option("versionAsOf", version)
    return table.load(path.for_spark).where(in_days(partition, days))


def write_days(frame: DataFrame, path: Location, partition: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
    """Replace exactly these days of a table by `frame`, one file per day, in one commit; creates the table if needed.

    Returns by day the digest of the files that exactly this commit added, whatever others write meanwhile.

    Days without rows in `frame` become empty. It must not have rows of other days: Delta refuses them only if the table
    exists already.

    Raises:
        StorageError: the disk is full; the table is unchanged.
    """
    commit = replace_where(frame, path, partition, days_condition(partition, days))
    files: dict[str, list[str]] = {}
    for add in commit.read_back() if commit is not None else ():
        files.setdefault(add["partitionValues"][partition], []).append(add["path"])
    return {day: digest(sorted(files.get(day.isoformat(), []))) for day in days}


def replace_where(frame: DataFrame, path: Location, partition: str, condition: str) -> MarkedCommit | None:
    """Replace the rows that meet a condition by `frame`, one file per day, in one commit; creates the table if needed.

    Returns the commit; None if no row was removed or added, because Delta then makes no commit.

    Raises:
        StorageError: the disk is full, and the table is unchanged; or somebody else has overwritten the commit.
    """
    rows = frame.repartition(partition)
    # The commit is recognised by this mark: its number may be that of a commit of somebody else.
    mark = f"{cast('ConnectSession', frame.sparkSession).session_id} {os.getpid()} {next(_WRITES)}"

    def write() -> None:
        writer = rows.write.format("delta").mode("overwrite")
        writer = writer.option("replaceWhere", condition).option("userMetadata", mark)
        if is_table(path):
            writer.option("mergeSchema", "true").save(path.for_spark)
        else:
            writer.partitionBy(partition).options(**_PLAIN).save(path.for_spark)

    settings = frame.sparkSession.conf
    settings.unset(_LAST_COMMIT)
    with room_for(str(path)):
        try:
            retried(write)
        except PySparkException as error:
            if condition_of(error) != _NEEDS_A_FEATURE:
                raise
            _allow_local_times(frame.sparkSession, path)
            settings.unset(_LAST_COMMIT)
            retried(write)
    if (made := settings.get(_LAST_COMMIT, None)) is None:
        return _without_a_word(path, mark)
    commit = MarkedCommit(path, int(made), mark)
    commit.read_back()
    return commit


def _without_a_word(path: Location, mark: str) -> MarkedCommit | None:
    """The commit with this mark, if Spark made one and did not say so."""
    newest = [version for version, _ in commits(path / LOG)][-_LOOKED_AT:]
    made = (MarkedCommit(path, version, mark) for version in reversed(newest))
    return next((commit for commit in made if commit.is_there()), None)


def _allow_local_times(spark: SparkSession, path: Location) -> None:
    spark.sql(
        f"ALTER TABLE delta.{quoted(path.for_spark)} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    )


def writing(spark: SparkSession, ledger: Ledger, layer: Layer, dataset: str) -> AbstractContextManager[int]:
    """A session's lease on the raw or staging table of a dataset: other Spark drivers wait, see `Ledger.driver`."""
    return ledger.driver(f"{layer}/{dataset}", driver_of(spark), over=partial(stopped, spark))


def retried(write: Callable[[], None]) -> None:
    """Repeat an idempotent write when a concurrent one came first."""
    for left in reversed(range(_TRIES)):
        try:
            return write()
        except PySparkException as error:
            if not left or not condition_of(error).startswith(_RACES):
                raise
    return None


@dataclass(frozen=True)
class OnSpark:
    """Works on these datasets, with a separate session for each step; `session` opens one for a tag."""

    session: Callable[[str], AbstractContextManager[SparkSession]]
    datasets: Mapping[str, LoadedDataset]
    layout: Layout

    def opened(self, step: str) -> AbstractContextManager[SparkSession]:
        """A session for a step."""
        # The tag is unique to this thread: a newer session with the same tag would end this one.
        return self.session(f"{step} {os.getpid()} {threading.get_ident()}")


_DAY: Final = "_day"
_GONE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "DELTA_")


class SparkFingerprints(OnSpark):
    """The port `ContentFingerprints` on the published tables, and on tables that are sources."""

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Fingerprints of the published days, as in `Side.fingerprint`; empty for a day without rows."""
        none = dict.fromkeys(days, "")
        loaded = self.datasets[dataset]
        path = self.layout.published_path(dataset)
        if not days or not is_table(path):
            return none
        with self.opened(f"fingerprints {dataset}") as spark:
            partition = loaded.dataset.partition_column
            frame = with_declared_columns(read_days(spark, path, partition, days), loaded.dataset)
            rows = frame.groupBy(partition).agg(*fingerprint_columns(types_to_hash(frame, loaded.dataset))).collect()
        return none | {row[partition]: fingerprint_of(row) for row in rows}

    def of_source(self, dataset: str, days: Collection[dt.date], version: int) -> Mapping[dt.date, str]:
        """Fingerprints of the rows of delivery days in one version of the source table; empty for a day without rows.

        Raises:
            SourceError: a column is missing there or has another type, or files of this version are gone.
        """
        loaded = self.datasets[dataset]
        source = table_of(loaded)
        with self.opened(f"source of {dataset}") as spark, renamed(SourceError, source_key(loaded), also=_GONE):
            frame = source_rows(spark, loaded, self.layout, days, version, _DAY)
            rows = frame.groupBy(_DAY).agg(*fingerprint_columns(source.compared)).collect()
        return dict.fromkeys(days, "") | {row[_DAY]: fingerprint_of(row) for row in rows}


def source_rows(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], version: int, day: str
) -> DataFrame:
    """The declared columns of some delivery days of the source table at one version; `day` is the name of the day.

    Raises:
        SourceError: a column is missing there or has another type, or this version is gone.
    """
    source = table_of(loaded)
    key = source_key(loaded, "table")
    place = layout.source(source.table)
    # Since its days were found, the table may have vanished, or another one may be in its place.
    if not is_table(place):
        raise SourceError(f"{key}: {source.table} is gone; restore it, and launch again")
    with renamed(SourceError, key, also=_GONE, remedy="restore this version of the table, or launch again"):
        table = spark.read.format("delta").option("versionAsOf", version).load(place.for_spark)
        fields = {field.name.lower(): field for field in table.schema.fields}
    if source.day.lower() not in fields:
        raise SourceError(
            f"{key}: {source.table} has no column {source.day} any more; restore the table, and launch again"
        )
    for name, kind in source.types.items():
        field = fields.get(source.headers[name])
        found = "no such column" if field is None else declared_type(field.dataType)
        if found != kind:
            raise SourceError(
                f"{source_key(loaded, 'columns', name)}: expected {source.shown(name)} as {kind} in {source.table}, found "
                f"{found}; correct it, or cast in the staging model"
            )
    columns = {
        name: _as_declared(quoted(fields[source.headers[name]].name), kind) for name, kind in source.types.items()
    }
    own = fields[source.day.lower()].name
    # As text: the column is a date, or text that is one.
    those = table.where(days_condition(own, days, "'{}'"))
    # Without the table's metadata: a mapped or generated column would be one in staging, too.
    plain = [column.alias(name, metadata={}) for name, column in columns.items()]
    return those.select(F.col(quoted(own)).cast("date").alias(day, metadata={}), *plain)


def _as_declared(column: str, declared: str) -> Column:
    """A column of a table whose type is this one, apart from what the table says of its parts: comments, or that none is null."""
    kind = spark_type(declared)
    if not is_nested(kind):
        return F.col(column)
    whole = f"cast({column} AS {kind.simpleString()})"
    if twice := key_twice(column, kind):
        text = (
            f"'a map in the table''s column {column} has a key twice, correct it there: ', left(to_json({column}), 300)"
        )
        whole = f"CASE WHEN {twice} THEN raise_error(concat({text})) ELSE {whole} END"
    return F.expr(whole)


def with_declared_columns(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The frame with every declared column; missing ones are null, as readers will see them once they are added."""
    missing = {
        name: F.lit(None).cast(spark_type(column.type))
        for name, column in dataset.columns.items()
        if name not in frame.columns
    }
    return frame.withColumns(missing) if missing else frame


def types_to_hash(frame: DataFrame, dataset: Dataset) -> Mapping[str, str]:
    """The declared columns with the types by which a frame that has them all is hashed.

    Those that have parts, or had them, have their own type, in which the parts are found: a published column may still have
    another one than is declared now.
    """
    found = {field.name: field.dataType for field in frame.schema.fields}
    return {
        name: declared_type(found[name]) if is_nested(found[name]) or is_nested(spark_type(kind)) else kind
        for name, kind in dataset.types.items()
    }
