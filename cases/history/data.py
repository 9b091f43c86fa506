"""Writes three years of orders up to yesterday, a file for each day: python cases/history/data.py FOLDER [LATE].

With LATE, a number of days, it writes only the file of that many days ago again, with one order more.
"""

from __future__ import annotations

import csv
import datetime as dt
import random
import sys
from pathlib import Path
from typing import Final

FIRST: Final = dt.date(2023, 12, 1)
_ORDERS_PER_DAY: Final = 12
_ONE_DAY: Final = dt.timedelta(days=1)


def main(folder: Path, late: int | None = None) -> None:
    """Write `orders/DAY.csv` below `folder`; for each day the same bytes each time."""
    today = dt.datetime.now(dt.UTC).date()  # noqa: TID251 - the history goes up to yesterday
    if late is not None:
        _write(folder, today - late * _ONE_DAY, _ORDERS_PER_DAY + 1)
        return
    for offset in range((today - FIRST).days):
        _write(folder, FIRST + offset * _ONE_DAY, _ORDERS_PER_DAY)


def _write(folder: Path, day: dt.date, orders: int) -> None:
    chance = random.Random(day.toordinal())
    path = folder / "orders" / f"{day}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("order_id", "ordered_on", "shop", "amount"))
        for number in range(1, orders + 1):
            amount = chance.randint(500, 20_000)
            row = (f"{day:%Y%m%d}-{number:02}", day, chance.choice(("north", "south", "web")))
            writer.writerow((*row, f"{amount // 100}.{amount % 100:02}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
