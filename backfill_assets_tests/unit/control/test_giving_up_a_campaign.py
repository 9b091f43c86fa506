"""What operators see of a campaign that is over, and what giving one up leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Action, CampaignState, JournalEntry, Knobs, Phase
from backfill_assets.core.errors import ApprovalError, CampaignError, ClaimedDaysError, RollbackError
from backfill_assets.core.unit import UnitState
from backfill_assets_tests.harness.between import Died, between, dies_at
from backfill_assets_tests.harness.specifications import NAME, SIX_DAYS
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

COMMANDS: dict[str, Callable[[World], object]] = {
    "pause": lambda world: world.control.pause(NAME, "night"),
    "stop": lambda world: world.control.stop(NAME, "wrong"),
    "resume": lambda world: world.control.resume(NAME),
    "set": lambda world: world.control.set(NAME, "", partitions_per_batch=3),
}


def published(world: World) -> str:
    world.control.launch(NAME)
    for _ in range(2):
        world.run()
        world.conduct()
    return world.release("ben").publish(NAME).outcome.releases["sales"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_published_campaign_refuses_what_acts_on_its_batches_and_says_who_published_it(
    planned: World, command: str
) -> None:
    published(planned)
    before = (planned.campaign(), planned.actions())
    with pytest.raises(CampaignError, match=rf"is published \(published by ben at .*backfill sign-off {NAME}"):
        COMMANDS[command](planned)
    assert (planned.campaign(), planned.actions()) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_campaign_that_was_rolled_back_says_by_whom(planned: World, command: str) -> None:
    planned.campaign_rollback("carl").execute(published(planned), "the totals are wrong")
    with pytest.raises(
        CampaignError, match=rf"is rolled back \(rolled back by carl at .*wrong\).*backfill publish {NAME}"
    ):
        COMMANDS[command](planned)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_campaign_that_was_given_up_says_by_whom_and_why(planned: World, command: str) -> None:
    planned.control.launch(NAME)
    planned.control.discard(NAME, "finance\ncancelled it")
    with pytest.raises(
        CampaignError, match=r"is discarded \(discarded by ada at .* UTC: finance cancelled it\).*another backfill_id"
    ):
        COMMANDS[command](planned)


def test_giving_up_frees_the_days_cancels_what_is_left_and_is_recorded(planned: World) -> None:
    unit = planned.control.launch(NAME).unit
    assert planned.scheduler.active(NAME)
    assert planned.control.discard(NAME, "not needed").state is UnitState.discarded
    assert planned.ledger.claims("sales", SIX_DAYS) == {}
    assert planned.scheduler.active(NAME) == ()
    entry = planned.ledger.journal(NAME)[-1]
    assert (entry.action, entry.by, entry.reason, entry.detail) == (
        Action.discarded, "ada", "not needed", {"unit": unit},
    )  # fmt: skip
    assert planned.standings.of(NAME).state is CampaignState.discarded
    with pytest.raises(CampaignError, match=r"has no open unit \(discarded by ada at .*: not needed\)"):
        planned.control.discard(NAME, "again")


def test_giving_up_can_be_repeated_after_it_died_half_way(planned: World) -> None:
    unit = planned.control.launch(NAME).unit
    planned.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    planned.control.discard(NAME, "not needed")
    assert planned.actions()[-1] is Action.discarded
    assert planned.scheduler.active(NAME) == ()


def test_a_campaign_without_an_open_unit_has_nothing_to_give_up(planned: World) -> None:
    with pytest.raises(CampaignError, match="has no open unit: there is nothing to give up"):
        planned.control.discard(NAME)
    published(planned)
    with pytest.raises(CampaignError, match="has no open unit"):
        planned.control.discard(NAME)
    assert planned.standings.of(NAME).state is CampaignState.published


def test_a_launch_that_died_can_be_given_up_and_launched_again_in_another_unit(planned: World) -> None:
    dying = between(planned.ledger, {"change_campaign"}, before=dies_at("change_campaign"))
    died = replace(planned.control, warehouse=replace(planned.control.warehouse, ledger=dying))
    with pytest.raises(Died):
        died.launch(NAME)
    first = planned.control.discard(NAME, "start afresh")
    again = planned.control.launch(NAME)
    unit = planned.ledger.unit(again.unit)
    assert unit.id != first.id
    assert (unit.state, unit.campaign) == (UnitState.open, NAME)
    assert set(planned.ledger.claims("sales", SIX_DAYS).values()) == {unit.id}


def test_a_campaign_is_announced_before_it_claims_its_days(planned: World) -> None:
    claimed: list[tuple[Notice, int]] = []

    def notify(_: Any, notice: Notice, text: str) -> None:
        claimed.append((notice, len(planned.ledger.claims("sales", SIX_DAYS))))
        assert "by ada" in text

    replace(planned.control, notify=notify).launch(NAME)
    assert claimed == [(Notice.announced, 0), (Notice.launched, len(SIX_DAYS))]


def test_a_launch_that_is_refused_for_claimed_days_is_not_announced(planned: World) -> None:
    planned.open_unit({"sales": SIX_DAYS[:1]})
    with pytest.raises(ClaimedDaysError):
        planned.control.launch(NAME)
    assert planned.notices == []


def test_a_plan_that_is_out_of_date_names_the_file_to_plan_again(
    planned: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planned.folder)
    file = planned.folder / "backfills" / "fix.yaml"
    file.parent.mkdir()
    plain = planned.specification.to_plain()
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    entry = JournalEntry(NAME, planned.clock.now(), "ada", Action.planned)
    planned.ledger.add_campaign(replace(planned.campaign(), file=str(file)), entry)
    plain["execution"]["partitions_per_batch"] = 5
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    with pytest.raises(CampaignError, match=r"plan it again: backfill plan backfills/fix\.yaml"):
        planned.control.launch(NAME)


def test_a_resume_with_a_changed_specification_says_what_has_changed(planned: World) -> None:
    file = planned.folder / "fix.yaml"
    plain = planned.specification.to_plain()
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    entry = JournalEntry(NAME, planned.clock.now(), "ada", Action.planned)
    planned.ledger.add_campaign(replace(planned.campaign(), file=str(file)), entry)
    planned.control.launch(NAME)
    planned.control.stop(NAME, "the contract is too narrow")
    plain["approval"] = {"required": True, "by": ["eve"]}
    plain["publish_window"] = ["22:00-05:00"]
    plain["validation"] = {"row_count_tolerance": 5}
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    planned.control.resume(NAME, "wider")
    entry = next(e for e in reversed(planned.ledger.journal(NAME)) if e.action is Action.resumed)
    assert entry.detail["changed"] == ["approval", "publish_window", "validation"]
    assert "with changed approval, publish_window, validation: wider" in str(entry)
    planned.control.pause(NAME, "night")
    planned.control.resume(NAME)
    entry = next(e for e in reversed(planned.ledger.journal(NAME)) if e.action is Action.resumed)
    assert "changed" not in entry.detail


def test_a_resume_takes_over_the_limits_that_were_changed_in_the_specification_and_no_others(planned: World) -> None:
    file = planned.folder / "fix.yaml"
    plain = planned.specification.to_plain()
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    entry = JournalEntry(NAME, planned.clock.now(), "ada", Action.planned)
    planned.ledger.change_campaign(replace(planned.campaign(), file=str(file)), {Phase.planned}, entry)
    planned.control.launch(NAME)
    planned.control.set(NAME, "gently", max_concurrency=3)
    planned.control.set(NAME, "too large", partitions_per_batch=6)
    plain["execution"] |= {"partitions_per_batch": 1}
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    assert "has changed since the plan" in planned.conduct()
    assert planned.control.resume(NAME, "out of memory").knobs == Knobs(3, 1)
    entry = next(e for e in planned.ledger.journal(NAME) if e.action is Action.resumed)
    assert str(entry).endswith("with changed execution (partitions_per_batch 6 → 1): out of memory")


def test_the_second_of_two_concurrent_approvals_names_the_first(campaigns: World) -> None:
    _, unit = campaigns.validated()
    named = campaigns.approval_of(unit.id).pending
    start, observed = threading.Barrier(2), list[str]()

    def approve(user: str) -> None:
        approving = campaigns.approving(user)
        start.wait()
        try:
            approving.approve(NAME, named)
        except ApprovalError as error:
            observed.append(f"{user}: {error}")

    threads = [threading.Thread(target=approve, args=(user,)) for user in ("anna", "ben")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [given.identity for given in campaigns.ledger.approvals(unit.id)]
    (refused,) = observed
    assert not refused.startswith(winner)
    assert f"all of its evidence is already approved (approved by {winner} at" in refused


def test_a_second_rollback_names_the_first(campaigns: World) -> None:
    campaigns.approved()
    release = campaigns.release().publish(NAME).outcome.releases["sales"]
    first = campaigns.campaign_rollback("carl").execute(release, "wrong totals")
    with pytest.raises(
        RollbackError, match=rf"before it \({first.release}, rolled back by carl at 2026-.* UTC: wrong totals\)"
    ):
        campaigns.campaign_rollback("dora").execute(release, "wrong totals, too")


def test_a_note_is_no_reason_why_a_campaign_is_where_it_is(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    stopped = campaigns.turned(campaign, Phase.stopped, Action.stopped, by="carl")
    campaigns.ledger.note(JournalEntry(NAME, campaigns.clock.now(), "the gate", Action.notified, "no answer"))
    reason = r"is stopped \(stopped by carl"
    with pytest.raises(ApprovalError, match=reason):
        campaigns.campaign_publisher().release(unit.id)
    with pytest.raises(CampaignError, match=reason):
        campaigns.approving().approve(NAME, "")
    campaigns.turned(stopped, Phase.closed, Action.signed_off, by="carl")
    campaigns.ledger.note(JournalEntry(NAME, campaigns.clock.now(), "the gate", Action.notified, "no answer"))
    with pytest.raises(CampaignError, match=r"is closed \(signed off by carl"):
        campaigns.sign_off().sign_off(NAME)


def test_a_journal_entry_is_one_line(campaigns: World) -> None:
    entry = JournalEntry(NAME, campaigns.clock.now(), "ada", Action.stopped, "no column\n  at line 3\n")
    assert str(entry).endswith("UTC: no column at line 3")
