"""No launch, crash or hint bypasses a campaign: its contract, its approval, its rehearsed rollback."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from backfill_assets.campaign.state import Campaign, Phase
from backfill_assets.core.errors import ApprovalError, EvidenceError, RollbackError
from backfill_assets.core.evidence import unit_hash
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.unit import Launch, ReleaseMode, Unit
from backfill_assets.evidence.readiness import refusal, relaunch_hint
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

AFTER = {d: [2] for d in DAYS}
ANYTHING = parse_contract({"row_count": "any"}, ["row_count"], dataset="sales")


def opened(campaigns: World, campaign: Campaign) -> Unit:
    """The unit of a launch that died before the campaign had stored it."""
    opened_by, targets = f"campaign:{campaign.id}", {"sales": DAYS}
    proposal = Unit(campaigns.ids.new("u"), opened_by, campaigns.clock.now(), "ada", targets, ReleaseMode.manual)
    return campaigns.ledger.assign(Launch({"sales": frozenset(DAYS)}, opened_by), proposal)


def test_nothing_is_published_of_a_unit_whose_launch_was_not_completed(campaigns: World) -> None:
    unit = opened(campaigns, campaigns.planned({"sales": DAYS}))
    campaigns.build(unit, "sales", AFTER)
    with pytest.raises(ApprovalError, match=rf"unit {unit.id} was opened for campaign {NAME}.*backfill launch {NAME}"):
        campaigns.campaign_publisher().release(unit.id)
    assert not campaigns.tables["sales"].exists()
    assert campaigns.ledger.releases() == ()
    assert campaigns.ledger.campaign(NAME).phase is Phase.planned


def test_a_unit_knows_its_campaign_and_which_of_its_units_it_is() -> None:
    unit = Unit("u_1", "b_1", dt.datetime(2026, 3, 1, tzinfo=dt.UTC), "ada", {}, ReleaseMode.manual)
    assert (unit.campaign, unit.handle) == ("", "u_1")
    for opened_by in (f"campaign:{NAME}", f"campaign:{NAME}/2"):
        assert (replace(unit, opened_by=opened_by).campaign, replace(unit, opened_by=opened_by).handle) == (NAME, NAME)


def test_a_unit_whose_contract_is_not_the_specifications_is_not_published(campaigns: World) -> None:
    campaign, unit = campaigns.launched(validation={"row_count_tolerance": 0})
    assert campaign.specification.contract(("sales",))
    loose = campaigns.ledger.set_contract(unit.id, ANYTHING)
    campaigns.build(loose, "sales", AFTER)
    campaigns.approve(campaign)
    with pytest.raises(ApprovalError, match=rf"another expected change of sales .*backfill resume {NAME}"):
        campaigns.campaign_publisher().release(unit.id)
    asked = campaign.specification.contract(("sales",))
    campaigns.build(campaigns.ledger.set_contract(unit.id, asked), "sales", AFTER)
    campaigns.approve(campaign)
    assert campaigns.release().publish(NAME).outcome.releases


def test_a_refusal_for_want_of_approval_names_the_hash_to_approve(campaigns: World) -> None:
    _, unit = campaigns.validated()
    waiting = unit_hash(campaigns.ledger.evidence(unit.id).values())
    with pytest.raises(ApprovalError, match=f"backfill approve {NAME} --evidence {waiting}"):
        campaigns.campaign_publisher().release(unit.id)


def test_a_release_that_its_rollback_could_not_undo_is_refused(campaigns: World) -> None:
    before = campaigns.open_unit({"sales": DAYS})
    campaigns.build(before, "sales", {d: [1] for d in DAYS})
    campaigns.campaign_publisher().release(before.id)
    campaign, unit = campaigns.approved()
    survey = campaigns.campaign_publisher().survey(unit.id)
    assert campaigns.guard().refusals(campaign, survey) == ()
    # The release would bring exactly the file that the rollback has to put back.
    mixed = {
        ("sales", DAYS[1]): replace(survey.evidence["sales", DAYS[1]], shadow_files=survey.active["sales"][DAYS[1]])
    }
    observed = campaigns.guard().refusals(campaign, replace(survey, evidence={**survey.evidence, **mixed}))
    (found,) = [r for r in observed if isinstance(r, RollbackError)]
    assert "sales 2026-01-02 would not show its current rows again" in str(found)


def test_missing_days_of_a_campaigns_unit_are_built_through_the_campaign(campaigns: World) -> None:
    _, unit = campaigns.launched()
    faults = campaigns.campaign_publisher().blockers(unit.id)
    for text in (refusal(unit, faults, campaigns.datasets), relaunch_hint(unit, DAYS, campaigns.datasets)):
        assert f"backfill resume {NAME}" in text
        assert f"backfill resume {unit.id}" not in text
        assert "materialize" not in text
    plain = replace(unit, opened_by="b_1")
    assert f"backfill resume {unit.id}" in relaunch_hint(plain, DAYS, campaigns.datasets)


def test_a_named_hash_that_is_not_the_evidence_is_refused(campaigns: World) -> None:
    campaigns.approved()
    whole = campaigns.release().plan(NAME).evidence
    assert "not 0000" in campaigns.release().plan(NAME, evidence_hash="0" * 64).refusals[0]
    with pytest.raises(EvidenceError, match="the approval is for evidence 0000"):
        campaigns.release().publish(NAME, evidence_hash="0" * 64)
    assert campaigns.release().plan(NAME, evidence_hash=whole).refusals == ()
    assert not campaigns.release().publish(NAME, evidence_hash=whole).already
