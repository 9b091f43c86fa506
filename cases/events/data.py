"""Writes two weeks of web events of a shop, a file of JSON lines for each day: python cases/events/data.py FOLDER."""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
from pathlib import Path
from typing import Final

FIRST, LAST = dt.date(2024, 4, 1), dt.date(2024, 4, 14)
CENTS: Final = (dt.date(2024, 4, 5), dt.date(2024, 4, 9))
"""The days on which the shop sent prices in cents, without saying so."""
_PRICES: Final = {"mug": 1250, "print": 3400, "poster": 1875, "card": 320}
"""In cents."""
_EVENTS_PER_DAY: Final = 40


def main(folder: Path) -> None:
    """Write `shop/DAY.jsonl` below `folder`; the same bytes each time."""
    chance = random.Random(11)
    for offset in range((LAST - FIRST).days + 1):
        day = FIRST + dt.timedelta(offset)
        path = folder / "shop" / f"{day}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(_event(chance, day, number)) for number in range(1, _EVENTS_PER_DAY + 1))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _event(chance: random.Random, day: dt.date, number: int) -> dict[str, object]:
    at = dt.datetime.combine(day, dt.time()) + dt.timedelta(seconds=chance.randrange(86_400))
    names = chance.sample(sorted(_PRICES), chance.randint(1, 3))
    factor = 1 if CENTS[0] <= day <= CENTS[1] else 100
    items: list[dict[str, object]] = [
        {"sku": name, "price": _PRICES[name] / factor, "quantity": chance.randint(1, 3)} for name in names
    ]
    for item in items[: chance.randint(0, 1)]:
        item["coupon"] = "SPRING"
    return {
        "event": f"{day:%m%d}-{number:02}",
        "at": at.isoformat(),
        "user": {"id": chance.randint(1, 500), "country": chance.choice(["AT", "CH", "DE"])},
        "params": {"page": chance.choice(["/cart", "/checkout"]), "source": chance.choice(["mail", "search"])},
        "items": items,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
