"""Staging and upstreams → shadow: builds the new version of some days where no reader sees it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ModelError
from backfill_assets.core.measured import Alone
from backfill_assets.dataset.consistency import IS_PROVISIONAL
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.basis import UpstreamDays
from backfill_assets.pipeline.compare import Pair, counts_of, differing, tallies_of
from backfill_assets.pipeline.fingerprints import fingerprint_columns, fingerprint_of
from backfill_assets.pipeline.frames import Frames, upstream_tables
from backfill_assets.pipeline.measure import Sides
from backfill_assets.pipeline.run_models import run_model
from backfill_assets.pipeline.tables import in_days, is_true, renamed, write_days
from backfill_assets.pipeline.types import declared_type


@dataclass(frozen=True)
class Audit:
    """The audit columns of every row of a shadow; the time is aware. Rows of `provisional` days wait for later ones."""

    recalculated_at: dt.datetime
    unit: str
    code_version: str
    provisional: frozenset[dt.date] = frozenset()


def build_shadow(frames: Frames, audit: Audit) -> None:
    """Compute the days of a shadow into its folder below the published table, in one commit.

    The folder becomes a Delta table with one file per day; building days again replaces them.

    Raises:
        ModelError: the fact model fails, returns other columns than declared, or rows of days that it was not asked for.
        SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
        StorageError: the disk is full; the folder is unchanged.
    """
    if frames.days:
        compute_shadow(frames, frames.model_tables(frames.days, frames.upstream), audit)


def compute_shadow(frames: Frames, tables: Mapping[str, DataFrame], audit: Audit) -> None:
    """Like `build_shadow`, from given tables by name: staged rows (`staging`), upstream facts and references.

    Raises:
        ModelError: the fact model fails, returns other columns than declared, or rows of days that it was not asked for.
    """
    loaded, days = frames.loaded, frames.days
    rows = _rows(frames, days, tables)
    path = frames.layout.shadow_path(loaded.name, frames.folder)
    with renamed(ModelError, str(loaded.fact.path), also=("FAILED_READ_FILE",)):
        write_days(_audited(rows, loaded, days, audit), path, loaded.dataset.partition_column, days)


def built_alone(
    frames: Frames, days: Mapping[dt.date, Collection[UpstreamDays]], sides: Mapping[dt.date, Sides]
) -> tuple[Alone, ...]:
    """Build each of these days of a shadow alone and compare; `days` gives the upstream days that each reads then.

    One pass; if a fingerprint differs, a join that allows for floats and the columns' tolerances. Nothing is written.

    Raises:
        ModelError: the fact model fails.
    """
    if not days:
        return ()
    partition = frames.dataset.partition_column
    alone = reduce(DataFrame.unionByName, (_day_alone(frames, day, read) for day, read in days.items()))
    grouped = alone.groupBy(partition).agg(*fingerprint_columns(frames.dataset.types)).collect()
    prints = {row[partition]: fingerprint_of(row) for row in grouped}
    moved = [day for day in days if prints.get(day, "") != sides[day].shadow.fingerprint]
    counts = _differing(frames, moved, alone) if moved else {}
    return tuple(Alone(day, sides[day].shadow.rows, counts.get(day, 0)) for day in days)


def _day_alone(frames: Frames, day: dt.date, upstreams: Collection[UpstreamDays]) -> DataFrame:
    """The rows of a day that `build_shadow` would write if it built only that day."""
    tables = frames.model_tables((day,), upstream_tables(frames.spark, frames.layout, upstreams))
    return _rows(frames, (day,), tables).select(*frames.dataset.columns)


def _differing(frames: Frames, days: Collection[dt.date], alone: DataFrame) -> Mapping[dt.date, int]:
    pair = Pair(frames.dataset, frames.shadow(days).select(*frames.dataset.columns), alone)
    # Numbered: if a key occurs twice, each row is compared with one row.
    tallies = tallies_of(differing(pair.old, pair.new, pair.shape, numbered=True), pair)
    return {day: counts_of(tally, 0).differing for day, tally in tallies.items()}


def _rows(frames: Frames, days: tuple[dt.date, ...], tables: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of the fact model, without the other days of their windows."""
    dataset = frames.dataset
    fact = run_model(frames.spark, frames.loaded.fact, tables)
    _check_columns(frames.loaded, fact.schema)
    read = {day for name in dataset.upstream for day in dataset.upstream_days(name, days)}
    beside = read | set(dataset.with_window(days))
    return fact.where(~is_true(in_days(dataset.partition_column, beside - set(days))))


def _audited(rows: DataFrame, loaded: LoadedDataset, days: Collection[dt.date], audit: Audit) -> DataFrame:
    partition = loaded.dataset.partition_column
    stranger = F.concat(
        F.lit("returned a row of the day "),
        F.coalesce(F.col(partition).cast("string"), F.lit("null")),
        F.lit(f", but was asked for {format_days(days)}; a fact row must keep the day of its staged rows"),
    )
    # A value, not a condition: Spark evaluates it for each written row, wherever it moves conditions.
    own_day = F.when(in_days(partition, days), F.col(partition)).otherwise(F.raise_error(stranger).cast("date"))
    added = {
        "recalculated_at": F.lit(audit.recalculated_at).cast("timestamp"),
        "unit": F.lit(audit.unit),
        "code_version": F.lit(audit.code_version),
        IS_PROVISIONAL: is_true(in_days(partition, audit.provisional)),
    }
    audit_columns = {name: added[name] for name in loaded.dataset.audit_columns}
    columns = {**{name: F.col(name) for name in loaded.dataset.columns}, partition: own_day, **audit_columns}
    return rows.select(*(column.alias(name) for name, column in columns.items()))


def _check_columns(loaded: LoadedDataset, schema: T.StructType) -> None:
    found = {field.name: declared_type(field.dataType) for field in schema.fields}
    declared = loaded.dataset.types
    problems = [f"does not return {name} ({kind})" for name, kind in declared.items() if name not in found]
    problems += [
        f"returns {name} ({kind}), which is not declared" for name, kind in found.items() if name not in declared
    ]
    problems += [
        f"column {name}: expected {kind}, found {found[name]}"
        for name, kind in declared.items()
        if found.get(name, kind) != kind
    ]
    if problems:
        raise ModelError(f"{loaded.fact.path}: {'; '.join(problems)}. Correct it, or columns in dataset.yaml")
