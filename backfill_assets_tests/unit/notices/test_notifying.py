"""Notices go to the receivers that asked for them, with retries, and never make anything fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Action, Campaign
from backfill_assets.notices.webhook import Webhook
from backfill_assets_tests.harness.actors import Post
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.notices.receiver import SECRET, receiver


def asking(campaigns: World, *notices: str) -> Campaign:
    return campaigns.planned({"sales": DAYS}, notify={"webhook": "env:HOOK", "on": list(notices)})


def test_only_what_the_specification_lists_is_sent(campaigns: World) -> None:
    campaign = asking(campaigns, "launched", "stopped")
    for notice in Notice:
        campaigns.notifier().notify(campaign, notice, f"it is {notice.value}")
    assert isinstance(campaigns.post, Post)
    assert campaigns.post.sent == [("HOOK", "it is launched"), ("HOOK", "it is stopped")]


def test_a_campaign_without_receivers_sends_nothing(campaigns: World) -> None:
    campaign = campaigns.planned({"sales": DAYS})
    campaigns.notifier().notify(campaign, Notice.published, "published")
    assert isinstance(campaigns.post, Post)
    assert campaigns.post.sent == []


def test_a_receiver_that_fails_first_gets_the_notice_in_the_end(campaigns: World) -> None:
    campaign = asking(campaigns, "published")
    with receiver(503, 200) as server:
        campaigns.post = Webhook({"HOOK": server.url}, pause=0.01)
        campaigns.notifier().notify(campaign, Notice.published, "published")
    assert server.got == [("application/json", {"text": "published"})] * 2
    assert campaigns.actions(campaign) == [Action.planned]


def test_a_notice_that_cannot_be_sent_is_noted_in_the_journal_without_the_url(
    campaigns: World, caplog: pytest.LogCaptureFixture
) -> None:
    campaigns.approved(notify={"webhook": "env:HOOK", "on": ["published"]})
    with receiver(500) as server:
        campaigns.post = Webhook({"HOOK": server.url}, retries=1, pause=0.01)
        campaigns.release().publish(NAME)
    assert campaigns.content() == {d: [2] for d in DAYS}
    entry = campaigns.ledger.journal(NAME)[-1]
    assert (entry.action, entry.detail) == (Action.notified, {"notice": "published", "sent": False})
    assert entry.reason.startswith("the notice 'published' could not be sent: the webhook of HOOK answered 500")
    assert SECRET not in f"{entry} {caplog.text}"


def test_a_notice_about_a_campaign_that_the_ledger_lost_only_warns(
    campaigns: World, caplog: pytest.LogCaptureFixture
) -> None:
    campaign = asking(campaigns, "published")
    renamed = campaign.specification.model_copy(update={"backfill_id": "another-one"})
    campaigns.post = Webhook({})
    campaigns.notifier().notify(replace(campaign, specification=renamed), Notice.published, "published")
    assert "HOOK is not set" in caplog.text


def test_a_notice_is_short_and_one_of_a_stop_is_one_line(campaigns: World) -> None:
    campaign = asking(campaigns, "published", "stopped")
    campaigns.notifier().notify(
        campaign, Notice.stopped, "tax-fix is stopped: run 1: no column\n  at line 3\n  at line 9"
    )
    campaigns.notifier().notify(campaign, Notice.published, "sales\n" + "x" * 2000)
    assert isinstance(campaigns.post, Post)
    stopped, published = (text for _, text in campaigns.post.sent)
    assert stopped == "tax-fix is stopped: run 1: no column"
    assert published == "sales\n" + "x" * 993 + "…"
