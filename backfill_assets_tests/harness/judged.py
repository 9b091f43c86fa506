"""A dataset with every kind of check, and a day on which all of them pass."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

from backfill_assets.core.evidence import Verdict
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import Compared, DayMeasurement, RowCounts, Side, SourceState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.pipeline.judge import judge

DAY = dt.date(2024, 3, 30)
PLAIN: dict[str, Any] = {
    "name": "trips",
    "partition_column": "trip_date",
    "time_zone": "Europe/Berlin",
    "start": "2024-01-01",
    "key": ["trip_date", "trip"],
    "columns": {
        "trip_date": {"type": "date"},
        "trip": {"type": "long"},
        "fare": {"type": "double", "nullable": False},
        "city": {"type": "string"},
    },
    "source": {"format": "csv", "path": "{day}.csv", "columns": {"trip": "long"}},
    "references": {"cities": {"format": "csv", "path": "cities.csv", "columns": {"name": "string"}}},
    "measures": {
        "fare": {"tolerance": "2%", "percentiles": True},
        "city": {"sum": False, "distinct": True},
    },
    "checks": {
        "source_freshness": {"max_delay": "36h"},
        "corrupt_rows": {"max_rows": 1},
        "reconciliation": {"metrics": ["row_count", "fare"]},
        "references": {"cities": {"reference": "cities", "columns": ["city"], "to": ["name"], "max_unmatched": "10%"}},
        "rules": {"fare_is_positive": {"sql": "fare > 0"}, "lenient": {"sql": "trip > 0", "max_failing": 2}},
    },
}
METRICS = {
    "row_count": Decimal(100),
    "fare": Decimal("250.5"),
    "p05_fare": Decimal(1),
    "p50_fare": Decimal(2),
    "p95_fare": Decimal(9),
    "distinct_city": Decimal(7),
}
GOOD = DayMeasurement(
    DAY,
    shadow=Side(METRICS, {"checked:cities": 100, "unmatched:cities": 10}, "f"),
    published=Side(METRICS, {}, "f"),
    staging=Side(METRICS),
    source=SourceState(1, 100, 0, 0, dt.datetime(2024, 3, 31, 4, tzinfo=dt.UTC), 100),
)
SAME = Compared(RowCounts(unchanged=100))


BY_KEY: dict[str, Any] = {"deduplicate": "latest_delivery"}
"""What `staging` must declare if several files may have rows of a day."""


def dataset(**changes: object) -> Dataset:
    """The dataset with some of its keys changed."""
    return Dataset.model_validate(PLAIN | changes)


def with_checks(**checks: object) -> Dataset:
    return dataset(checks=PLAIN["checks"] | checks)


def shadow(**counts: int) -> DayMeasurement:
    """The good day with counts of the shadow; `nulls__fare` stands for `nulls:fare`."""
    named = {name.replace("__", ":"): count for name, count in counts.items()}
    return replace(GOOD, shadow=replace(GOOD.shadow, counts={**GOOD.shadow.counts, **named}))


def with_metric(name: str, value: Decimal | None, side: str = "shadow") -> DayMeasurement:
    old: Side = getattr(GOOD, side)
    return replace(GOOD, **{side: replace(old, metrics={**old.metrics, name: value})})


def verdict(
    name: str,
    measured: DayMeasurement,
    of: Dataset | None = None,
    contract: Contract | None = None,
    compared: Compared | None = None,
) -> Verdict:
    verdicts = {v.check: v for v in judge(of or dataset(), measured, contract or Contract(), compared or SAME)}
    return verdicts[name]
