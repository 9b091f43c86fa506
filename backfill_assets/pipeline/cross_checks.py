"""A batch beside other builds of its days: what is published, and days that are built alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from backfill_assets.core.evidence import CheckKind, DayEvidence
from backfill_assets.core.evidence import Row as SampleRow
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import Alone, Compared, GoldenCounts, NullRise, SchemaChange, Seam
from backfill_assets.dataset.check_list import checks_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.basis import UpstreamDays
from backfill_assets.pipeline.build import day_alone, shadow_path, upstream_tables
from backfill_assets.pipeline.compare import Pair, counts_of, differing, tallies_of
from backfill_assets.pipeline.differences import RowDifferences
from backfill_assets.pipeline.judge_rows import broken_promises, promised_rows, unnamed_changes
from backfill_assets.pipeline.measure import Sides
from backfill_assets.pipeline.tables import fingerprint_columns, fingerprint_of, read_days
from backfill_assets.storage.layout import Layout


def compared_days(
    schema: SchemaChange,
    rows: RowDifferences,
    golden: Mapping[dt.date, Mapping[str, GoldenCounts]],
    seams: Mapping[dt.date, tuple[Seam, ...]],
    moved: Collection[dt.date],
    null_rises: Mapping[dt.date, tuple[NullRise, ...]],
    alone: tuple[Alone, ...] = (),
) -> Mapping[dt.date, Compared]:
    """What verdicts need of comparisons, by day; `golden` has the counts by golden source, of all days.

    `moved` are days whose upstreams hold something else than what the published content was built from, `null_rises` the
    columns of a day that are null more often than before, `alone` the days of the batch that were built alone as well.
    """
    return {
        day: Compared(
            rows.counts.get(day), schema, counts, seams.get(day, ()), day in moved, null_rises.get(day, ()), alone
        )
        for day, counts in golden.items()
    }


def sampled_rows(
    dataset: Dataset, contract: Contract, rows: RowDifferences, evidence: Sequence[DayEvidence]
) -> Mapping[tuple[str, dt.date], tuple[SampleRow, ...]]:
    """Some of the changed rows behind the failed verdicts about rows, by check and day."""
    kinds = {check.name: check.kind for check in checks_of(dataset)}
    wanted: dict[tuple[str, str], list[dt.date]] = {}
    for one in evidence:
        failed = [v.check for v in one.verdicts if not v.passed]
        for check in failed:
            for column in _columns_behind(kinds[check], dataset, contract, one):
                wanted.setdefault((check, column), []).append(one.day)
    return rows.sample({key: tuple(days) for key, days in wanted.items()})


def _columns_behind(kind: CheckKind, dataset: Dataset, contract: Contract, one: DayEvidence) -> Collection[str]:
    counts = one.compared.rows if one.compared else None
    if counts is None:
        return ()
    if kind is CheckKind.rows:
        return broken_promises(promised_rows(dataset, one.day, contract), counts)
    return unnamed_changes(dataset, one.day, contract, counts) if kind is CheckKind.columns else ()


def built_alone(
    spark: SparkSession,
    loaded: LoadedDataset,
    layout: Layout,
    folder: str,
    days: Mapping[dt.date, Collection[UpstreamDays]],
    sides: Mapping[dt.date, Sides],
) -> tuple[Alone, ...]:
    """How these days of a shadow come out alone; `days` says which upstream days a batch of one day would read.

    One pass; where a fingerprint differs, a join that knows what floats and the columns' tolerances allow. Nothing is written.

    Raises:
        ModelError: the fact model fails.
    """
    if not days:
        return ()
    dataset = loaded.dataset
    frames = [
        day_alone(spark, loaded, layout, day, upstream_tables(spark, layout, upstreams))
        for day, upstreams in days.items()
    ]
    alone = reduce(DataFrame.unionByName, frames)
    grouped = alone.groupBy(dataset.partition_column).agg(*fingerprint_columns(dataset)).collect()
    prints = {row[dataset.partition_column]: fingerprint_of(row) for row in grouped}
    moved = [day for day in days if prints.get(day, "") != sides[day].shadow.fingerprint]
    counts = _differing(spark, loaded, layout, folder, (alone, moved)) if moved else {}
    return tuple(Alone(day, sides[day].shadow.rows, counts.get(day, 0)) for day in days)


def _differing(
    spark: SparkSession, loaded: LoadedDataset, layout: Layout, folder: str, alone: tuple[DataFrame, list[dt.date]]
) -> Mapping[dt.date, int]:
    (frame, days), dataset = alone, loaded.dataset
    there = read_days(spark, shadow_path(loaded, layout, folder), dataset.partition_column, days)
    pair = Pair(dataset, there.select(*dataset.columns), frame)
    # Numbered: of a key that occurs twice each row is compared with one.
    rows = differing(pair.old, pair.new, pair.shape, numbered=True)
    counted = rows.groupBy(dataset.partition_column).agg(*tallies_of(pair, {})).collect()
    return {row[dataset.partition_column]: counts_of(row, 0).differing for row in counted}
