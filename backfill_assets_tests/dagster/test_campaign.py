"""A campaign by command on a real installation: plan, canaries, a failure, resume, approval, publish, rollback, sign-off."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.campaign.state import Action
from backfill_assets.core.days import day_range
from backfill_assets.orchestration.backfills import DagsterBackfills
from backfill_assets_tests.dagster.campaigns import ID, ROLLBACK, backfill, reaches, status, waits, write
from backfill_assets_tests.dagster.lab import Lab, amounts
from backfill_assets_tests.harness.waiting import wait_for
from benchmarks.specifications import document

DATASET = "tickets_campaign"
FIRST = dt.date(2024, 7, 1)
DAYS = day_range(FIRST, FIRST + dt.timedelta(days=3))
CANARY_ONLY = {DAYS[0], DAYS[-1]}


def fee_campaign(days: tuple[dt.date, ...] = DAYS, backfill_id: str = ID, **more: object) -> dict[str, object]:
    own: dict[str, object] = {
        "reason": {"issue": "TIX-7", "change": "Count the fee of one with each ticket"},
        "execution": {"partitions_per_batch": 2, "max_concurrency": 2, "canary": {"partitions": 2}},
        "validation": {"expected_change": {"amount": "+1% to +20%"}},
        "approval": {"required": True, "by": ["controller"]},
        "rollback": ROLLBACK,
    }
    return document(backfill_id, DATASET, days, **own | more)


def shadows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The batches that built and checked shadows to their end."""
    return [b for b in found["batches"] if b["layer"] == "shadow" and b["state"] == "done"]


@pytest.fixture(scope="module")
def published(lab: Lab) -> Lab:
    """The days as they were published before: ten a ticket."""
    for day in DAYS:
        lab.deliver(DATASET, day, [(1, 10), (2, 10)])
    lab.publish(DATASET, DAYS)
    return lab


def test_a_campaign_from_plan_to_sign_off(published: Lab) -> None:
    lab = published
    file = write(lab, fee_campaign())
    text = backfill(lab, "plan", file, "--explain")
    assert "canaries" in text
    assert f"backfill launch {ID}" in text

    # The contract detects the error of the model: the canaries fail and stop the campaign by themselves.
    lab.edit_model(
        DATASET,
        "fact.sql",
        "SELECT day, ticket, amount",
        "SELECT day, ticket, CAST(amount * 5 AS BIGINT) AS amount",
    )
    backfill(lab, "launch", ID, refused=True)
    backfill(lab, "plan", file)
    backfill(lab, "launch", ID)
    stopped = reaches(lab, "stopped")
    assert {d["day"] for d in stopped["days"] if d["state"] == "failed"} <= {str(d) for d in CANARY_ONLY}
    assert {d["state"] for d in stopped["days"] if d["day"] not in {str(c) for c in CANARY_ONLY}} == {"missing"}
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 20)

    # The fix; resume freezes a new plan, runs the canaries again and then the rest, each day once.
    lab.edit_model(DATASET, "fact.sql", "amount * 5", "amount + 1")
    assert "failed" in backfill(lab, "resume", ID, "--explain")
    backfill(lab, "resume", ID, "--reason", "the fee is one, not fivefold")
    validated = reaches(lab, "validated")
    built = [day for batch in shadows(validated) for day in batch["days"]]
    assert sorted(built[-len(DAYS) :]) == [str(day) for day in DAYS]
    # Only the two canaries, then the rest.
    assert {len(batch["days"]) for batch in validated["batches"]} == {1, 2}
    assert validated["estimate"]["planned"]["batches"] > validated["estimate"]["left"]["batches"] == 0
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 20)
    assert lab.materialized("shadow", DATASET) >= {str(day) for day in DAYS}

    # No way leads past the approval, and an approval covers exactly the evidence that was seen.
    unit = str(validated["unit"])
    assert "approve" in backfill(lab, "publish", unit, refused=True)
    assert "approve" in backfill(lab, "publish", ID, refused=True)
    backfill(lab, "approve", ID, "--evidence", "0" * 64, refused=True)
    backfill(lab, "approve", ID, "--evidence", str(validated["evidence"]), "--by", "controller")
    assert status(lab)["state"] == "approved"
    assert "files in" in backfill(lab, "publish", ID, "--dry-run")
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 20)
    backfill(lab, "publish", ID)
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 22)
    assert lab.materialized("published", DATASET) >= {str(day) for day in DAYS}

    (release, *_) = json.loads(backfill(lab, "releases", DATASET, "--json"))
    backfill(lab, "rollback", release["release"], "--reason", "finance wants to wait")
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 20)
    undone = status(lab)
    assert (undone["state"], undone["next"].split(",")[0]) == (
        "rolled_back", f"backfill approve {ID} --evidence {undone['evidence']}"
    )  # fmt: skip
    # The approved release was rolled back: it has to be approved again.
    backfill(lab, "publish", ID, refused=True)
    backfill(lab, "approve", ID, "--evidence", str(undone["evidence"]))
    backfill(lab, "publish", ID)
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 22)

    changes = json.loads(backfill(lab, "history", DATASET, "--day", str(DAYS[0]), "--json"))
    assert [change["kind"] for change in changes["changes"]] == ["publish", "rollback", "publish", "publish"]
    backfill(lab, "sign-off", ID, "--reason", "totals agree")
    assert "can be rolled back until" in backfill(lab, "cleanup", ID, refused=True)
    assert status(lab)["state"] == "closed"
    lab.edit_model(DATASET, "fact.sql", "CAST(amount + 1 AS BIGINT) AS amount", "amount")
    backfill(lab, "hold", "lift", DATASET, f"{DAYS[0]}..{DAYS[-1]}")


