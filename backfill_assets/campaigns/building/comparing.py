"""Comparing a batch: what its rows and columns differ in, as verdicts need it, and rows behind the verdicts that failed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence

from backfill_assets.core.evidence import CheckKind, DayEvidence
from backfill_assets.core.evidence import Row as SampleRow
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import Alone, Compared, GoldenCounts, NullRise, SchemaChange, Seam
from backfill_assets.dataset.check_list import checks_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.domain.judge_rows import broken_promises, promised_rows, unnamed_changes
from backfill_assets.lakehouse.road.row_differences import RowDifferences


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
