"""Attribution: which values of which dimension explain most of a measure's change."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Cause:
    """Values of one dimension that together explain a share of a measure's change.

    `explained` is that share, `of_rows` their share of all rows of the changed days; both from 0 to 1.
    """

    dimension: str
    values: tuple[str, ...]
    explained: float
    of_rows: float


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
