"""What operators are told of a campaign that is over, and what giving one up leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from backfill_assets.domain.campaign import Action, CampaignState, JournalEntry, Knobs, Phase
from backfill_assets.domain.errors import ApprovalError, CampaignError, ClaimedDaysError, RollbackError
from backfill_assets.domain.specification import Notice
from backfill_assets.domain.units import UnitState
from backfill_assets_tests.unit.campaigns.campaign_world import NAME, CampaignWorld
from backfill_assets_tests.unit.campaigns.site import DAYS, ID, Site
from backfill_assets_tests.unit.campaigns.test_campaign_control import DiesBeforeTheCampaignChanges

pytestmark = pytest.mark.slow

COMMANDS: dict[str, Callable[[Site], object]] = {
    "pause": lambda site: site.control.pause(ID, "night"),
    "stop": lambda site: site.control.stop(ID, "wrong"),
    "resume": lambda site: site.control.resume(ID),
    "set": lambda site: site.control.set(ID, "", partitions_per_batch=3),
}


def published(site: Site) -> str:
    site.control.launch(ID)
    for _ in range(2):
        site.run()
        site.conduct()
    return site.world.release("ben").publish(ID).outcome.releases["sales"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_published_campaign_refuses_what_acts_on_its_batches_and_says_who_published_it(
    site: Site, command: str
) -> None:
    published(site)
    before = (site.campaign(), site.actions())
    with pytest.raises(CampaignError, match=rf"is published \(published by ben at .*backfill sign-off {ID}"):
        COMMANDS[command](site)
    assert (site.campaign(), site.actions()) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_campaign_that_was_rolled_back_says_by_whom(site: Site, command: str) -> None:
    site.world.undoer("carl").execute(published(site), "the totals are wrong")
    with pytest.raises(
        CampaignError, match=rf"is rolled back \(rolled back by carl at .*wrong\).*backfill publish {ID}"
    ):
        COMMANDS[command](site)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_campaign_that_was_given_up_says_by_whom_and_why(site: Site, command: str) -> None:
    site.control.launch(ID)
    site.control.discard(ID, "finance\ncancelled it")
    with pytest.raises(
        CampaignError, match=r"is discarded \(discarded by ada at .* UTC: finance cancelled it\).*another backfill_id"
    ):
        COMMANDS[command](site)


def test_giving_up_frees_the_days_cancels_what_is_left_and_is_recorded(site: Site) -> None:
    unit = site.control.launch(ID).unit
    assert site.scheduler.active(ID)
    assert site.control.discard(ID, "not needed").state is UnitState.discarded
    assert site.ledger.claims("sales", DAYS) == {}
    assert site.scheduler.active(ID) == ()
    entry = site.ledger.journal(ID)[-1]
    assert (entry.action, entry.by, entry.reason, entry.detail) == (
        Action.discarded, "ada", "not needed", {"unit": unit},
    )  # fmt: skip
    assert site.standings.of(ID).state is CampaignState.discarded
    with pytest.raises(CampaignError, match=r"has no open unit \(discarded by ada at .*: not needed\)"):
        site.control.discard(ID, "again")


def test_giving_up_can_be_repeated_after_it_died_half_way(site: Site) -> None:
    unit = site.control.launch(ID).unit
    site.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    site.control.discard(ID, "not needed")
    assert site.actions()[-1] is Action.discarded
    assert site.scheduler.active(ID) == ()


def test_a_campaign_without_an_open_unit_has_nothing_to_give_up(site: Site) -> None:
    with pytest.raises(CampaignError, match="has no open unit: there is nothing to give up"):
        site.control.discard(ID)
    published(site)
    with pytest.raises(CampaignError, match="has no open unit"):
        site.control.discard(ID)
    assert site.standings.of(ID).state is CampaignState.published


def test_a_launch_that_died_can_be_given_up_and_launched_again_in_another_unit(site: Site) -> None:
    died = replace(site.control, ledger=DiesBeforeTheCampaignChanges(site.ledger))
    with pytest.raises(KeyboardInterrupt):
        died.launch(ID)
    first = site.control.discard(ID, "start afresh")
    again = site.control.launch(ID)
    unit = site.ledger.unit(again.unit)
    assert unit.id != first.id
    assert (unit.state, unit.campaign) == (UnitState.open, ID)
    assert set(site.ledger.claims("sales", DAYS).values()) == {unit.id}


def test_a_campaign_is_announced_before_it_claims_its_days(site: Site) -> None:
    claimed: list[tuple[Notice, int]] = []

    def tell(_: Any, notice: Notice, text: str) -> None:
        claimed.append((notice, len(site.ledger.claims("sales", DAYS))))
        assert "by ada" in text

    replace(site.control, tell=tell).launch(ID)
    assert claimed == [(Notice.announced, 0), (Notice.launched, len(DAYS))]


def test_a_launch_that_is_refused_for_claimed_days_is_not_announced(site: Site) -> None:
    site.world.open_unit({"sales": DAYS[:1]})
    with pytest.raises(ClaimedDaysError):
        site.control.launch(ID)
    assert site.told == []


def test_a_plan_that_is_out_of_date_names_the_file_to_plan_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.folder)
    file = site.folder / "backfills" / "fix.yaml"
    file.parent.mkdir()
    plain = site.specification.to_plain()
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    entry = JournalEntry(ID, site.world.clock.now(), "ada", Action.planned)
    site.ledger.add_campaign(replace(site.campaign(), file=str(file)), entry)
    plain["execution"]["partitions_per_batch"] = 5
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    with pytest.raises(CampaignError, match=r"plan it again: backfill plan backfills/fix\.yaml"):
        site.control.launch(ID)


def test_a_resume_with_a_changed_specification_says_what_is_another(site: Site) -> None:
    file = site.folder / "fix.yaml"
    plain = site.specification.to_plain()
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    entry = JournalEntry(ID, site.world.clock.now(), "ada", Action.planned)
    site.ledger.add_campaign(replace(site.campaign(), file=str(file)), entry)
    site.control.launch(ID)
    site.control.stop(ID, "the contract is too narrow")
    plain["approval"] = {"required": True, "by": ["eve"]}
    plain["publish_window"] = ["22:00-05:00"]
    plain["validation"] = {"row_count_tolerance": 5}
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    site.control.resume(ID, "wider")
    entry = next(e for e in reversed(site.ledger.journal(ID)) if e.action is Action.resumed)
    assert entry.detail["changed"] == ["approval", "publish_window", "validation"]
    assert "with other approval, publish_window, validation: wider" in str(entry)
    site.control.pause(ID, "night")
    site.control.resume(ID)
    entry = next(e for e in reversed(site.ledger.journal(ID)) if e.action is Action.resumed)
    assert "changed" not in entry.detail


def test_a_resume_takes_over_the_limits_that_were_changed_in_the_specification_and_no_others(site: Site) -> None:
    file = site.folder / "fix.yaml"
    plain = site.specification.to_plain()
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    entry = JournalEntry(ID, site.world.clock.now(), "ada", Action.planned)
    site.ledger.change_campaign(replace(site.campaign(), file=str(file)), {Phase.planned}, entry)
    site.control.launch(ID)
    site.control.set(ID, "gently", max_concurrency=3)
    site.control.set(ID, "too large", partitions_per_batch=6)
    plain["execution"] |= {"partitions_per_batch": 1}
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    assert "no longer what the plan was made from" in site.conduct()
    assert site.control.resume(ID, "out of memory").knobs == Knobs(3, 1)
    entry = next(e for e in site.ledger.journal(ID) if e.action is Action.resumed)
    assert str(entry).endswith("with other execution (partitions_per_batch 6 → 1): out of memory")


def test_of_two_who_approve_at_once_the_second_is_told_of_the_first(campaigns: CampaignWorld) -> None:
    _, unit = campaigns.validated()
    named = campaigns.approval_of(unit.id).pending
    start, told = threading.Barrier(2), list[str]()

    def approve(user: str) -> None:
        approving = campaigns.approving(user)
        start.wait()
        try:
            approving.approve(NAME, named)
        except ApprovalError as error:
            told.append(f"{user}: {error}")

    threads = [threading.Thread(target=approve, args=(user,)) for user in ("anna", "ben")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [given.identity for given in campaigns.ledger.approvals(unit.id)]
    (refused,) = told
    assert not refused.startswith(winner)
    assert f"all of its evidence is approved already (approved by {winner} at" in refused


def test_whoever_rolls_back_second_is_told_who_was_first(campaigns: CampaignWorld) -> None:
    campaigns.approved()
    release = campaigns.release().publish(NAME).outcome.releases["sales"]
    first = campaigns.undoer("carl").execute(release, "wrong totals")
    with pytest.raises(
        RollbackError, match=rf"before it already \({first.release}, rolled back by carl at 2026-.* UTC: wrong totals\)"
    ):
        campaigns.undoer("dora").execute(release, "wrong totals, too")


def test_a_note_is_no_reason_why_a_campaign_is_where_it_is(campaigns: CampaignWorld) -> None:
    campaign, unit = campaigns.approved()
    stopped = campaigns.turned(campaign, Phase.stopped, Action.stopped, by="carl")
    campaigns.ledger.note(JournalEntry(NAME, campaigns.clock.now(), "the gate", Action.notified, "no answer"))
    reason = r"is stopped \(stopped by carl"
    with pytest.raises(ApprovalError, match=reason):
        campaigns.guarded().release(unit.id)
    with pytest.raises(CampaignError, match=reason):
        campaigns.approving().approve(NAME, "")
    campaigns.turned(stopped, Phase.closed, Action.signed_off, by="carl")
    campaigns.ledger.note(JournalEntry(NAME, campaigns.clock.now(), "the gate", Action.notified, "no answer"))
    with pytest.raises(CampaignError, match=r"is closed \(signed off by carl"):
        campaigns.sign_off().sign_off(NAME)


def test_a_journal_entry_is_one_line(campaigns: CampaignWorld) -> None:
    entry = JournalEntry(NAME, campaigns.clock.now(), "ada", Action.stopped, "no column\n  at line 3\n")
    assert str(entry).endswith("UTC: no column at line 3")
