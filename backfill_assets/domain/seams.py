"""Seams: steps between neighbouring days that a recomputation has brought in."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Seam:
    """The step of a metric from the day before to `day`, as it was and as it would be.

    Steps are new day less day before; scores are robust z-scores of the steps among those that the series usually makes,
    none where the step cannot be told. `introduced` says that the step is unusual now and was not before.
    """

    dataset: str
    metric: str
    day: dt.date
    old_step: Decimal | None
    new_step: Decimal | None
    old_score: float | None
    new_score: float | None
    introduced: bool
