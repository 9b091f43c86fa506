"""Every kind of error is caught by the level that has to catch it, and correct corrections raise no alarm."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from decimal import Decimal

import pytest

from backfill_assets.catalog import LoadedDataset, load_dataset
from backfill_assets.domain.evidence import DayEvidence
from backfill_assets.domain.judge import checks_of
from backfill_assets.domain.measurement import ROW_COUNT
from backfill_assets.domain.verdict import Check, CheckKind
from backfill_assets.lakehouse.engine.server import SparkServer
from backfill_assets.lakehouse.engine.session import open_session
from backfill_assets_tests.engine import ROOT, engine_settings
from backfill_assets_tests.spark.planted import (
    CORRECTED,
    DAYS,
    FAULTS,
    FAULTY,
    Fault,
    correction,
    faulty_fact,
    faulty_staging,
)  # fmt: skip
from backfill_assets_tests.spark.retail import deliver, deliver_products, deliver_rates, receipts_by_day
from backfill_assets_tests.spark.workplace import DATASETS, Workplace

LEVELS = ("structural", "aggregate", "row", "certificate")
RATE = Decimal("0.07")
SHOP = load_dataset(DATASETS / "till_receipts")


def level_of(check: Check) -> str:
    if check.kind in {CheckKind.rows, CheckKind.columns}:
        return "row"
    if check.kind in {CheckKind.change, CheckKind.reconciliation, CheckKind.upstream_total, CheckKind.seams}:
        return "structural" if check.subject == ROW_COUNT else "aggregate"
    return "structural"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkServer) -> Mapping[dt.date, DayEvidence]:
    """The evidence of one batch: 200 days with a correct correction, and a day for each fault."""
    root, server = tmp_path_factory.mktemp("shop"), engine_settings(spark_server.folder.root.parent)
    receipts, more = receipts_by_day(DAYS[0], DAYS[-1], 20), receipts_by_day(DAYS[0], DAYS[-1], 100, rest=1)
    chance = random.Random(6)  # noqa: S311 - made-up data
    corrections = {day: correction(chance, receipts[day], more[day], RATE) for day in CORRECTED}
    with open_session(server, "planted faults") as spark:
        shop = Workplace(root, spark, server, "till_receipts")
        for day in DAYS:
            deliver(shop.sources, day, receipts[day], "receipts")
        deliver_products(shop.sources)
        deliver_rates(shop.sources, dict.fromkeys(DAYS, str(RATE)))
        shop.publish(DAYS)
        for day, right in corrections.items():
            if right.delivered is not None:
                deliver(shop.sources, day, right.delivered, "more")
        deliver_rates(
            shop.sources, {**dict.fromkeys(DAYS, str(RATE)), **{d: str(c.rate) for d, c in corrections.items()}}
        )
        application = shop.model(staging=faulty_staging(), fact=faulty_fact())
        declared = [{"days": [str(day)], "metrics": one.expected} for day, one in corrections.items() if one.expected]
        return shop.evidence(application, shop.recompute(application, DAYS, declared))


def caught(evidence: DayEvidence) -> Mapping[str, list[str]]:
    """By level the checks that keep the day from being released."""
    assert isinstance(SHOP, LoadedDataset)
    failed = {verdict.check for verdict in evidence.verdicts if verdict.refuses}
    found = [check for check in checks_of(SHOP.dataset) if check.name in failed]
    return {level: [check.name for check in found if level_of(check) == level] for level in LEVELS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_by_the_level_that_should_catch_it(
    judged: Mapping[dt.date, DayEvidence], fault: Fault
) -> None:
    found = caught(judged[FAULTY[fault]])
    assert fault.check in found[fault.level]
    assert not any(found[below] for below in LEVELS[: LEVELS.index(fault.level)])


def test_of_200_correct_corrections_none_is_refused(judged: Mapping[dt.date, DayEvidence]) -> None:
    assert len(CORRECTED) == 200
    assert [str(v) for day in CORRECTED for v in judged[day].verdicts if v.refuses] == []
    changed = [
        d for d in CORRECTED if judged[d].measured.shadow.fingerprint != judged[d].measured.published.fingerprint
    ]
    assert len(changed) > 100


def test_the_documents_show_which_fault_is_caught_by_which_check(judged: Mapping[dt.date, DayEvidence]) -> None:
    lines = [f"| fault | {' | '.join(LEVELS)} |", f"|{'---|' * (len(LEVELS) + 1)}"]
    for fault, day in FAULTY.items():
        cells = (", ".join(f"`{name}`" for name in names) for names in caught(judged[day]).values())
        lines.append(f"| {fault.name} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    print(table)  # noqa: T201 - for docs/proof.md, whenever it changes
    assert table in (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
