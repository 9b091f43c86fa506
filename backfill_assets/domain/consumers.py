"""Consumers: who reads a dataset, the figures that they get out of it, and whether these drift after a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from backfill_assets.core.expected_change import ROUNDING, UNCHANGED, Contract
from backfill_assets.dataset.sources import Consumer, Figures


@dataclass(frozen=True)
class Watched:
    """One figure of a consumer: before the release, right after it, and now; `drifted` beyond `tolerance` (a fraction)."""

    consumer: str
    figure: str
    before: Decimal | None
    after: Decimal | None
    now: Decimal | None
    tolerance: Decimal
    drifted: bool


@dataclass(frozen=True)
class Moments:
    """What the consumers get out of the table, by consumer: before a release, right after it, and now."""

    before: Mapping[str, Figures]
    after: Mapping[str, Figures]
    now: Mapping[str, Figures]


def expects_change(contract: Contract) -> bool:
    """Whether a contract says that any metric has to change."""
    return any(change != UNCHANGED for clause in contract.clauses for change in clause.metrics.values())


def watched(consumers: Mapping[str, Consumer], moments: Moments, *, change_expected: bool) -> tuple[Watched, ...]:
    """Compare each figure of each consumer with what it should still be, in the order of `dataset.yaml`.

    That is the figure right after the release where a change was expected, and otherwise the one from before it.
    """
    found = []
    for name, consumer in consumers.items():
        before, after, now = (side.get(name, {}) for side in (moments.before, moments.after, moments.now))
        for figure in dict.fromkeys([*after, *before, *now]):
            values = before.get(figure), after.get(figure), now.get(figure)
            should = values[1] if change_expected else values[0]
            drifted = drifts(should, values[2], consumer.tolerance)
            found.append(Watched(name, figure, *values, consumer.tolerance, drifted))
    return tuple(found)


def drifts(should: Decimal | None, now: Decimal | None, tolerance: Decimal) -> bool:
    """Whether a figure is further from what it should be than `tolerance`, a fraction of that; up to rounding.

    Nothing equals only nothing, and what is no number only itself.
    """
    if should is None or now is None or not should.is_finite() or not now.is_finite():
        same = should is now is None or (should is not None and now is not None and str(should) == str(now))
        return not same
    slack = ROUNDING * max(abs(should), abs(now))
    return abs(now - should) > tolerance * abs(should) + slack
