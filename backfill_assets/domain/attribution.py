"""Attribution: which values of which dimension explain most of a measure's change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from backfill_assets.core.measured import DayComparison

_ENOUGH: Final = Decimal("0.9")
"""The share of a change that is enough to have explained: what is left may be rounding, or another cause."""
_PRICE: Final = 0.01
"""What each further value has to add, so that one store comes before the hundred baskets that were bought in it."""
_TELLING: Final = 0.1
"""The least excess of a cause that is worth a sentence."""
_NAMED: Final = 3


@dataclass(frozen=True)
class Cause:
    """Values of one dimension that together explain a share of a measure's change.

    `explained` is that share, `of_rows` their share of all rows of the changed days; both from 0 to 1.
    """

    dimension: str
    values: tuple[str, ...]
    explained: float
    of_rows: float

    @property
    def excess(self) -> float:
        """How much more these values explain than a change that is spread evenly over the rows would make them; up to 1."""
        return self.explained - self.of_rows


@dataclass(frozen=True)
class Attribution:
    """The causes of a measure's change, one per dimension, the most telling first.

    `moved` adds up the absolute differences of all rows; `unexplained` is what the first cause leaves, from 0 to 1.
    """

    dataset: str
    measure: str
    moved: Decimal
    causes: tuple[Cause, ...]
    unexplained: float

    def __str__(self) -> str:
        if not self.causes or self.causes[0].excess < _TELLING:
            return f"the {self.measure} change is spread over the rows; no dimension tells where it is from"
        first = self.causes[0]
        named, rest = first.values[:_NAMED], len(first.values) - _NAMED
        parts = [*named, f"{rest} more"] if rest > 0 else [*named]
        where = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        has = "which has" if len(parts) == 1 else "which have"
        return (
            f"{_percent(first.explained)} of the {self.measure} change is in {first.dimension} {where}, "
            f"{has} {_percent(first.of_rows)} of the rows"
        )


@dataclass
class _Sum:
    moved: Decimal = Decimal(0)
    of: int = 0


def attribute(comparisons: Iterable[DayComparison]) -> tuple[Attribution, ...]:
    """Explain the change of each measure of each dataset that moved, over all compared days; sorted by dataset and measure.

    After Adtributor (Bhagwan et al., "Adtributor: Revenue Debugging in Advertising Systems", NSDI 2014): each dimension
    proposes the few values that explain most of the change (*explanatory power*, *succinctness*), leaving out those that
    are not surprising, and the dimensions are sorted by how surprising their proposals are. Where it differs:

    - Explanatory power is the share of the absolute differences of rows, not of the difference of the totals: two errors
      that cancel out in the sum are found as well, and every share lies between 0 and 1.
    - Surprise is the share of the change less the share of the rows (`Cause.excess`), not the Jensen-Shannon divergence from
      a forecast: a correction has none, and people can read percentages of rows. A value that explains no more than its rows
      would is not surprising. Where no value of a dimension is, the largest speak for it.
    - A proposal ends at 90 % rather than 67 %, since a faulty computation is rarely a matter of chance. A threshold per value
      (there 10 %) would hide an error in twenty stores; instead each value beyond the first lowers the rank by one percent point.

    Of each day only values that make up a percent of its change are known: no more than that is missing from any value.
    Figures that are no finite numbers count as nothing; a measure that did not move is left out.
    """
    of_dataset: dict[str, list[DayComparison]] = {}
    for one in sorted(comparisons, key=lambda c: (c.dataset, c.day, c.attempt)):
        of_dataset.setdefault(one.dataset, []).append(one)
    found = []
    for dataset, days in sorted(of_dataset.items()):
        for measure in sorted({measure for day in days for measure in day.moved}):
            total = sum((_finite(day.moved.get(measure)) for day in days), Decimal(0))
            if total:
                causes = _causes(days, measure, _Sum(total, sum(day.of for day in days)))
                left = 1 - causes[0].explained if causes else 1.0
                found.append(Attribution(dataset, measure, total, causes, left))
    return tuple(found)


def _causes(days: Iterable[DayComparison], measure: str, whole: _Sum) -> tuple[Cause, ...]:
    sums: dict[str, dict[str, _Sum]] = {}
    for day in days:
        for share in day.shares:
            one = sums.setdefault(share.dimension, {}).setdefault(share.value, _Sum())
            one.moved += _finite(share.moved.get(measure))
            one.of += share.of
    causes = [_cause(dimension, values, whole) for dimension, values in sums.items()]
    return tuple(sorted(causes, key=_rank))


def _rank(cause: Cause) -> tuple[bool, float, int, str]:
    # All rows together explain everything, and nothing.
    worth = cause.excess - _PRICE * (len(cause.values) - 1)
    return cause.of_rows >= 1, -worth, len(cause.values), cause.dimension


def _cause(dimension: str, values: Mapping[str, _Sum], whole: _Sum) -> Cause:
    moved = {value: one for value, one in values.items() if one.moved > 0}
    surprising = {v: one for v, one in moved.items() if one.moved * whole.of > whole.moved * one.of}
    chosen: list[str] = []
    taken = _Sum()
    for value, one in sorted((surprising or moved).items(), key=lambda item: (-item[1].moved, item[1].of, item[0])):
        if taken.moved >= _ENOUGH * whole.moved:
            break
        chosen.append(value)
        taken = _Sum(taken.moved + one.moved, taken.of + one.of)
    of_rows = min(1.0, taken.of / whole.of) if whole.of else 1.0
    return Cause(dimension, tuple(chosen), min(1.0, float(taken.moved / whole.moved)), of_rows)


def _finite(value: Decimal | None) -> Decimal:
    return value if value is not None and value.is_finite() else Decimal(0)


def _percent(share: float) -> str:
    # Nothing that is not whole may look as if it were.
    if 0 < share < 0.01:  # noqa: PLR2004 - the least that is shown
        return "under 1 %"
    return f"{share * 100:.0f} %" if share == 1 or share <= 0.99 else "over 99 %"  # noqa: PLR2004 - the most
