"""The checks and metrics of a dataset in order, and the band that is expected of each metric."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from backfill_assets.core.evidence import Check, CheckKind
from backfill_assets.core.expected_change import Change, Contract
from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.core.text import format_duration
from backfill_assets.core.unit import IDENTICAL_FILES
from backfill_assets.dataset.checks import PERCENTILES, ChangeConfig, CheckConfig, Measure
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.sources import golden_check


def metric_names(dataset: Dataset) -> tuple[str, ...]:
    """The names of all metrics: `row_count`, and per measure `<measure>`, `distinct_<measure>`, `p50_<measure>`."""
    names = [ROW_COUNT]
    for name, measure in dataset.measures.items():
        names += [name] if measure.sum else []
        names += [f"distinct_{name}"] if measure.distinct else []
        names += [f"{p}_{name}" for p in PERCENTILES] if measure.percentiles else []
    return tuple(names)


def measure_of(metric: str, dataset: Dataset) -> str:
    """The measure that a metric such as `distinct_tail_number` or `p50_delay` belongs to."""
    if metric in dataset.measures and dataset.measures[metric].sum:
        return metric
    for prefix in ("distinct", *PERCENTILES):
        if metric.startswith(prefix + "_") and metric.removeprefix(prefix + "_") in dataset.measures:
            return metric.removeprefix(prefix + "_")
    return metric


def tolerance_of(metric: str, dataset: Dataset) -> Decimal:
    """How far a metric may move where no contract speaks of it, as a fraction."""
    config: ChangeConfig | Measure = dataset.checks.row_count
    if metric != ROW_COUNT:
        config = dataset.measures[measure_of(metric, dataset)]
    return config.tolerance


@dataclass(frozen=True)
class Band:
    """How far a metric may move on a day, and whether a contract says so or the dataset's own tolerance."""

    change: Change
    promised: bool


def band_of(metric: str, dataset: Dataset, day: dt.date, contract: Contract) -> Band:
    """The band in force for a metric on a day; the contract wins over the dataset's tolerance."""
    expected, tolerance = contract.expected(metric, day), tolerance_of(metric, dataset)
    return Band(Change(-tolerance, tolerance), promised=False) if expected is None else Band(expected, promised=True)


def checks_of(dataset: Dataset) -> tuple[Check, ...]:
    """Every check of a dataset, in the order in which they are shown; the names are unique."""
    c = dataset.checks
    checks = [
        _check("unique_key", CheckKind.unique_key, "", c.unique_key, f"({', '.join(dataset.key)}) is unique"),
        _check("not_null", CheckKind.not_null, "", c.not_null, f"no null in {', '.join(dataset.required_columns)}"),
        _check("not_empty", CheckKind.not_empty, "", c.not_empty, "a day that is built from rows has some"),
        *_checks_of_origin(dataset),
        *_checks_of_batches(dataset),
        _check("row_count_change", CheckKind.change, ROW_COUNT, c.row_count, "row count against what is published"),
    ]
    checks += [
        _check(
            f"{m}_change",
            CheckKind.change,
            m,
            dataset.measures[measure_of(m, dataset)],
            f"{m} against what is published",
        )
        for m in metric_names(dataset)[1:]
    ]
    text = "every row that stays keeps what must not change, and moves no further than promised"
    checks += [
        _check("schema_contract", CheckKind.schema, "", c.schema_contract, "columns are kept or added, never changed"),
        _check(
            "keys_change", CheckKind.keys, "", c.keys_change, "no row goes and another comes in its place unexplained"
        ),
        _check("rows_change", CheckKind.rows, "", c.rows_change, text),
        _check("columns_change", CheckKind.columns, "", c.columns_change, "no other column changes unannounced"),
        _check("seams", CheckKind.seams, "", c.seams, "no unusual step to a neighbouring day is brought in"),
        _check("null_share", CheckKind.nulls, "", c.null_share, "no column is null far more often than it was"),
    ]
    checks += [
        _check(f"reconciles_{m}", CheckKind.reconciliation, m, c.reconciliation, f"{m} equals that of staging")
        for m in dataset.reconciled
    ]
    checks += [
        _check(f"reconciles_{m}", CheckKind.upstream_total, m, c.reconciliation, f"{m} equals {t.sql} of {t.upstream}")
        for m, t in c.reconciliation.totals.items()
    ]
    return (*checks, *_checks_by_name(dataset))


def _checks_by_name(dataset: Dataset) -> Iterator[Check]:
    c = dataset.checks
    for n, r in c.references.items():
        yield _check(f"reference_{n}", CheckKind.reference, n, r, f"{', '.join(r.columns)} is known in {r.reference}")
    for n, rule in c.rules.items():
        yield _check(f"rule_{n}", CheckKind.rule, n, rule, rule.sql)
    for n, g in dataset.golden.items():
        yield _check(golden_check(n), CheckKind.golden, n, g, g.description or f"agrees with {n} by {', '.join(g.key)}")


def _checks_of_batches(dataset: Dataset) -> Iterator[Check]:
    if dataset.looks_back:
        text = "a day comes out the same however a launch is cut"
        yield _check("same_alone", CheckKind.alone, "", dataset.checks.same_alone, text)


def _checks_of_origin(dataset: Dataset) -> Iterator[Check]:
    c = dataset.checks
    if dataset.source is not None:
        yield _check("source_present", CheckKind.source_present, "", c.source_present, "something was delivered")
        text = "every delivered row is readable and of its day"
        yield _check("corrupt_rows", CheckKind.corrupt_rows, "", c.corrupt_rows, text)
        text = "no file was delivered under several names and counted more than once, or again for a later day"
        yield _check(IDENTICAL_FILES, CheckKind.identical, "", c.identical_files, text)
        if c.source_freshness.max_delay is not None:
            text = f"delivered within {format_duration(c.source_freshness.max_delay)} of the day's end"
            yield _check("source_freshness", CheckKind.source_freshness, "", c.source_freshness, text)
    if dataset.upstream:
        text = f"{', '.join(dataset.upstream)} has rows to build the day from"
        yield _check("upstream_present", CheckKind.upstream_present, "", c.upstream_present, text)


def _check(name: str, kind: CheckKind, subject: str, config: CheckConfig, text: str) -> Check:
    return Check(name, kind, subject, config.severity, config.blocks, text)
