from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

from backfill_assets.core.measured import Seam
from backfill_assets.pipeline.seams import judge_seams

DAY = dt.date(2024, 3, 1)
USUAL = Seam("sales", "revenue", DAY, Decimal("1.5"), Decimal(2), 0.1, 0.2, introduced=False)
SEAM = Seam("sales", "revenue", DAY, Decimal("-3.1"), Decimal("1234.5"), -0.34, 9.87, introduced=True)


def test_usual_steps_are_fine_and_so_are_none() -> None:
    assert judge_seams(()).passed
    assert judge_seams((USUAL, USUAL)).found == "2 usual steps"


def test_a_seam_is_named_with_metric_day_steps_and_scores() -> None:
    found = judge_seams((USUAL, SEAM))
    assert not found.passed
    assert found.found == "revenue steps by +1234.50 into 2024-03-01, a score of 9.9 (was -3.10, -0.3)"
    assert found.tolerance == "a robust z-score of 3.5"
    assert found.note.startswith("recompute the days on the other side as well")


def test_a_seam_where_there_was_no_step_before_says_so() -> None:
    both = judge_seams((SEAM, replace(SEAM, metric="tax", old_step=None, old_score=None)))
    assert both.found.split("; ")[1].endswith("(was unknown)")
