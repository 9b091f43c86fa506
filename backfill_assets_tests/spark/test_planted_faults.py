"""Every kind of error is caught at the level that should catch it, and correct corrections raise no alarm."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import pytest

from backfill_assets.core.certificate import Certificate
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.dataset.checks import Check, Level, checks_of
from backfill_assets.report.concerns import Concern, in_one_sentence, of_certificate, of_verdicts
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import ROOT, engine_settings
from backfill_assets_tests.spark.planted import (
    AROUND,
    CORRECTED,
    DAYS,
    FAULTS,
    FAULTY,
    Correction,
    Fault,
    correction,
    faulty_fact,
    faulty_staging,
)
from backfill_assets_tests.spark.retail import deliver, deliver_products, deliver_rates, receipts_by_day
from backfill_assets_tests.spark.workplace import Workplace

NAME = "till_receipts"
RATE = Decimal("0.07")
LEVELS = (Level.structural, Level.aggregate, Level.row, Level.certificate)
PROVEN = [day for fault, day in FAULTY.items() if fault.level is Level.certificate] + [CORRECTED[0]]


@dataclass(frozen=True)
class Judged:
    """One batch: 200 days with a correct correction and a day for each fault; some of them were also recomputed."""

    evidence: Mapping[dt.date, DayEvidence]
    checks: tuple[Check, ...]
    certificate: Certificate

    def concerns(self, day: dt.date) -> list[Concern]:
        """What keeps a day from being released."""
        found = of_verdicts({(NAME, day): self.evidence[day]}, {NAME: self.checks})
        again = (one for one in of_certificate(self.certificate, blocks=True) if one.day in {day, None})
        return [one for one in (*found, *again) if one.blocks]

    def caught(self, day: dt.date) -> Mapping[Level, list[str]]:
        """The checks that keep a day from being released, by level."""
        found = self.concerns(day)
        return {level: list(dict.fromkeys(c.check for c in found if c.level is level)) for level in LEVELS}


def _of_rows(right: Correction) -> Mapping[str, str]:
    """The promise for single rows: another tax rate moves all of them alike."""
    return right.expected if set(right.expected) == {"tax"} else {}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkServer) -> Judged:
    root, server = tmp_path_factory.mktemp("shop"), engine_settings(spark_server.folder.root.parent)
    receipts, more = (receipts_by_day(AROUND[0], AROUND[-1], *part) for part in ((20, 0), (100, 1)))
    chance = random.Random(6)  # noqa: S311 - made-up data
    corrections = {day: correction(chance, receipts[day], more[day], RATE) for day in CORRECTED}
    declared: list[object] = [
        {"days": [str(day)], "metrics": dict(expected), "rows": dict(rows)}
        for day, expected, rows in (
            *((day, one.expected, _of_rows(one)) for day, one in corrections.items()),
            *((day, fault.declared, {}) for fault, day in FAULTY.items()),
        )
        if expected
    ]
    with open_session(server, "planted faults") as spark:
        shop = Workplace(root, spark, server, NAME)
        for day in AROUND:
            deliver(shop.sources, day, receipts[day], "receipts")
        deliver_products(shop.sources)
        rates = dict.fromkeys(AROUND, str(RATE))
        deliver_rates(shop.sources, rates)
        shop.publish(AROUND)
        for day, right in corrections.items():
            if right.delivered is not None:
                deliver(shop.sources, day, right.delivered, "more")
        deliver_rates(shop.sources, rates | {day: str(one.rate) for day, one in corrections.items()})
        application = shop.model(staging=faulty_staging(), fact=faulty_fact())
        unit = shop.recompute(application, DAYS, declared)
        (certificate,) = application.prover.prove(unit.id, tuple(PROVEN))
        return Judged(shop.evidence(application, unit), checks_of(application.dataset(NAME)), certificate)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_at_the_level_that_should_catch_it(judged: Judged, fault: Fault) -> None:
    found = judged.caught(FAULTY[fault])
    assert fault.check in found[fault.level]
    assert [found[below] for below in LEVELS[: LEVELS.index(fault.level)] if found[below]] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_sentence_of_a_review_names_the_planted_fault(judged: Judged, fault: Fault) -> None:
    sentence = in_one_sentence(judged.concerns(FAULTY[fault]), 1)
    assert sentence.startswith(f"{fault.level.value} check {fault.check} of {NAME} fails on {FAULTY[fault]}"), sentence


def test_none_of_200_correct_corrections_is_refused(judged: Judged) -> None:
    assert len(CORRECTED) == 200
    assert [str(v) for day in CORRECTED for v in judged.evidence[day].verdicts if v.refuses] == []
    sides = [judged.evidence[day].measured for day in CORRECTED]
    assert sum(one.shadow.fingerprint != one.published.fingerprint for one in sides) > 100
    assert judged.concerns(CORRECTED[0]) == []


def test_the_documents_show_which_fault_is_caught_by_which_check(judged: Judged) -> None:
    lines = [f"| fault | {' | '.join(level.value for level in LEVELS)} |", f"|{'---|' * (len(LEVELS) + 1)}"]
    for fault, day in FAULTY.items():
        cells = (", ".join(f"`{name}`" for name in names) for names in judged.caught(day).values())
        lines.append(f"| {fault.name} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    print(table)  # noqa: T201 - for docs/proof.md, whenever it changes
    assert table in (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
