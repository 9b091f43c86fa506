"""Runs one SQL or Python model: tables and references in, one DataFrame out."""

from __future__ import annotations

import datetime as dt
import inspect
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from types import ModuleType
from typing import Any, Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.campaign.execution import PINNED
from backfill_assets.core.days import Days
from backfill_assets.core.errors import BackfillError, ModelError
from backfill_assets.dataset.loaded import Language, LoadedDataset, Model
from backfill_assets.dataset.references import Reference, as_published, seen_alike, seen_by_day
from backfill_assets.dataset.running import running
from backfill_assets.dataset.sources import ReferenceFile
from backfill_assets.evidence.references import (
    FingerprintsByDay,
    days_by_version,
    file_of,
    reference_file,
    shown_version,
)
from backfill_assets.pipeline.formats import cells_of, columns_in, headers_of, lines_of, require_columns
from backfill_assets.pipeline.parse import CORRUPT, HEADER, typed_rows
from backfill_assets.pipeline.reads import parts, undeclared, undeclared_in_request
from backfill_assets.pipeline.sql_text import quoted
from backfill_assets.pipeline.tables import renamed
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.storage.text_files import headline

_PYTHON_ON_THE_SERVER: Final = {
    "common_inline_user_defined_function": "a Python UDF",
    "common_inline_user_defined_table_function": "a Python table function",
    "common_inline_user_defined_data_source": "a Python data source",
    "map_partitions": "mapInPandas or mapInArrow",
    "group_map": "applyInPandas",
    "co_group_map": "a cogrouped applyInPandas",
    "apply_in_pandas_with_state": "applyInPandasWithState",
}


