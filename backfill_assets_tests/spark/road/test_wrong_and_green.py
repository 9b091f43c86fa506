"""Ways to publish wrong rows with every check green, each tried on the real road: refused by name, or right.

`docs/proof.md` lists them; each of these tests failed before the way was closed.
"""

from __future__ import annotations

from backfill_assets.application import Application
from backfill_assets.domain.evidence import DayEvidence
from backfill_assets.domain.verdict import Verdict
from backfill_assets_tests.harness.without_dagster import built, judged
from backfill_assets_tests.spark.road.kit import D1, D2, TRIPS, Kit


def verdict(evidence: DayEvidence, check: str) -> Verdict:
    return next(v for v in evidence.verdicts if v.check == check)


def test_the_file_of_the_next_day_does_not_stand_in_for_that_of_a_day(kit: Kit) -> None:
    kit.dataset(source={**TRIPS["source"], "late_days": 1})  # type: ignore[dict-item]
    kit.deliver(D2, f"{D2},1,a,10,1.00")
    application = Application(kit.settings)
    evidence = judged(application, built(application, kit.spark, "trips", (D1, D2)), "trips")
    present = verdict(evidence[D1], "source_present")
    assert present.refuses
    assert present.found == "none"
    assert "files of later days, with 1 row, do not stand in" in present.note
    assert not any(v.refuses for v in evidence[D2].verdicts)
