"""A campaign is published only if it is approved, in its window and undoable; the publication is reported."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.campaign.state import Action, Phase
from backfill_assets.control.publication import PublishedCampaign
from backfill_assets.core.errors import (
    ApprovalError,
    BackfillError,
    CampaignError,
    PreconditionError,
    RollbackError,
    UnitError,
)
from backfill_assets.core.release import ReleaseKind
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.releasing import Publication
from backfill_assets_tests.harness.actors import Post
from backfill_assets_tests.harness.between import Died, dies_at
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.specifications import DAYS, NAME, specification
from backfill_assets_tests.harness.tables import layout
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

NIGHT = ["22:00-05:00"]
BEFORE, AFTER = {d: [1] for d in DAYS}, {d: [2] for d in DAYS}
HOUR = dt.timedelta(hours=1)
TOLD = {"notify": {"webhook": "env:HOOK", "on": ["published", "rolled_back"]}}


def test_an_approved_campaign_is_published_and_its_release_says_what_is_behind_it(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    publication = campaigns.release("carl").publish(NAME, reason="before the audit")
    assert campaigns.content() == AFTER
    manifest = campaigns.ledger.release(publication.outcome.release).manifest
    assert (manifest.campaign, manifest.by, manifest.unit) == (NAME, "carl", unit.id)
    assert manifest.approved_by == "anna as finance-controller"
    assert manifest.source_range == f"{DAYS[0]}..{DAYS[-1]}"
    assert manifest.reason == "FIN-2841; Correct the tax; before the audit"
    assert (publication.by, publication.at, publication.already) == ("carl", manifest.created_at, False)
    assert manifest.release in str(publication)
    entry = campaigns.ledger.journal(campaign.id)[-1]
    assert (entry.action, entry.by) == (Action.published, "carl")
    assert entry.detail["releases"] == {"sales": manifest.release}


def test_nothing_is_published_without_approval_in_any_way(campaigns: World) -> None:
    _, unit = campaigns.validated()
    ways = (
        lambda: campaigns.release().publish(NAME),
        lambda: campaigns.campaign_publisher().release(unit.id),
        lambda: campaigns.campaign_publisher().release(
            unit.id, evidence_hash=campaigns.campaign_publisher().evidence_hash(unit.id)
        ),
    )
    for way in ways:
        with pytest.raises(
            ApprovalError, match=r"the current evidence of sales 2026-01-01\.\.2026-01-03 is not approved"
        ):
            way()
    assert not campaigns.tables["sales"].exists()
    assert campaigns.ledger.releases() == ()


def test_a_day_built_again_needs_its_own_approval(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    campaigns.build(unit, "sales", {DAYS[1]: [3]})
    with pytest.raises(ApprovalError, match="current evidence of sales 2026-01-02 is not approved"):
        campaigns.campaign_publisher().release(unit.id)
    campaigns.approve(campaign, "ben")
    release = campaigns.release().publish(NAME).outcome.release
    observed = campaigns.ledger.release(release).manifest.approved_by
    assert observed == "anna as finance-controller, ben as finance-controller"


def test_a_campaign_that_asks_for_no_approval_is_published_once_it_is_validated(campaigns: World) -> None:
    campaigns.validated(approval={"required": False})
    release = campaigns.release().publish(NAME).outcome.release
    assert campaigns.ledger.release(release).manifest.approved_by == ""


def test_a_dataset_that_always_needs_approval_is_not_published_without(campaigns: World) -> None:
    _, unit = campaigns.validated(approval={"required": False})
    own = campaigns.datasets["sales"]
    campaigns.datasets["sales"] = own.model_copy(update={"publication": Publication.approval})
    with pytest.raises(ApprovalError, match="is not approved"):
        campaigns.campaign_publisher().release(unit.id)


def test_a_unit_of_no_campaign_passes(campaigns: World) -> None:
    unit = campaigns.open_unit({"sales": DAYS})
    campaigns.build(unit, "sales", AFTER)
    release = campaigns.campaign_publisher().release(unit.id).release
    assert campaigns.ledger.release(release).manifest.campaign == ""


def test_a_campaign_waits_outside_its_window_unless_a_reason_is_given(campaigns: World) -> None:
    campaigns.approved(publish_window=NIGHT, time_zone="Europe/Berlin")
    refusal = r"only in 22:00-05:00 \(Europe/Berlin\); it is 2026-03-01 13:00, the next window opens 2026-03-01 22:00"
    for way in (
        campaigns.release().publish,
        lambda name: campaigns.campaign_publisher().release(campaigns.ledger.campaign(name).unit),
    ):
        with pytest.raises(ApprovalError, match=refusal):
            way(NAME)
    publication = campaigns.release().publish(NAME, outside_window="the audit is at noon")
    reason = campaigns.ledger.release(publication.outcome.release).manifest.reason
    assert reason.endswith("; outside the publish window: the audit is at noon")


def test_a_campaign_is_published_inside_its_window_also_past_midnight(campaigns: World) -> None:
    campaigns.approved(publish_window=NIGHT)
    campaigns.clock.advance(dt.timedelta(hours=16, minutes=59))
    publication = campaigns.release().publish(NAME, outside_window="just in case")
    assert "outside" not in campaigns.ledger.release(publication.outcome.release).manifest.reason


def test_a_stopped_campaign_is_not_published(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    campaigns.turned(campaign, Phase.stopped, Action.stopped, by="carl")
    with pytest.raises(ApprovalError, match=rf"is stopped \(stopped by carl at .*backfill resume {NAME}"):
        campaigns.campaign_publisher().release(unit.id)


def test_a_planned_campaign_cannot_be_published(campaigns: World) -> None:
    campaigns.planned({"sales": DAYS})
    with pytest.raises(CampaignError, match=r"is planned .*publish needs a campaign that is"):
        campaigns.release().publish(NAME)


def test_a_discarded_campaign_is_not_published(campaigns: World) -> None:
    _, unit = campaigns.approved()
    campaigns.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    with pytest.raises(UnitError, match="was discarded"):
        campaigns.release().publish(NAME)
    assert "is discarded" in campaigns.release().plan(NAME).refusals[0]


def test_a_release_that_could_not_be_rolled_back_is_refused(campaigns: World) -> None:
    campaigns.released(BEFORE)
    _, unit = campaigns.approved()
    gone = campaigns.tables["sales"].active()[DAYS[1]][0]
    (campaigns.homes["sales"] / gone.path).unlink()
    with pytest.raises(RollbackError, match=r"could not be rolled back: files .* gone or altered: sales 2026-01-02"):
        campaigns.campaign_publisher().release(unit.id)
    assert len(campaigns.ledger.releases()) == 1


def test_a_retention_that_would_end_the_rollback_too_early_is_refused(campaigns: World) -> None:
    campaigns.approved(rollback={"keep_for": "31d"})
    with pytest.raises(RollbackError, match=r"keep_for is 31d, but sales keeps releases for 30d"):
        campaigns.release().publish(NAME)


def test_a_dry_run_says_what_would_change_and_changes_nothing(campaigns: World) -> None:
    campaigns.released({DAYS[0]: [1, 1], DAYS[1]: [1]})
    _, unit = campaigns.approved()
    version = campaigns.tables["sales"].version()
    plan = campaigns.release().plan(NAME)
    (change,) = plan.changes
    assert (change.dataset, change.days, change.version) == ("sales", DAYS, version)
    assert (change.removed, change.added, change.rows_before, change.rows_after) == (2, 3, 3, 3)
    assert (plan.unit, plan.evidence, plan.refusals) == (
        unit.id,
        campaigns.campaign_publisher().evidence_hash(unit.id),
        (),
    )
    assert campaigns.tables["sales"].version() == version
    assert campaigns.ledger.unit(unit.id).state is UnitState.open


def test_a_dry_run_names_all_reasons_for_a_refusal_together(campaigns: World) -> None:
    _, unit = campaigns.launched(publish_window=NIGHT, rollback={"keep_for": "31d"})
    campaigns.build(unit, "sales", {DAYS[0]: [2], DAYS[1]: [2]})
    refusals = campaigns.release().plan(NAME).refusals
    for text in ("2026-01-03 is not built yet", "is not approved", "published only in", "keep_for is 31d"):
        assert sum(text in refusal for refusal in refusals) == 1
    assert len(campaigns.release().plan(NAME, outside_window="why not").refusals) == len(refusals) - 1


def test_publishing_again_changes_nothing_and_says_who_did_it(campaigns: World) -> None:
    campaign, _ = campaigns.approved()
    campaigns.release("carl").publish(NAME)
    version = campaigns.tables["sales"].version()
    campaigns.clock.advance(HOUR)
    again = campaigns.release("eve").publish(NAME)
    assert again.already
    assert "was published already by carl at 2026-03-01 12:00:00 UTC" in str(again)
    assert campaigns.tables["sales"].version() == version
    assert campaigns.actions(campaign).count(Action.published) == 1


def test_one_of_two_concurrent_publishers_wins_and_the_other_is_refused(campaigns: World, tmp_path: Path) -> None:
    campaign, _ = campaigns.approved()
    found: list[PublishedCampaign | BackfillError] = []
    barrier = threading.Barrier(2)

    def publish(user: str, first_id: int) -> None:
        world = World(tmp_path, first_id=first_id, asked=specification())
        barrier.wait()
        try:
            found.append(world.release(user).publish(NAME))
        except BackfillError as error:
            found.append(error)
        finally:
            world.close()

    threads = [threading.Thread(target=publish, args=who) for who in (("carl", 100), ("eve", 200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publications = [f for f in found if isinstance(f, PublishedCampaign)]
    assert len(publications) == 2, found
    assert sorted(p.already for p in publications) == [False, True]
    assert len({(p.by, p.outcome.release) for p in publications}) == 1
    assert campaigns.actions(campaign).count(Action.published) == 1
    assert len(campaigns.ledger.releases()) == 1


def test_a_rollback_is_in_the_journal_and_withdraws_the_approval_of_its_days(campaigns: World) -> None:
    campaigns.released(BEFORE)
    campaign, unit = campaigns.approved()
    release = campaigns.release().publish(NAME).outcome.release
    campaigns.clock.advance(HOUR)
    done = campaigns.campaign_rollback("ben").execute(release, "margins look odd")
    assert campaigns.content() == BEFORE
    entry = campaigns.ledger.journal(campaign.id)[-1]
    assert (entry.action, entry.by, entry.reason) == (Action.rolled_back, "ben", "margins look odd")
    assert entry.detail["undoes"] == release
    manifest = campaigns.ledger.release(done.release).manifest
    assert (manifest.kind, manifest.campaign, manifest.approved_by) == (ReleaseKind.rollback, NAME, "")
    with pytest.raises(ApprovalError, match="is not approved"):
        campaigns.campaign_publisher().release(unit.id)
    assert campaigns.ledger.unit(unit.id).state is UnitState.rolled_back
    campaigns.clock.advance(HOUR)
    campaigns.approve(campaign, "ben")
    second = campaigns.release().publish(NAME).outcome.release
    assert campaigns.content() == AFTER
    assert campaigns.ledger.release(second).manifest.approved_by == "ben as finance-controller"


def test_notices_go_out_once_for_each_release_and_rollback(campaigns: World) -> None:
    campaigns.approved(**TOLD)
    release = campaigns.release().publish(NAME).outcome.release
    campaigns.release().publish(NAME)
    campaigns.campaign_rollback().execute(release, "odd")
    campaigns.reconcile().run()
    assert isinstance(campaigns.post, Post)
    (first, said), (second, undone) = campaigns.post.sent
    assert first == second == "HOOK"
    assert f"until 2026-03-31 12:00 UTC undo it with: backfill rollback {release} --reason '…'" in said
    assert undone.endswith(f"undoes {release}): odd")


def test_reconcile_reports_a_release_that_died_before_its_journal_entry(campaigns: World) -> None:
    campaign, unit = campaigns.approved(**TOLD)

    with pytest.raises(Died):
        replace(campaigns.campaign_publisher("carl"), checkpoint=dies_at("commit")).release(unit.id)
    assert Action.published not in campaigns.actions(campaign)
    for _ in range(2):
        campaigns.reconcile().run()
    entries = [e for e in campaigns.ledger.journal(campaign.id) if e.action is Action.published]
    assert [e.by for e in entries] == ["carl"]
    assert isinstance(campaigns.post, Post)
    assert len(campaigns.post.sent) == 1


def test_several_datasets_make_one_entry_and_one_notice(tmp_path: Path) -> None:
    world = World(tmp_path, ("orders", "sales"), asked=specification())
    try:
        campaign, _ = world.approved(targets={"orders": DAYS, "sales": DAYS}, **TOLD)
        outcome = world.release().publish(NAME).outcome
        assert world.actions(campaign).count(Action.published) == 1
        assert world.ledger.journal(campaign.id)[-1].detail["releases"] == outcome.releases
        assert isinstance(world.post, Post)
        assert len(world.post.sent) == 1
    finally:
        world.close()


def test_two_processes_that_report_one_release_together_write_one_entry(campaigns: World, tmp_path: Path) -> None:
    campaign, unit = campaigns.approved()
    release = replace(campaigns.campaign_publisher(), after=lambda _: False).release(unit.id).release
    worlds = [World(tmp_path, asked=specification()) for _ in range(4)]
    barrier = threading.Barrier(len(worlds))

    def notify(world: World) -> None:
        barrier.wait()
        world.after_release()([release])
        world.close()

    threads = [threading.Thread(target=notify, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert campaigns.actions(campaign).count(Action.published) == 1


def test_a_publication_that_got_only_half_way_is_not_reported_and_keeps_its_approval(tmp_path: Path) -> None:
    world = World(tmp_path, ("orders", "sales"), asked=specification())
    try:
        campaign, unit = world.validated(targets={"orders": DAYS, "sales": DAYS}, **TOLD)
        world.clock.advance(HOUR)
        world.approve(campaign)

        def lose_the_second(step: str) -> None:
            if step == "intend":
                for path in world.homes["sales"].rglob("*.parquet"):
                    path.rename(path.with_suffix(".away"))

        with pytest.raises(PreconditionError):
            replace(world.campaign_publisher(), checkpoint=lose_the_second).release(unit.id)
        shown = DeltaTable(folder_of(layout(tmp_path).data_releases_path())).to_pyarrow_table().to_pylist()
        assert {row["state"] for row in shown} == {"finalized", "abandoned"}
        world.reconcile().run()
        assert Action.published not in world.actions(campaign)
        assert Action.rolled_back not in world.actions(campaign)
        for path in world.homes["sales"].rglob("*.away"):
            path.rename(path.with_suffix(".parquet"))
        world.release().publish(NAME)
        assert world.actions(campaign).count(Action.published) == 1
        assert world.data_releases.differing() == ()
    finally:
        world.close()
