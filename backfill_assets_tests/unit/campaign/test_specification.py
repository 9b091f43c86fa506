"""The specification as a value: defaults, round trip, hash, and the contract it makes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backfill_assets.campaign.execution import parse_pace, parse_window
from backfill_assets.campaign.specification import Notice, Specification
from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.expected_change import ANY, UNCHANGED, Change
from backfill_assets.core.layers import Layer
from backfill_assets_tests.harness.specifications import PLAIN, specification

SMALL = PLAIN | {
    "source_range": {"start": "1995-01-01", "end": "1996-06-30"},
    "target": {"dataset": "daily_sales", "partition_key": "order_date"},
    "reason": {"change": "Correct the tax"},
}
WHOLE: dict[str, Any] = SMALL | {
    "reason": {"issue": "FIN-2841", "change": "Correct tax-inclusive revenue calculation"},
    "scope": {"from": "staging", "downstream": ["daily_margins"]},
    "time_zone": "Europe/Berlin",
    "execution": {
        "partitions_per_batch": 14,
        "max_concurrency": 2,
        "pause_during_live_pipeline": True,
        "blackout_windows": ["07:00-09:30", "22:00-01:00"],
        "canary": {"partitions": 3},
        "query_timeout": "30m",
        "budget": {"bytes_read_per_day": "500GB", "wall_time": "6h"},
        "min_progress": "2 batches per 30m",
        "on_failure": "stop",
        "spark": {"spark.sql.shuffle.partitions": "8"},
        "compute": "backfill",
    },
    "validation": {
        "row_count_tolerance": 0,
        "expected_change": {
            "net_revenue": "-1.5% to -0.8%",
            "quantity": "unchanged",
            "daily_margins": {"margin": "any", "row_count": "-2%"},
        },
    },
    "approval": {"required": True, "by": ["finance-controller", "anna"], "not_owner": True},
    "publish_window": ["22:00-05:00"],
    "rollback": {"keep_for": "14d"},
    "notify": {"webhook": "env:BACKFILL_WEBHOOK", "on": ["launched", "published"]},
}


def small(**changes: object) -> Specification:
    return specification(**SMALL | changes)


def refusal(**changes: object) -> str:
    with pytest.raises(ValidationError) as refused:
        small(**changes)
    return str(refused.value)


def test_defaults_are_careful() -> None:
    found = small()
    assert (found.scope.from_, found.scope.downstream, found.time_zone) == (Layer.raw, "all", "UTC")
    execution = found.execution
    assert (execution.partitions_per_batch, execution.max_concurrency) == (7, 1)
    assert execution.pause_during_live_pipeline
    assert (execution.canary, execution.min_progress, execution.query_timeout, execution.compute) == (
        None,
        None,
        None,
        "",
    )
    assert (execution.budget.bytes_read_per_day, execution.budget.wall_time) == (None, None)
    assert (found.publish_window, found.notify) == ((), None)
    assert found.rollback.keep_for == dt.timedelta(days=30)
    assert not found.contract(["daily_sales"])


def test_a_complete_specification_is_read() -> None:
    whole = Specification.model_validate(WHOLE)
    assert (whole.source_range.count, len(whole.source_range.days)) == (547, 547)
    assert whole.execution.blackout_windows == (parse_window("07:00-09:30"), parse_window("22:00-01:00"))
    assert whole.execution.budget.bytes_read_per_day == 500 * 10**9
    assert whole.execution.min_progress == parse_pace("2 batches per 30m")
    assert whole.zone.key == "Europe/Berlin"
    assert whole.notify is not None
    assert whole.notify.variable == "BACKFILL_WEBHOOK"
    assert whole.notify.on == (Notice.launched, Notice.published)


@pytest.mark.parametrize("plain", [SMALL, WHOLE], ids=["small", "whole"])
def test_a_specification_survives_the_ledger(plain: dict[str, Any]) -> None:
    before = Specification.model_validate(plain)
    stored = json.dumps(before.to_plain())
    after = Specification.from_json(stored)
    assert after == before
    assert after.hash == before.hash


@pytest.mark.parametrize(
    "change",
    [
        {"source_range": {"start": "1995-01-01", "end": "1996-06-29"}},
        {"scope": {"from": "shadow"}},
        {"execution": {"max_concurrency": 2}},
        {"validation": {"expected_change": {"tax": "any"}}},
        {"approval": {"required": False}},
        {"publish_window": ["22:00-05:00"]},
    ],
)
def test_the_hash_depends_on_what_a_specification_says(change: dict[str, Any]) -> None:
    assert small(**change).hash != small().hash


def test_the_hash_does_not_depend_on_how_it_is_written() -> None:
    written = small(
        execution={"query_timeout": "60m", "budget": {"bytes_read_per_day": "1TB"}, "min_progress": "1 batch per hour"},
        validation={"row_count_tolerance": "0%", "expected_change": {"tax": "-1%", "cost": "+0.50%"}},
    )
    again = small(
        execution={
            "min_progress": "1 batch per 60m",
            "budget": {"bytes_read_per_day": "1000GB"},
            "query_timeout": "1h",
        },
        validation={"expected_change": {"cost": "0.5%", "tax": "-1.0 %"}, "row_count_tolerance": 0},
    )
    assert written.hash == again.hash


def test_the_contract_has_a_clause_for_each_dataset_with_an_expected_change() -> None:
    contract = Specification.model_validate(WHOLE).contract(["daily_sales", "daily_margins", "daily_capacity"])
    clauses = {clause.dataset: clause for clause in contract.clauses}
    assert clauses.keys() == {"daily_sales", "daily_margins"}
    assert clauses["daily_sales"].metrics == {
        "row_count": UNCHANGED,
        "net_revenue": Change(Decimal("-0.015"), Decimal("-0.008")),
        "quantity": UNCHANGED,
    }
    assert clauses["daily_margins"].metrics == {"margin": ANY, "row_count": Change(Decimal("-0.02"), Decimal("-0.02"))}
    assert {clause.days for clause in contract.clauses} == {()}


def test_rows_are_promised_of_the_target_and_of_downstream_datasets() -> None:
    rows = {"tax": "-8% to 0%", "daily_margins": {"margin": "any"}}
    found = small(validation={"expected_row_change": rows})
    contract = found.contract(["daily_sales", "daily_margins", "daily_capacity"])
    by_dataset = {clause.dataset: clause.rows for clause in contract.clauses}
    assert by_dataset == {
        "daily_sales": {"tax": Change(Decimal("-0.08"), Decimal(0))},
        "daily_margins": {"margin": ANY},
    }
    assert Specification.from_json(canonical_json(found.to_plain())).contract(["daily_sales"]) == found.contract(
        ["daily_sales"]
    )
    assert found.hash != small().hash


def test_a_specification_without_rows_keeps_the_hash_that_it_had() -> None:
    assert "expected_row_change" not in small().to_plain()["validation"]


def test_the_contract_leaves_out_datasets_that_are_not_asked_for() -> None:
    contract = Specification.model_validate(WHOLE).contract(["daily_margins"])
    assert [clause.dataset for clause in contract.clauses] == ["daily_margins"]


@pytest.mark.parametrize(("written", "edge"), [(0, "0"), (2, "0.02"), ("2%", "0.02"), (0.5, "0.005"), ("0%", "0")])
def test_the_tolerance_of_the_row_count_is_in_percent(written: object, edge: str) -> None:
    contract = small(validation={"row_count_tolerance": written}).contract(["daily_sales"])
    assert contract.clauses[0].metrics == {"row_count": Change(-Decimal(edge), Decimal(edge))}


@given(st.decimals(0, 500, places=3, allow_nan=False), st.decimals(-90, 90, places=4), st.decimals(0, 9, places=2))
def test_expectations_survive_the_ledger(tolerance: Decimal, low: Decimal, width: Decimal) -> None:
    before = small(
        validation={
            "row_count_tolerance": f"{tolerance:f}%",
            "expected_change": {"tax": f"{low:f}% to {low + width:f}%"},
        }
    )
    assert Specification.from_json(canonical_json(before.to_plain())).contract(["daily_sales"]) == before.contract(
        ["daily_sales"]
    )


@pytest.mark.parametrize(
    ("text", "batches", "per", "shown"),
    [
        ("1 batch per hour", 1, dt.timedelta(hours=1), "1 batch per 1h"),
        ("2 batches per 30m", 2, dt.timedelta(minutes=30), "2 batches per 30m"),
        ("12 batches per day", 12, dt.timedelta(days=1), "12 batches per 1d"),
    ],
)
def test_a_pace_is_read_and_shown(text: str, batches: int, per: dt.timedelta, shown: str) -> None:
    pace = parse_pace(text)
    assert (pace.batches, pace.per, str(pace)) == (batches, per, shown)
    assert parse_pace(shown) == pace


@pytest.mark.parametrize(
    "text", ["hourly", "0 batches per hour", "1 batch per 0s", "1 batch", "1 batch per year", 1, None]
)
def test_what_is_no_pace_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="such as 1 batch per hour"):
        parse_pace(text)


def test_the_url_of_a_webhook_is_never_shown_in_the_refusal() -> None:
    secret = "https://hooks.example.org/services/T0/B0/secret"  # text that must never be printed
    with pytest.raises(ValidationError) as refused:
        small(notify={"webhook": secret})
    observed = [problem["msg"] for problem in refused.value.errors()]
    assert observed == [
        "Value error, notify.webhook: write env: and the variable that holds the URL, such as env:BACKFILL_WEBHOOK"
    ]


def test_a_specification_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        small().owner = "somebody"  # type: ignore[misc]


def test_an_unknown_key_is_refused_everywhere() -> None:
    for part in ("execution", "scope", "validation", "rollback"):
        assert "Extra inputs are not permitted" in refusal(**{part: {"no_such_key": 1}})