def test_a_paused_campaign_holds_no_run_and_continues_where_it_was(lab: Lab) -> None:
    days = day_range(dt.date(2024, 8, 1), dt.date(2024, 8, 12))
    for day in days:
        lab.deliver(DATASET, day, [(1, 10)])
    name = "first-build-2024"
    content = fee_campaign(days, backfill_id=name, approval={"required": False}, validation={}) | {
        "execution": {"partitions_per_batch": 1, "max_concurrency": 1}
    }
    backfill(lab, "plan", write(lab, content))
    backfill(lab, "launch", name)
    waits(lab, name, lambda found: found.good >= 1, "the first batch to pass")
    backfill(lab, "pause", name, "--reason", "month end")
    with lab.instance as instance:
        backfills = DagsterBackfills(instance)
        wait_for(lambda: not backfills.active(name), "the campaign's backfill to leave the queue", 120)
    paused = status(lab, name)
    assert paused["state"] == "paused"
    assert 1 <= paused["good"] < len(days)
    kept = {day: batch["number"] for batch in shadows(paused) for day in batch["days"]}

    backfill(lab, "set", name, "partitions_per_batch=3", "--reason", "the night is quiet")
    backfill(lab, "resume", name)
    validated = reaches(lab, "validated", campaign=name)
    later = [batch for batch in shadows(validated) if batch["number"] > max(kept.values())]
    assert not {day for batch in later for day in batch["days"]} & set(kept)
    assert max(len(batch["days"]) for batch in later) == 3
    actions = [entry["action"] for entry in validated["journal"]]
    assert actions.count(Action.paused.value) == actions.count(Action.resumed.value) == actions.count("set") == 1
    backfill(lab, "publish", name)
    assert amounts(lab, DATASET, days) == dict.fromkeys(days, 10)


def test_a_specification_with_problems_is_refused_with_every_line(lab: Lab) -> None:
    content = fee_campaign(backfill_id="wrong-one") | {"target": {"dataset": DATASET, "partition_key": "date"}}
    file = write(lab, content | {"rollback": {"keep_for": "900d"}})
    text = backfill(lab, "plan", file, refused=True)
    assert text.count("wrong-one.yaml:") == 2
    assert Path(lab.root, file).exists()
