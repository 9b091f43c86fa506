"""Shares of nulls: columns that are null far more often than they were, by the statistics of data files alone."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median
from typing import Final

from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.measured import NullRise
from backfill_assets.core.release import DataFile

SPAN: Final = 7
"""How many days before a new one, or after it where there are not enough before, tell which share is usual: a week."""
_ENOUGH: Final = 3
"""Days from which it can be told what is usual."""
_ROWS: Final = 10
"""So many rows more have to be null: of a few rows, one changes any share."""

Files = Mapping[dt.date, Sequence[DataFile]]


@dataclass(frozen=True)
class _Day:
    rows: int
    nulls: Mapping[str, int]

    def share(self, column: str) -> Decimal:
        return Decimal(self.nulls[column]) / self.rows


def null_rises(
    columns: Collection[str], built: Files, published: Files, around: Files
) -> Mapping[dt.date, tuple[NullRise, ...]]:
    """The columns of each day that was `built` which are null more often than in what is `published` of the day.

    A day of which nothing is published is compared with the median of the days before it, or also after it where these are
    less than three: as they are built, or stand `around` it. Columns of which the log has no count, as those after
    the thirty-second, are left out.
    """
    near = {**published, **around, **built}
    return {day: tuple(_rises(columns, day, built, published, near)) for day in built}


def _rises(columns: Collection[str], day: dt.date, built: Files, published: Files, near: Files) -> Iterator[NullRise]:
    own = _counted(built[day])
    if own is None:
        return
    stands = published.get(day, ())
    others = [_counted(stands)] if stands else _usual(day, near)
    for column in columns:
        shares = [one.share(column) for one in others if one is not None and column in one.nulls]
        if column not in own.nulls or not shares:
            continue
        before, share = median(shares), own.share(column)
        if own.nulls[column] - before * own.rows >= _ROWS:
            yield NullRise(column, round(share, 4), round(before, 4))


def _usual(day: dt.date, near: Files) -> list[_Day]:
    before = [_counted(near.get(day - i * ONE_DAY, ())) for i in range(1, SPAN + 1)]
    after = [_counted(near.get(day + i * ONE_DAY, ())) for i in range(1, SPAN + 1)]
    found = [one for one in before if one is not None]
    found += [one for one in after if one is not None] if len(found) < _ENOUGH else []
    return found if len(found) >= _ENOUGH else []


def _counted(files: Iterable[DataFile]) -> _Day | None:
    """Rows and nulls by column of all files; none where there is no row, or a file without statistics."""
    stats = [json.loads(file.stats) if file.stats else {} for file in files]
    rows = sum(one.get("numRecords", 0) for one in stats)
    counts = [one.get("nullCount", {}) for one in stats]
    if not rows or not all(counts):
        return None
    known = [name for name in counts[0] if all(isinstance(one.get(name), int) for one in counts)]
    return _Day(rows, {name: sum(one[name] for one in counts) for name in known})
