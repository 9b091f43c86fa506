"""What a recomputation has changed so far: per metric the range over the days, beside what was promised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Final

from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.expected_change import ROUNDING, Change

ENDING: Final = "_change"
"""What the check of a metric's change is called after the metric's name."""
_SHOWN: Final = Decimal("1e-6")
_LARGE: Final = Decimal(10) ** 12
"""From here on digits after the point mean nothing, and rounding to them would not fit."""


@dataclass(frozen=True)
class MetricChange:
    """How far a metric has moved over `days` days, and what was promised on them, each with where it stands.

    `range` is none where no day had anything to compare with. Its edges are rounded outwards, to 0.0001 %.
    """

    dataset: str
    metric: str
    days: int
    range: Change | None
    promised: tuple[str, ...]


def metric_changes(evidence: Iterable[DayEvidence]) -> tuple[MetricChange, ...]:
    """The change of each metric that was checked, over all days with evidence; in the order of the checks."""
    moved: dict[tuple[str, str], list[Decimal]] = {}
    promised: dict[tuple[str, str], dict[str, None]] = {}
    for one in evidence:
        for verdict in one.verdicts:
            metric = verdict.check.removesuffix(ENDING)
            if metric == verdict.check or metric not in one.measured.shadow.metrics:
                continue
            key = (one.dataset, metric)
            found, said = moved.setdefault(key, []), promised.setdefault(key, {})
            change = relative(one.measured.published.metrics.get(metric), one.measured.shadow.metrics[metric])
            if change is not None:
                found.append(change)
                said[f"{verdict.expected} ({verdict.note})" if verdict.note else verdict.expected] = None
    return tuple(
        MetricChange(dataset, metric, len(found), _range(found), tuple(promised[dataset, metric]))
        for (dataset, metric), found in moved.items()
    )


def relative(old: Decimal | None, new: Decimal | None) -> Decimal | None:
    """The relative change of a figure (-0.5 is -50 %); none where there is nothing to compare."""
    if old is None or new is None or not old.is_finite() or not new.is_finite() or not old:
        return None
    # What sums of floating-point numbers differ by is no change.
    return _rounded((new - old) / old, ROUNDING, ROUND_HALF_EVEN)


def _range(found: list[Decimal]) -> Change | None:
    if not found:
        return None
    return Change(_rounded(min(found), _SHOWN, ROUND_FLOOR), _rounded(max(found), _SHOWN, ROUND_CEILING))


def _rounded(value: Decimal, step: Decimal, how: str) -> Decimal:
    return value.quantize(step, how) if abs(value) < _LARGE else value
