"""Campaigns, their journal and approvals: the contract of `Ledger`."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from backfill_assets.campaign.state import Action, Knobs, Phase
from backfill_assets.core.errors import ApprovalError, CampaignError, UnitError
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.campaign_samples import (
    a_campaign,
    a_plan,
    a_specification,
    an_approval,
    an_entry,
)
from backfill_assets_tests.unit.ledger.samples import NOON, a_launch, a_unit, march

PLANNED = an_entry(Action.planned)
LAUNCHED = an_entry(Action.launched, "ben", "rehearsed on staging", unit="u_b_1")
PAUSED = an_entry(Action.paused, "carl", "month end")
LATER = NOON + dt.timedelta(hours=1)


@pytest.fixture
def unit(ledger: Ledger) -> str:
    return ledger.assign(a_launch(march(1, 9)), a_unit(march(1, 9))).id


def test_a_campaign_comes_back_as_it_was_stored(url: str, ledger: Ledger, clock: FixedClock) -> None:
    added = ledger.add_campaign(a_campaign(), PLANNED)
    assert added == a_campaign()
    again = open_ledger(url, clock)
    found = again.campaign("fix-1")
    again.close()
    assert found == added
    assert found.plan.fingerprint == a_campaign().plan.fingerprint
    assert found.specification.hash == a_campaign().specification.hash


def test_campaigns_come_newest_first(ledger: Ledger) -> None:
    assert ledger.campaigns() == ()
    old, new = a_campaign("fix-1"), a_campaign("fix-2", created_at=LATER)
    for campaign in (new, old):
        ledger.add_campaign(campaign, an_entry(Action.planned, campaign=campaign.id))
    assert ledger.campaigns() == (new, old)


def test_an_unknown_campaign_is_refused_with_the_newest_ones(ledger: Ledger) -> None:
    with pytest.raises(CampaignError, match=r"no campaign 'fix-1'; none exists yet; create one: backfill new"):
        ledger.campaign("fix-1")
    ledger.add_campaign(a_campaign("fix-2"), an_entry(Action.planned, campaign="fix-2"))
    asked = [
        lambda: ledger.campaign("fix-1"),
        lambda: ledger.journal("fix-1"),
        lambda: ledger.note(an_entry(Action.notified)),
        lambda: ledger.change_campaign(a_campaign(), set(Phase), LAUNCHED),
    ]
    for ask in asked:
        with pytest.raises(CampaignError, match=r"no campaign 'fix-1'; newest: fix-2"):
            ask()


def test_a_planned_campaign_may_be_planned_again_and_the_old_plan_cannot_be_launched(ledger: Ledger) -> None:
    first = ledger.add_campaign(a_campaign(), PLANNED)
    other = a_specification(owner="somebody-else")
    plan = a_plan(other, march(2, 4), code="0ther")
    again = replace(first, specification=other, plan=plan, knobs=Knobs(9, 1), created_at=LATER)
    second = ledger.add_campaign(again, an_entry(Action.planned, "dora"))
    assert second == replace(again, revision=1)
    assert ledger.campaigns() == (second,)
    with pytest.raises(CampaignError, match=r"fix-1 was changed in between \(planned by dora at 2026-11-21"):
        ledger.change_campaign(replace(first, phase=Phase.canary), {Phase.planned}, LAUNCHED)
    assert ledger.campaign("fix-1") == second
    assert [e.by for e in ledger.journal("fix-1")] == ["ada", "dora"]


def test_a_launched_campaign_is_not_planned_again(ledger: Ledger) -> None:
    planned = ledger.add_campaign(a_campaign(), PLANNED)
    launched = ledger.change_campaign(replace(planned, phase=Phase.running), {Phase.planned}, LAUNCHED)
    ledger.note(an_entry(Action.notified, "webhook"))
    with pytest.raises(
        CampaignError, match=r"and is running \(launched by ben .*: rehearsed on staging\); give .* another"
    ):
        ledger.add_campaign(a_campaign(), PLANNED)
    with pytest.raises(CampaignError, match="fix-1 is running; add it as planned first"):
        ledger.add_campaign(launched, PLANNED)
    assert ledger.campaign("fix-1") == launched


def test_a_change_is_stored_with_its_entry_and_a_new_revision(ledger: Ledger, unit: str) -> None:
    planned = ledger.add_campaign(a_campaign(), PLANNED)
    assert ledger.campaign_of(unit) is None
    launched = replace(planned, phase=Phase.canary, unit=unit, canary_only=True)
    launched = ledger.change_campaign(launched, {Phase.planned}, LAUNCHED)
    assert (launched.revision, launched.unit) == (1, unit)
    paused = replace(launched, phase=Phase.paused, canary_only=False, knobs=Knobs(1, 14))
    paused = ledger.change_campaign(paused, {Phase.canary, Phase.running}, PAUSED)
    assert ledger.campaign("fix-1") == ledger.campaign_of(unit) == paused
    assert (paused.revision, paused.knobs) == (2, Knobs(1, 14))
    assert ledger.journal("fix-1") == (PLANNED, LAUNCHED, PAUSED)
    assert ledger.campaign_of("") is None


def test_a_plan_made_again_is_stored_with_the_change(ledger: Ledger) -> None:
    stopped = ledger.add_campaign(a_campaign(), PLANNED)
    resumed = replace(stopped, phase=Phase.running, plan=a_plan(stopped.specification, code="mended"))
    changed = ledger.change_campaign(resumed, {Phase.planned}, an_entry(Action.resumed))
    assert ledger.campaign("fix-1") == changed
    assert changed.plan == resumed.plan != stopped.plan


def test_a_change_in_the_wrong_phase_says_who_brought_the_campaign_there(ledger: Ledger) -> None:
    planned = ledger.add_campaign(a_campaign(), PLANNED)
    paused = ledger.change_campaign(replace(planned, phase=Phase.paused), {Phase.planned}, PAUSED)
    # Neither a turned knob nor a note has changed its phase.
    paused = ledger.change_campaign(paused.turned(max_concurrency=1), {Phase.paused}, an_entry(Action.set, "dora"))
    ledger.note(an_entry(Action.notified, "webhook"))
    with pytest.raises(
        CampaignError, match=r"fix-1 is paused \(paused by carl at .*: month end\); .* canary or running"
    ):
        ledger.change_campaign(replace(paused, phase=Phase.stopped), {Phase.running, Phase.canary}, LAUNCHED)
    assert ledger.campaign("fix-1") == paused
    assert [e.action for e in ledger.journal("fix-1")] == [Action.planned, Action.paused, Action.set, Action.notified]


def test_the_second_of_two_changes_to_the_same_campaign_names_the_first(ledger: Ledger) -> None:
    seen = ledger.add_campaign(a_campaign(), PLANNED)
    turned = an_entry(Action.set, "dora", "the night is quiet", max_concurrency=4)
    ledger.change_campaign(seen.turned(max_concurrency=4), {Phase.planned}, turned)
    ledger.note(an_entry(Action.notified, "webhook"))
    with pytest.raises(
        CampaignError, match=r"changed in between \(set by dora at 2026-11-21 12:00:00 UTC: the night is"
    ):
        ledger.change_campaign(seen.turned(max_concurrency=1), {Phase.planned}, an_entry(Action.set, "emil"))
    assert ledger.campaign("fix-1").knobs.max_concurrency == 4
    assert ledger.journal("fix-1")[1].detail == {"max_concurrency": 4}


def test_a_change_with_an_unknown_unit_or_a_foreign_entry_leaves_nothing(ledger: Ledger) -> None:
    planned = ledger.add_campaign(a_campaign(), PLANNED)
    with pytest.raises(UnitError, match="there is no unit 'u_x'"):
        ledger.change_campaign(replace(planned, unit="u_x"), {Phase.planned}, LAUNCHED)
    foreign = an_entry(Action.planned, campaign="fix-2")
    for change in (ledger.add_campaign, lambda c, e: ledger.change_campaign(c, {Phase.planned}, e)):
        with pytest.raises(CampaignError, match="entry of campaign fix-2 cannot explain a change of fix-1"):
            change(planned, foreign)
    assert ledger.campaign("fix-1") == planned
    assert ledger.journal("fix-1") == (PLANNED,)


def test_the_journal_keeps_the_order_of_writing_and_every_detail(ledger: Ledger) -> None:
    ledger.add_campaign(a_campaign(), PLANNED)
    detail = {"before": {"max_concurrency": 2}, "days": ["2013-03-01"], "cost": 1.25, "note": "größer", "none": None}
    notes = [an_entry(Action.notified, f"by-{n}", **detail) for n in range(3)]
    for note in (replace(notes[0], at=LATER), *notes[1:]):
        ledger.note(note)
    assert ledger.journal("fix-1") == (PLANNED, replace(notes[0], at=LATER), *notes[1:])
    assert ledger.campaign("fix-1").revision == 0


def test_every_approval_is_kept_with_its_days(ledger: Ledger, unit: str) -> None:
    assert ledger.approvals(unit) == ()
    first, delta = an_approval(march(1, 9)), an_approval(march(3, 4), seen="b" * 64)
    for approval in (first, delta):
        ledger.approve(approval)
    assert ledger.approvals(unit) == (first, delta)
    assert ledger.approvals("u_other") == ()


def test_an_approval_of_no_days_or_of_foreign_ones_is_refused(ledger: Ledger, unit: str) -> None:
    with pytest.raises(
        ApprovalError, match=r"names flights 2013-03-10; approve days that it holds: flights 2013-03-01"
    ):
        ledger.approve(an_approval(march(9, 10)))
    with pytest.raises(ApprovalError, match="names no days"):
        ledger.approve(an_approval(()))
    with pytest.raises(UnitError, match="there is no unit 'u_x'"):
        ledger.approve(an_approval(march(1), unit="u_x"))
    assert ledger.approvals(unit) == ()


@pytest.mark.parametrize("table", ["campaign_journal", "approvals", "approval_days"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET evidence = 'f'"])
def test_the_database_itself_refuses_to_rewrite_history(
    url: str, ledger: Ledger, unit: str, table: str, change: str
) -> None:
    ledger.add_campaign(a_campaign(), PLANNED)
    ledger.approve(an_approval(march(1)))
    statement = change.format(table).replace("evidence", "reason" if table == "campaign_journal" else "evidence")
    engine = create_engine(url)
    with pytest.raises(DBAPIError, match=f"{table} is append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()
    assert ledger.journal("fix-1") == (PLANNED,)
    assert ledger.approvals(unit) == (an_approval(march(1)),)
