"""The status of a campaign shows what an approver has to see: verdicts, figures beside promises, budgets beside limits."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from backfill_assets.cli.campaign_status import say_standing, standing_as_json
from backfill_assets.core.certificate import Certificate, Prints, Recomputation, origin_of
from backfill_assets.core.days import day_range
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.unit import Unit
from backfill_assets.orchestration.services import services_of
from backfill_assets_tests.harness.specifications import NAME
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import BOTH, House

DAYS = day_range(day(0), day(5))
LIMITED = {"execution": {"budget": {"bytes_read_per_day": "5GB", "wall_time": "6h"}}}


def shown(house: House, capsys: pytest.CaptureFixture[str], *, as_json: bool) -> str:
    show = standing_as_json if as_json else say_standing
    with dg.DagsterInstance.ephemeral() as instance:
        show(house.application, services_of(house.application, instance).standings.of(NAME))
    return capsys.readouterr().out


def launched(house: House) -> Unit:
    _, unit = house.world.launched(dict.fromkeys(BOTH, DAYS), **LIMITED)
    return unit


def test_every_day_has_its_state_evidence_and_verdicts_for_programs(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = launched(house)
    house.world.build(unit, "sales", {d: [2] for d in DAYS[:2]})
    house.world.build(unit, "sales", {DAYS[2]: [2]}, passed=False)
    found: dict[str, Any] = json.loads(shown(house, capsys, as_json=True))
    days = {(d["dataset"], d["day"]): d for d in found["days"]}
    assert len(days) == len(BOTH) * len(DAYS)
    states = [days["sales", str(d)]["state"] for d in DAYS]
    assert states == ["good", "good", "failed", "missing", "missing", "missing"]
    evidence = house.world.ledger.evidence(unit.id)
    assert days["sales", str(DAYS[0])]["evidence"] == evidence["sales", DAYS[0]].hash
    failed = days["sales", str(DAYS[2])]
    assert failed["verdicts"][0] == {
        "check": "unique_key", "passed": False, "severity": "error", "found": "what is there",
        "expected": "no duplicate", "tolerance": "", "note": "", "refuses": True,
    }  # fmt: skip
    assert any(why.startswith("failed its checks: 2026-01-03 unique_key") for why in failed["why"])
    assert (days["totals", str(DAYS[0])]["verdicts"], days["totals", str(DAYS[0])]["evidence"]) == ([], "")
    every = len(house.application.basis.checks("sales"))
    assert [batch["checks"] for batch in found["batches"]] == [
        {"passed": 2 * every, "failed": 0}, {"passed": every - 1, "failed": 1},
    ]  # fmt: skip
    assert found["budget"] == {
        "seconds_spent": 0.0, "seconds_limit": 21600.0, "bytes_today": 0, "bytes_limit_per_day": 5_000_000_000,
    }  # fmt: skip


def test_people_see_the_first_failed_checks_and_how_far_metrics_moved(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.world.released({d: [1, 1] for d in DAYS})
    unit = launched(house)
    for name in BOTH:
        house.world.build(unit, name, {d: [2] for d in DAYS}, passed=False)
    text = shown(house, capsys, as_json=False)
    lines = [line.split("│")[1:-1] for line in text.splitlines() if "unique_key" in line]
    assert len(lines) == 10
    assert [cell.strip() for cell in lines[0]] == ["2026-01-01", "sales", "unique_key", "what is there", "no duplicate"]
    assert "… 2 more" in text
    (moved,) = [line for line in text.splitlines() if "row_count" in line and "sales" in line]
    assert [cell.strip() for cell in moved.split("│")[1:-1]] == ["sales", "row_count", "-50%", "6", "no duplicate"]


def test_a_campaign_that_is_over_still_shows_what_was_found(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    unit = launched(house)
    for name in BOTH:
        house.world.build(unit, name, {d: [2] for d in DAYS})
    house.world.approve(house.world.ledger.campaign(NAME))
    house.world.release().publish(NAME)
    found = json.loads(shown(house, capsys, as_json=True))
    assert found["state"] == "published"
    assert {d["state"] for d in found["days"]} == {"good"}
    assert all(d["evidence"] and d["verdicts"] for d in found["days"])


def test_a_campaign_that_was_only_planned_has_all_days_to_do(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.world.planned(dict.fromkeys(BOTH, DAYS))
    found = json.loads(shown(house, capsys, as_json=True))
    assert {d["state"] for d in found["days"]} == {"missing"}
    assert found["budget"]["seconds_limit"] is None


def test_a_certificate_that_is_required_is_the_next_step_and_is_shown_once_it_is_there(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    _, unit = house.world.launched(dict.fromkeys(BOTH, DAYS[:1]), validation={"certificate": "required"})
    for name in BOTH:
        house.world.build(unit, name, {DAYS[0]: [2]})
    text = shown(house, capsys, as_json=False)
    assert f"next: backfill prove {NAME}" in text
    assert "attention: its specification requires a certificate" in text
    evidence = house.world.ledger.evidence(unit.id)
    for name in BOTH:
        house.world.ledger.add_certificate(certificate(evidence[name, DAYS[0]], house.world.clock.now()))
    text = shown(house, capsys, as_json=False)
    assert "next: backfill approve" in text
    assert "certificate p_sales of sales 2026-01-01 passed" in text
    found: dict[str, Any] = json.loads(shown(house, capsys, as_json=True))
    assert (set(found["certificates"]), found["uncertified"]) == (set(BOTH), "")


def test_after_a_certificate_that_did_not_pass_the_next_step_is_to_change_the_model(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    _, unit = house.world.launched(dict.fromkeys(BOTH, DAYS[:1]), validation={"certificate": "required"})
    for name in BOTH:
        house.world.build(unit, name, {DAYS[0]: [2]})
    proven = house.world.ledger.evidence(unit.id)["sales", DAYS[0]]
    failed = replace(certificate(proven, house.world.clock.now()), touched=("staging 2026-01-01",))
    house.world.ledger.add_certificate(failed)
    text = shown(house, capsys, as_json=False)
    assert f"then: backfill resume {NAME}" in text
    assert f"next: backfill prove {NAME}" not in text


def certificate(proven: DayEvidence, at: dt.datetime) -> Certificate:
    """A certificate for this evidence that has passed."""
    way = Recomputation("as configured", {})
    prints = Prints(1, 1, {}, {}, proven.measured.shadow.fingerprint)
    origin = origin_of(proven.basis.inputs, proven.basis.upstream)
    return Certificate(
        f"p_{proven.dataset}", proven.dataset, proven.unit, (proven.day,), proven.basis.code, {proven.day: origin},
        (way,), {way.name: {proven.day: prints}}, (), (), at, "ada",
    )  # fmt: skip
