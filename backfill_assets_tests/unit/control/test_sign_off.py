"""A campaign ends by a sign-off; until then, and until its window is over, every file of it stays."""

from __future__ import annotations

import datetime as dt

import pytest

from backfill_assets.campaign.state import Action, Phase
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.unit import UnitState
from backfill_assets.release.sweep import Swept
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.release.test_sweep_and_doctor import date_all, stored

pytestmark = pytest.mark.slow

HOUR = dt.timedelta(hours=1)
WINDOW = dt.timedelta(days=30)
MARGIN = dt.timedelta(days=7)
BEFORE = {d: [1] for d in DAYS}


def published(campaigns: World) -> str:
    campaigns.released(BEFORE)
    campaigns.approved()
    release = campaigns.release().publish(NAME).outcome.release
    date_all(campaigns)
    return release


def data(campaigns: World) -> set[str]:
    return {path for path in stored(campaigns) if path.endswith(".parquet")}


def test_a_published_campaign_is_signed_off_and_says_by_whom(campaigns: World) -> None:
    published(campaigns)
    assert campaigns.sign_off().sign_off(NAME, "checked with finance").phase is Phase.closed
    entry = campaigns.ledger.journal(NAME)[-1]
    assert (entry.action, entry.by, entry.reason) == (Action.signed_off, "ada", "checked with finance")
    with pytest.raises(CampaignError, match=r"is closed \(signed off by ada at .*checked with finance"):
        campaigns.sign_off().sign_off(NAME)


def test_only_a_published_campaign_is_signed_off(campaigns: World) -> None:
    campaigns.approved()
    with pytest.raises(CampaignError, match="only what readers see can be signed off"):
        campaigns.sign_off().sign_off(NAME)
    release = campaigns.release().publish(NAME).outcome.release
    campaigns.campaign_rollback().execute(release, "odd")
    with pytest.raises(CampaignError, match="rolled_back; only what readers see"):
        campaigns.sign_off().sign_off(NAME)


def test_the_sweep_deletes_nothing_of_a_campaign_without_a_sign_off_however_old(campaigns: World) -> None:
    release = published(campaigns)
    before = data(campaigns)
    campaigns.clock.advance(10 * WINDOW)
    assert campaigns.sweep().execute()[0].paths == ()
    assert data(campaigns) == before
    assert len(campaigns.ledger.release(release).manifest.removed) == len(DAYS)


def test_the_sweep_respects_the_window_after_a_sign_off(campaigns: World) -> None:
    release = published(campaigns)
    campaigns.sign_off().sign_off(NAME)
    campaigns.clock.advance(WINDOW + MARGIN - HOUR)
    assert campaigns.sweep().execute()[0].paths == ()
    campaigns.clock.advance(2 * HOUR)
    taken = set(campaigns.sweep().execute()[0].paths)
    assert {f.path for f in campaigns.ledger.release(release).manifest.removed} <= taken
    assert campaigns.content() == {d: [2] for d in DAYS}


def test_nothing_is_cleaned_up_before_the_window_ends_and_the_sign_off(campaigns: World) -> None:
    published(campaigns)
    with pytest.raises(CampaignError, match=r"is published .* and not signed off; .*backfill sign-off"):
        campaigns.sign_off().cleanup(NAME)
    campaigns.clock.advance(WINDOW - HOUR)
    campaigns.sign_off().sign_off(NAME)
    with pytest.raises(CampaignError, match="can be rolled back until 2026-03-31 12:00 UTC"):
        campaigns.sign_off().cleanup(NAME)
    campaigns.clock.advance(HOUR)
    campaigns.sign_off().cleanup(NAME, "over")
    assert campaigns.ledger.campaign(NAME).phase is Phase.cleaned
    assert campaigns.actions(campaigns.ledger.campaign(NAME))[-1] is Action.cleaned
    with pytest.raises(CampaignError, match=r"is cleaned .*nothing to clean up"):
        campaigns.sign_off().cleanup(NAME)


def test_a_clean_up_deletes_what_only_the_rollback_needed(campaigns: World) -> None:
    release = published(campaigns)
    campaigns.sign_off().sign_off(NAME)
    campaigns.clock.advance(WINDOW + MARGIN + HOUR)
    replaced = {f.path for f in campaigns.ledger.release(release).manifest.removed}
    done = campaigns.sign_off().cleanup(NAME)
    assert replaced <= set(done.swept[0].paths)
    assert not replaced & stored(campaigns)
    assert campaigns.content() == {d: [2] for d in DAYS}


