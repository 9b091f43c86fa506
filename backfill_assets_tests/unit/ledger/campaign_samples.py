"""Campaigns, journal entries and approvals that the tests of the ledger share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from backfill_assets.campaign.plan import Estimate, Plan, PlannedDataset, Step, StepKind
from backfill_assets.campaign.specification import Specification
from backfill_assets.campaign.state import Action, Approval, Campaign, JournalEntry, Knobs
from backfill_assets.core.layers import Layer
from backfill_assets_tests.harness.specifications import specification
from backfill_assets_tests.unit.ledger.samples import NOON, march


def a_specification(backfill_id: str = "fix-1", **more: object) -> Specification:
    values: dict[str, object] = {
        "backfill_id": backfill_id,
        "owner": "flight-data",
        "source_range": {"start": "2013-03-01", "end": "2013-03-09"},
        "target": {"dataset": "flights", "partition_key": "day"},
        "reason": {"issue": "FLY-7", "change": "Verspätungen nur einmal zählen"},
        "scope": {"from": "staging", "downstream": "none"},
        "time_zone": "Europe/Berlin",
        "execution": {
            "canary": {"partitions": 1},
            "blackout_windows": ["07:00-09:30"],
            "query_timeout": "30m",
            "budget": {"bytes_read_per_day": "500GB", "wall_time": "6h"},
            "min_progress": "1 batch per hour",
        },
        "validation": {"row_count_tolerance": 0, "expected_change": {"delay": "-1.5% to -0.8%"}},
        "approval": {"required": True, "by": ["finance-controller"]},
        "publish_window": ["22:00-05:00"],
        "notify": {"webhook": "env:BACKFILL_WEBHOOK", "on": ["launched", "stopped"]},
    }
    return specification(**values | more)


def a_plan(specification: Specification, days: tuple[dt.date, ...] = march(1, 9), code: str = "c0de") -> Plan:
    steps = (Step(1, StepKind.canary, "recompute the canaries", days[:1]), Step(2, StepKind.rest, "the rest", days[1:]))
    return Plan(
        campaign=specification.backfill_id,
        specification=specification.hash,
        created_at=NOON,
        datasets=(
            PlannedDataset(
                "flights", (Layer.staging, Layer.shadow), days, code, dict.fromkeys(days, "d1"), 1000, 2**40
            ),
        ),
        canaries=days[:1],
        steps=steps,
        estimate=Estimate(1000, 2**40, 2, 12.5, "0.02 EUR"),
        warnings=("2013-03-04: no source",),
    )


def a_campaign(backfill_id: str = "fix-1", **more: object) -> Campaign:
    specification = a_specification(backfill_id)
    values: dict[str, object] = {
        "specification": specification,
        "plan": a_plan(specification),
        "knobs": Knobs(2, 7),
        "created_at": NOON,
        "file": f"backfills/{backfill_id}.yaml",
    }
    return Campaign(**{**values, **more})  # type: ignore[arg-type]


def an_entry(
    action: Action, by: str = "ada", reason: str = "", campaign: str = "fix-1", **detail: object
) -> JournalEntry:
    return JournalEntry(campaign, NOON, by, action, reason, detail)


def an_approval(days: Iterable[dt.date], seen: str = "a" * 64, unit: str = "u_b_1") -> Approval:
    return Approval(unit, "e" * 64, "finance-controller", "ben", NOON, {("flights", day): seen for day in days})
