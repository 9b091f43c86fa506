"""Measurements: the figures of one day on each side, from which verdicts are made without touching data again."""

from __future__ import annotations

from decimal import Decimal

from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.domain.checks_config import PERCENTILES, ChangeConfig, Measure
from backfill_assets.domain.dataset import Dataset


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