def test_a_dry_run_lists_the_files_and_what_it_would_be_refused_for(campaigns: World) -> None:
    release = published(campaigns)
    early = campaigns.sign_off().cleanup(NAME, dry_run=True)
    assert "not signed off" in early.refusal
    assert early.swept[0].paths == ()
    campaigns.clock.advance(WINDOW + MARGIN + HOUR)
    before = stored(campaigns)
    late = campaigns.sign_off().cleanup(NAME, dry_run=True)
    assert {f.path for f in campaigns.ledger.release(release).manifest.removed} <= set(late.swept[0].paths)
    assert "not signed off" in late.refusal
    assert (late.window_until, late.files_until) == (early.window_until, early.files_until)
    assert (early.at, late.at) == (early.window_until, campaigns.clock.now())
    assert stored(campaigns) == before
    assert campaigns.ledger.campaign(NAME).phase is Phase.running


def test_a_dry_run_before_the_end_lists_what_goes_at_the_end_and_what_follows_when(campaigns: World) -> None:
    release = published(campaigns)
    spare = campaigns.open_unit({"sales": DAYS[:1]})
    campaigns.build(spare, "sales", {DAYS[0]: [7]})
    campaigns.ledger.move(spare.id, {UnitState.open}, UnitState.discarded)
    date_all(campaigns)
    replaced = {f.path for f in campaigns.ledger.release(release).manifest.removed}
    early = campaigns.sign_off().cleanup(NAME, dry_run=True)
    now, (goes,), (follows,) = campaigns.clock.now(), early.swept, early.later
    assert early.at == now + WINDOW
    assert goes.paths
    assert all(spare.id in path for path in goes.paths)
    assert replaced <= set(follows.paths)
    assert not set(goes.paths) & set(follows.paths)
    lines = early.listed(dry_run=True).splitlines()
    assert lines[0].endswith("would go at 2026-03-31 12:00 UTC")
    assert lines[1] == f"  {goes.paths[0]}"
    assert lines[len(goes.paths) + 1].endswith("go with any sweep after 2026-04-07 12:00 UTC")


def test_files_that_may_go_within_the_hour_are_still_listed_as_following(campaigns: World) -> None:
    release = published(campaigns)
    files_until = campaigns.sign_off().cleanup(NAME, dry_run=True).files_until
    assert files_until is not None
    campaigns.clock.advance(files_until - HOUR / 2 - campaigns.clock.now())
    soon = campaigns.sign_off().cleanup(NAME, dry_run=True)
    replaced = {f.path for f in campaigns.ledger.release(release).manifest.removed}
    assert not replaced & set(soon.swept[0].paths)
    assert replaced <= {path for follows in soon.later for path in follows.paths}


def test_a_long_list_of_files_is_cut_after_twenty() -> None:
    lines = Swept("sales", tuple(f"_shadow/u/{i}" for i in range(1_024)), 5_000_000).listed("would go").splitlines()
    assert lines[0] == "sales: 1,024 files (5 MB) would go"
    assert (lines[1], lines[20], lines[21:]) == ("  _shadow/u/0", "  _shadow/u/19", ["  … 1,004 more"])


def test_a_campaign_that_was_rolled_back_is_cleaned_up_without_a_sign_off(campaigns: World) -> None:
    release = published(campaigns)
    campaigns.campaign_rollback().execute(release, "odd")
    date_all(campaigns)
    campaigns.clock.advance(10 * WINDOW)
    brought = {f.path for f in campaigns.ledger.release(release).manifest.added}
    campaigns.sweep().execute()
    assert brought <= data(campaigns)
    assert brought <= set(campaigns.sign_off().cleanup(NAME).swept[0].paths)
    assert campaigns.content() == BEFORE
    assert campaigns.ledger.campaign(NAME).phase is Phase.cleaned


def test_a_campaign_with_an_open_unit_is_not_over(campaigns: World) -> None:
    _, unit = campaigns.validated()
    with pytest.raises(
        CampaignError, match=f"not finished: publish it, or give it up with: backfill discard {unit.id}"
    ):
        campaigns.sign_off().cleanup(NAME)
    campaigns.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    date_all(campaigns)
    campaigns.clock.advance(2 * HOUR)
    assert len([p for p in campaigns.sign_off().cleanup(NAME).swept[0].paths if p.endswith(".parquet")]) == len(DAYS)
    assert data(campaigns) == set()
