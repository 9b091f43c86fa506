"""Writes three months of order lines and the history of their costs: python cases/margin/data.py FOLDER."""

from __future__ import annotations

import csv
import datetime as dt
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

FIRST, LAST = dt.date(2024, 1, 1), dt.date(2024, 3, 31)
_LINES_PER_DAY: Final = 40
# Price in cents; then each cost in cents, with its first day.
_PRODUCTS: Final[dict[str, tuple[int, dict[dt.date, int]]]] = {
    "coffee": (899, {dt.date(2023, 1, 1): 410, dt.date(2024, 2, 1): 455, dt.date(2024, 3, 11): 520}),
    "honey": (649, {dt.date(2023, 1, 1): 300, dt.date(2024, 2, 19): 345}),
    "tea": (450, {dt.date(2023, 6, 1): 180, dt.date(2024, 1, 15): 171, dt.date(2024, 3, 1): 198}),
    "cocoa": (575, {dt.date(2023, 1, 1): 240}),
}


def main(folder: Path) -> None:
    """Write `orders/DAY.csv` for each day and `reference/costs.csv` below `folder`; the same bytes each time."""
    chance = random.Random(4)
    for offset in range((LAST - FIRST).days + 1):
        day = FIRST + dt.timedelta(offset)
        _write(
            folder / "orders" / f"{day}.csv",
            ("order_id", "ordered_on", "product", "quantity", "price"),
            _lines(day, chance),
        )
    versions = ((p, _euros(cost), *valid) for p, (_, costs) in _PRODUCTS.items() for cost, *valid in _versions(costs))
    _write(folder / "reference" / "costs.csv", ("product", "cost", "effective_from", "effective_to"), versions)


def _lines(day: dt.date, chance: random.Random) -> Iterable[Sequence[object]]:
    for number in range(_LINES_PER_DAY):
        product = chance.choice(sorted(_PRODUCTS))
        yield f"{day:%m%d}-{number:03}", day, product, chance.randint(1, 5), _euros(_PRODUCTS[product][0])


def _versions(costs: dict[dt.date, int]) -> Iterable[tuple[int, dt.date, dt.date | None]]:
    """Each cost with the first day on which it is valid and the first day on which it no longer is."""
    days = sorted(costs)
    for first, end in zip(days, (*days[1:], None), strict=True):
        yield costs[first], first, end


def _euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
