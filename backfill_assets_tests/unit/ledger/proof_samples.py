"""Comparisons and certificates for reviewers, shared by the tests of the ledger."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from backfill_assets.core.certificate import Certificate, Disagreement, Prints, Recomputation
from backfill_assets.core.measured import DayComparison, RowChange, Share
from backfill_assets_tests.unit.ledger.samples import NOON


def a_comparison(day: dt.date, attempt: int) -> DayComparison:
    change = RowChange("delay", day, {"flight": "Zürich 7", "leg": 2, "late": True}, Decimal("0.10"), None)
    share = Share("carrier", "LX", 1, 3, {"delay": Decimal("0.10")})
    return DayComparison("flights", day, attempt, 1, 3, {"delay": Decimal("0.10")}, (change,), (share,))


def a_certificate(days: tuple[dt.date, ...], unit: str = "u_b_1", name: str = "c_1") -> Certificate:
    """One that did not pass: a day was not reproduced."""
    ways = (Recomputation("once more", {}), Recomputation("other shuffle", {"spark.sql.shuffle.partitions": "7"}))
    prints = Prints(3, 3, {"delay": "ab:cd"}, {"delay": "0.1"}, "f" * 64)
    row = {"flight": "Zürich 7", "delay: old": 0.1, "delay: new": None}
    return Certificate(
        id=name,
        dataset="flights",
        unit=unit,
        days=days,
        code="c0de",
        inputs=dict.fromkeys(days, "i"),
        recomputations=ways,
        prints={way.name: dict.fromkeys(days, prints) for way in ways},
        disagreements=(Disagreement(days[0], "other shuffle", ("delay",), (row,)),),
        touched=(f"published flights {days[-1]}",),
        at=NOON,
        by="ada",
    )
