"""An approval is one person's consent to exactly the evidence that they have seen."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from backfill_assets.campaign.state import CHANGED, Action, JournalEntry, Phase
from backfill_assets.control.approve import Approving
from backfill_assets.core.errors import ApprovalError, CampaignError, EvidenceError, RollbackError
from backfill_assets.core.evidence import unit_hash
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.world import World

TARGETS = tuple(("sales", d) for d in DAYS)


def test_all_days_wait_for_approval_at_first(campaigns: World) -> None:
    _, unit = campaigns.validated()
    waiting = campaigns.approval_of(unit.id)
    assert waiting.unapproved == TARGETS
    assert waiting.pending == unit_hash(campaigns.ledger.evidence(unit.id).values())
    assert waiting.pending == campaigns.campaign_publisher().evidence_hash(unit.id)


def test_an_approval_is_stored_with_its_evidence_and_is_in_the_journal(campaigns: World) -> None:
    campaign, unit = campaigns.validated()
    approving = campaigns.approving("ben")
    waiting = campaigns.approval_of(unit.id)
    given = approving.approve(NAME, waiting.pending, reason="looks right")
    assert campaigns.ledger.approvals(unit.id) == (given,)
    assert (given.by, given.identity, given.evidence) == ("finance-controller", "ben", waiting.pending)
    assert given.days == {day: e.hash for day, e in campaigns.ledger.evidence(unit.id).items()}
    entry = campaigns.ledger.journal(campaign.id)[-1]
    assert (entry.action, entry.by, entry.reason) == (Action.approved, "ben", "looks right")
    assert entry.detail["evidence"] == waiting.pending
    assert campaigns.approval_of(unit.id).unapproved == ()


def test_only_days_that_were_built_again_have_to_be_approved_again(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    campaigns.build(unit, "sales", {DAYS[1]: [3]})
    waiting = campaigns.approval_of(unit.id)
    assert waiting.unapproved == (TARGETS[1],)
    assert waiting.pending == unit_hash([campaigns.ledger.evidence(unit.id)["sales", DAYS[1]]])
    assert set(campaigns.approving().approve(NAME, waiting.pending).days) == {TARGETS[1]}
    assert campaigns.actions(campaign)[-2:] == [Action.approved, Action.approved]


@pytest.mark.parametrize("rules", ["validation", "approval"])
def test_under_other_rules_all_days_have_to_be_approved_again(campaigns: World, rules: str) -> None:
    campaign, unit = campaigns.approved()
    campaigns.clock.advance(dt.timedelta(minutes=1))
    for changed, pending in ((["execution", "notify"], ()), (["execution", rules], TARGETS)):
        entry = JournalEntry(NAME, campaigns.clock.now(), "dora", Action.resumed, "", {CHANGED: changed})
        campaigns.ledger.note(entry)
        assert campaigns.approval_of(unit.id).unapproved == pending
    with pytest.raises(ApprovalError, match="is not approved"):
        campaigns.release().publish(NAME)
    campaigns.clock.advance(dt.timedelta(minutes=1))
    campaigns.approve(campaign, "ben")
    release = campaigns.release().publish(NAME).outcome.release
    assert campaigns.ledger.release(release).manifest.approved_by == "ben as finance-controller"


def test_another_hash_is_refused_and_the_old_one_after_a_day_was_built_again(campaigns: World) -> None:
    _, unit = campaigns.validated()
    seen = campaigns.approval_of(unit.id).pending
    campaigns.build(unit, "sales", {DAYS[1]: [3]})
    for named in (seen, "", "0" * 64):
        with pytest.raises(ApprovalError, match=r"is not the hash of the evidence .*backfill status"):
            campaigns.approving().approve(NAME, named)
    assert campaigns.ledger.approvals(unit.id) == ()


def test_incomplete_evidence_is_refused_by_the_name_of_its_day(campaigns: World) -> None:
    _, unit = campaigns.launched()
    campaigns.build(unit, "sales", {DAYS[0]: [1], DAYS[2]: [1]})
    named = campaigns.approval_of(unit.id).pending
    with pytest.raises(EvidenceError, match="sales 2026-01-02 is not built yet"):
        campaigns.approving().approve(NAME, named)


def test_the_wrong_person_is_refused_before_anything_is_read(campaigns: World) -> None:
    _, unit = campaigns.validated()
    named = campaigns.approval_of(unit.id).pending
    with pytest.raises(ApprovalError, match="'ada' is not 'finance-controller'"):
        campaigns.approving("ada").approve(NAME, named)
    with pytest.raises(ApprovalError, match="'eve' is not 'finance-controller'"):
        campaigns.approving("eve").approve(NAME, "whatever", by="finance-controller")


def test_owner_and_launcher_are_refused_where_the_rule_excludes_them(campaigns: World) -> None:
    _, unit = campaigns.validated(approval={"required": True, "by": ["ada", "dora", "ben"], "not_owner": True})
    named = campaigns.approval_of(unit.id).pending
    with pytest.raises(ApprovalError, match="ada launched this campaign"):
        campaigns.approving("ada").approve(NAME, named)
    with pytest.raises(ApprovalError, match=r"dora \(in finance-data\) owns this campaign"):
        campaigns.approving("dora").approve(NAME, named)
    assert campaigns.approving("ben").approve(NAME, named).identity == "ben"


def test_an_approved_campaign_says_who_approved_it(campaigns: World) -> None:
    campaigns.approved()
    with pytest.raises(ApprovalError, match=r"all of its evidence is already approved \(approved by anna at"):
        campaigns.approving("ben").approve(NAME, "")


@pytest.mark.parametrize("phase", [Phase.stopped, Phase.closed])
def test_a_campaign_that_is_not_at_that_point_cannot_be_approved(campaigns: World, phase: Phase) -> None:
    campaign, unit = campaigns.validated()
    named = campaigns.approval_of(unit.id).pending
    campaigns.turned(campaign, phase, Action.stopped, by="carl")
    with pytest.raises(CampaignError, match=f"is {phase.value} .*by carl"):
        campaigns.approving().approve(NAME, named)


def test_a_published_campaign_has_nothing_to_approve(campaigns: World) -> None:
    campaigns.approved()
    campaigns.release().publish(NAME)
    with pytest.raises(CampaignError, match=r"is published \(published by ada at"):
        campaigns.approving().approve(NAME, "")


def _approving(campaigns: World, user: str, now: dt.datetime) -> Approving:
    """A user whose clock differs from all others."""
    own = replace(campaigns.warehouse(user), clock=FixedClock(now))
    return replace(campaigns.approving(user), warehouse=own)


@pytest.mark.parametrize("ahead", [dt.timedelta(minutes=5), dt.timedelta(days=3653)], ids=str)
def test_an_approval_by_a_clock_that_is_ahead_does_not_survive_the_rollback(
    campaigns: World, ahead: dt.timedelta
) -> None:
    campaign, unit = campaigns.validated()
    fast = _approving(campaigns, "anna", campaigns.clock.now() + ahead)
    fast.approve(NAME, campaigns.approval_of(unit.id).pending)
    release = campaigns.release().publish(NAME).outcome.release
    campaigns.campaign_rollback().execute(release, "wrong")
    assert campaigns.approval_of(unit.id).unapproved == TARGETS
    with pytest.raises(ApprovalError, match="is not approved"):
        campaigns.release().publish(NAME)
    # An approval by a clock that is behind counts, because it came after the rollback.
    slow = _approving(campaigns, "ben", campaigns.clock.now() - ahead)
    slow.approve(NAME, campaigns.approval_of(unit.id).pending)
    assert campaigns.approval_of(unit.id).unapproved == ()
    assert campaigns.ledger.journal(campaign.id)[-1].action is Action.approved


def test_new_rules_dated_2199_void_earlier_approvals_and_no_later_ones(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    then = dt.datetime(2199, 1, 1, tzinfo=dt.UTC)
    campaigns.ledger.note(JournalEntry(NAME, then, "dora", Action.resumed, "", {CHANGED: ["validation"]}))
    assert campaigns.approval_of(unit.id).unapproved == TARGETS
    campaigns.approve(campaign, "ben")
    assert campaigns.approval_of(unit.id).unapproved == ()
    campaigns.release().publish(NAME)


def past_the_ledger(world: World, *statements: str) -> None:
    """Change the ledger's file, as its owner can."""
    with closing(sqlite3.connect(world.folder / "ledger.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


_REWRITE = (
    "DROP TRIGGER evidence_refuses_update",
    "UPDATE evidence SET body = replace(body, '\"passed\":false', '\"passed\":true') WHERE day = '2026-01-02'",
)


def test_a_verdict_that_was_rewritten_in_the_ledger_is_neither_approved_nor_published(campaigns: World) -> None:
    _, unit = campaigns.validated()
    campaigns.build(unit, "sales", {DAYS[1]: [3]}, passed=False)
    with pytest.raises(EvidenceError, match="sales 2026-01-02 failed its checks"):
        campaigns.approving().approve(NAME, campaigns.approval_of(unit.id).pending)
    past_the_ledger(campaigns, *_REWRITE)
    pending = campaigns.approval_of(unit.id).pending
    refused = r"sales 2026-01-02 has evidence that was altered in the ledger .*\n.*backfill resume"
    with pytest.raises(EvidenceError, match=refused):
        campaigns.approving().approve(NAME, pending)
    with pytest.raises(EvidenceError, match=refused):
        campaigns.release().publish(NAME)
    # The day is built again, and can be approved.
    assert campaigns.days_to_build(unit.id, "sales") == (DAYS[1],)
    campaigns.build(unit, "sales", {DAYS[1]: [3]})
    campaigns.approving().approve(NAME, campaigns.approval_of(unit.id).pending)
    campaigns.release().publish(NAME)


def test_a_release_is_not_rolled_back_by_a_rewritten_row_of_the_ledger(campaigns: World) -> None:
    campaigns.approved()
    release = campaigns.release().publish(NAME).outcome.release
    past_the_ledger(
        campaigns,
        "DROP TRIGGER releases_refuses_update",
        'UPDATE releases SET manifest = replace(manifest, \'"by":"ada"\', \'"by":"eve"\')',
    )
    with pytest.raises(RollbackError, match=r"its manifest in the ledger .* Restore the ledger from a backup"):
        campaigns.campaign_rollback().execute(release, "wrong")
    observed = [str(found) for found in campaigns.doctor().examine()]
    assert any(f"the manifest of release {release} in the ledger is not the one" in line for line in observed)
