"""Ways to publish wrong rows with every check green, each tried on the real road: refused by name, or right.

`docs/proof.md` lists them; each of these tests failed before the way was closed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from backfill_assets.application import Application
from backfill_assets.domain.evidence import DayEvidence
from backfill_assets.domain.units import Launch, ReleaseMode, Unit
from backfill_assets.domain.verdict import Verdict
from backfill_assets.domain.work import AttemptState
from backfill_assets.settings import Settings
from backfill_assets_tests.spark.road.kit import D1, D2, TRIPS, Kit

LEASE = dt.timedelta(minutes=30)


@dataclass(frozen=True)
class Desk:
    """An installation with one dataset, `trips`, and one unit over some of its days."""

    kit: Kit
    application: Application
    unit: Unit

    def checked(self) -> Mapping[dt.date, DayEvidence]:
        """Land, build and check all days of the unit."""
        road, ledger, days = self.application.road, self.application.ledger, self.unit.targets["trips"]
        road.land(self.kit.spark, "trips", days)
        attempt = ledger.start_attempt(self.unit.id, "trips", days, "r", LEASE)
        road.build(self.kit.spark, self.unit, attempt)
        evidence = {e.day: e for e in road.validate(self.kit.spark, self.unit, attempt)}
        ledger.end_attempt(attempt.number, AttemptState.done)
        return evidence


def opened(kit: Kit, *days: dt.date, **changes: object) -> Desk:
    kit.dataset(**changes)  # type: ignore[arg-type]
    settings = {"BACKFILL_ASSETS_STATE": str(kit.root), "BACKFILL_ASSETS_DATASETS": str(kit.root / "datasets")}
    application = Application(Settings.from_env(settings))
    proposal = Unit("u_1", "launch", application.clock.now(), "ada", {"trips": days}, ReleaseMode.manual)
    return Desk(kit, application, application.ledger.assign(Launch({"trips": frozenset(days)}, "launch"), proposal))


def verdict(evidence: DayEvidence, check: str) -> Verdict:
    return next(v for v in evidence.verdicts if v.check == check)


def test_the_file_of_the_next_day_does_not_stand_in_for_that_of_a_day(kit: Kit) -> None:
    desk = opened(kit, D1, D2, source={**TRIPS["source"], "late_days": 1})  # type: ignore[dict-item]
    kit.deliver(D2, f"{D2},1,a,10,1.00")
    evidence = desk.checked()
    present = verdict(evidence[D1], "source_present")
    assert present.refuses
    assert present.found == "none"
    assert "files of later days, with 1 row, do not stand in" in present.note
    assert not any(v.refuses for v in evidence[D2].verdicts)