def run_model(spark: SparkSession, model: Model, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Run a model on the tables given by name; the result is analysed, but nothing is computed yet.

    Raises:
        ModelError: the file cannot be run, asks for an unknown table, uses a Python UDF, reads or calls what `undeclared`
            finds, or Spark cannot analyse it; names the file and, if known, the line.
    """
    frame = _sql(spark, model, tables) if model.language is Language.sql else _python(spark, model, tables)
    if found := _python_in(frame):
        raise ModelError(
            f"{model.path}: uses {found}, which the Spark server cannot run without this project's modules. "
            "Write it with pyspark.sql.functions or in SQL"
        )
    with renamed(ModelError, str(model.path)):
        schema = frame.schema
        if problem := undeclared(frame, tables):
            raise ModelError(f"{model.path}: {problem}")
    _check_usable(model, schema)
    return frame


def run_query(spark: SparkSession, text: str, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Run one SELECT on the tables given by name; it raises Spark's own errors."""
    # As a subquery, a text can only be a query: a statement that changes something does not parse. Tables are passed by
    # value: the name of a temp view would be resolved again at each use, and could be another view by then.
    names = ", ".join(f"{quoted(name)} AS (SELECT * FROM {{{name}}})" for name in tables)
    given = f"WITH {names} " if names else ""
    body = text.strip().removesuffix(";").replace("{", "{{").replace("}", "}}")
    return spark.sql(f"{given}SELECT * FROM (\n{body}\n)", **cast("dict[str, Any]", tables))


def empty_tables(spark: SparkSession, schemas: Mapping[str, T.StructType]) -> dict[str, DataFrame]:
    """Tables without rows, which show the columns that a model returns."""
    return {name: spark.createDataFrame([], schema) for name, schema in schemas.items()}


def _sql(spark: SparkSession, model: Model, tables: Mapping[str, DataFrame]) -> DataFrame:
    with renamed(ModelError, str(model.path), lines_before=1 - _blank_lines(model.text)):
        return run_query(spark, model.text, tables)


def _blank_lines(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")


def _python(spark: SparkSession, model: Model, tables: Mapping[str, DataFrame]) -> DataFrame:
    # Imported here: it loads all of Spark's client, which takes a second and which read-only commands do not need.
    from pyspark.errors.exceptions.connect import SparkConnectException  # noqa: PLC0415

    try:
        with running(model) as module:
            frame = _call(spark, model, _function(model, module), tables)
    except BackfillError:
        raise
    except SparkConnectException as error:
        with renamed(ModelError, _place(model, error)):
            raise
    except Exception as error:  # Spark's client has its own errors, such as for wrong arguments
        raise ModelError(f"{_place(model, error)}: {type(error).__name__}: {error}") from error
    if not isinstance(frame, DataFrame):
        raise ModelError(f"{model.path}: {model.layer}() returned {type(frame).__name__}; return a DataFrame")
    return frame


def _call(
    spark: SparkSession, model: Model, function: Callable[..., object], tables: Mapping[str, DataFrame]
) -> object:
    signature = inspect.signature(function)
    for name in signature.parameters:
        if name not in tables:
            raise ModelError(
                f"{model.path}: {model.layer}() has the parameter {name!r}, but there is no such table; "
                f"known tables: {', '.join(sorted(tables))}"
            )
    bound = signature.bind_partial()
    bound.arguments.update({name: tables[name] for name in signature.parameters})
    with _active(spark), _watched(spark, model, tables):
        return function(*bound.args, **bound.kwargs)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make the session active in this thread: Spark's functions that parse a type from text need it."""
    holder = cast("Any", type(spark))._active_session  # noqa: SLF001 - the public way makes it every thread's default
    before = getattr(holder, "session", None)
    holder.session = spark
    try:
        yield
    finally:
        holder.session = before


@contextmanager
def _watched(spark: SparkSession, model: Model, tables: Mapping[str, DataFrame]) -> Iterator[None]:
    """Refuse forbidden statements that a model executes in this thread; afterwards, reset the session's settings."""
    from backfill_assets.spark.client import set_settings  # noqa: PLC0415 - as above

    client = cast("Any", spark).client
    watch = _Watch(client, model, tables)
    client._session_hooks.append(watch)  # noqa: SLF001 - hooks can be given to a new session only
    try:
        yield
    finally:
        client._session_hooks.remove(watch)  # noqa: SLF001
    set_settings(client, PINNED)


class _Watch:
    """A hook of Spark's client."""

    def __init__(self, client: Any, model: Model, tables: Mapping[str, DataFrame]) -> None:
        self._client, self._model, self._tables = client, model, tables
        self._thread = threading.get_ident()

    def on_execute_plan(self, request: Any) -> Any:
        if threading.get_ident() != self._thread:
            return request
        if problem := undeclared_in_request(self._client, request, self._tables):
            raise ModelError(f"{self._model.path}: {problem}")
        return request


def _function(model: Model, module: ModuleType) -> Callable[..., object]:
    function = getattr(module, model.layer, None)
    if not inspect.isfunction(function):
        raise ModelError(f"{model.path}: has no function {model.layer}(); define one that returns a DataFrame")
    return function


def _place(model: Model, error: Exception | None) -> str:
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    lines = [f.lineno for f in frames if f.filename == str(model.path)]
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    return f"{model.path}, line {line}" if line else str(model.path)


def _check_usable(model: Model, schema: T.StructType) -> None:
    seen: set[str] = set()
    for field in schema.fields:
        if field.name.lower() in seen:
            raise ModelError(f"{model.path}: returns the column {field.name!r} twice; rename or drop one")
        if isinstance(field.dataType, T.NullType):
            raise ModelError(f"{model.path}: the column {field.name!r} has no type; cast its null to one")
        seen.add(field.name.lower())


def _python_in(frame: DataFrame) -> str | None:
    connect = cast("Any", frame)
    plan = connect._plan.to_proto(connect.sparkSession.client)  # noqa: SLF001 - no public way to the plan
    return next((_PYTHON_ON_THE_SERVER[n] for n in _field_names(plan) if n in _PYTHON_ON_THE_SERVER), None)


def _field_names(plan: Any) -> Iterator[str]:
    left = [plan]
    while left:
        for field, value in left.pop().ListFields():
            yield field.name
            left += parts(value)


def plain_references(spark: SparkSession, loaded: LoadedDataset, layout: Layout) -> dict[str, DataFrame]:
    """Every reference without versions as a DataFrame with exactly its declared columns.

    A row that cannot be read as declared fails every query on the table.

    Raises:
        SourceError: a file is missing or has other columns than declared.
    """
    return {name: _read_reference(spark, loaded, layout, name) for name in seen_alike(loaded.dataset.references)}


def reference_tables(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    days: Collection[dt.date],
    prints: FingerprintsByDay,
) -> dict[str, DataFrame]:
    """Every reference as fact models see it: those with versions have the rows that each of the days sees.

    `prints` has the fingerprints of references by day and name (`References`).

    Raises:
        SourceError: a file is missing or damaged, or has other columns than declared.
    """
    references, partition = loaded.dataset.references, loaded.dataset.partition_column
    tables = plain_references(spark, loaded, layout)
    for name in seen_by_day(references):
        if name in as_published(references) and days:
            versions = days_by_version({day: prints[day] for day in days}, name).items()
            files = [(_read_version(spark, loaded, layout, name, version, own), own) for version, own in versions]
        else:
            files = [(_read_reference(spark, loaded, layout, name), tuple(days))]
        frames = (_seen_on(rows, references[name], partition, own) for rows, own in files)
        tables[name] = reduce(DataFrame.unionByName, frames)
    return tables


def _read_reference(spark: SparkSession, loaded: LoadedDataset, layout: Layout, name: str) -> DataFrame:
    reference = loaded.dataset.references[name]
    return read_file(spark, reference, reference_file(loaded, layout, name), reference.path)


def _read_version(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, name: str, version: str, days: Days
) -> DataFrame:
    reference, file = loaded.dataset.references[name], file_of(loaded, layout, name, version, days)
    return read_file(spark, reference, file, shown_version(reference.path, version))


def _seen_on(rows: DataFrame, reference: Reference, partition: str, days: Collection[dt.date]) -> DataFrame:
    """The rows that each of these days sees, once for each day."""
    asked = F.array(*(F.lit(day) for day in sorted(days))).cast("array<date>")
    if reference.valid is None:
        return rows.withColumn(partition, F.explode(asked)).select(*reference.types_seen(partition))
    first, after = map(F.col, reference.valid)
    missing = F.raise_error(F.lit(f"{reference.path}: a row does not say from which day on it is valid")).cast("date")
    own = F.filter(asked, lambda day: (F.coalesce(first, missing) <= day) & (after.isNull() | (day < after)))
    return rows.withColumn(partition, F.explode(own)).select(*reference.types_seen(partition))


def read_file(spark: SparkSession, reference: ReferenceFile, file: Location, shown: str) -> DataFrame:
    """One file as a DataFrame with exactly its declared columns; `shown` names it in errors.

    A row that cannot be read as declared fails every query on the frame.

    Raises:
        SourceError: the file has other columns than declared, or no header.
    """
    require_columns(file, shown, reference)
    if reference.is_text:
        headers = headers_of(reference, {headline(file, shown): shown})
        header = F.lit(next(iter(headers))) if headers else F.lit(None).cast("binary")
        lines = lines_of(spark, reference, [file]).withColumn(HEADER, header)
        rows = typed_rows(cells_of(lines, reference, headers), reference)
    else:
        rows = columns_in(spark, reference, [file])
    bad = F.concat(F.lit(f"{shown}: a row cannot be read as dataset.yaml declares it: "), F.col(CORRUPT))
    # Spark never skips a condition on rows, whatever columns are read.
    return rows.where(F.when(F.col(CORRUPT).isNull(), F.lit(True)).otherwise(F.raise_error(bad))).select(
        *reference.columns
    )
