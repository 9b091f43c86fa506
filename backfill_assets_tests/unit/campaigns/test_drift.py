"""What is reviewed between the last batch and the release holds: nothing is approved or published past a file that moved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backfill_assets.cli.campaign_status import next_step
from backfill_assets.domain.campaign import Action, CampaignState, JournalEntry, Phase
from backfill_assets.domain.errors import ApprovalError
from backfill_assets_tests.told import Told
from backfill_assets_tests.unit.campaigns.site import DAYS, ID, Site

pytestmark = pytest.mark.slow

BOSS = {"required": True, "by": ["boss"]}
MOVED = r"fix\.yaml is no longer what the plan was made from; .*backfill resume fix-sales; if not, restore the file"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A validated campaign that remembers its file."""
    made = Site(tmp_path, approval={"required": True, "by": ["anna"]})
    write(made)
    planned = replace(made.plan(), file=str(made.folder / "fix.yaml"))
    made.ledger.add_campaign(planned, JournalEntry(ID, planned.created_at, "ada", Action.planned))
    made.control.launch(ID)
    made.conductor.halt(ID, "to be built in one go")
    made.build(DAYS)
    made.scheduler.at_work = []
    made.control.resume(ID)
    yield made
    made.world.close()


def write(site: Site, **changes: object) -> None:
    text = yaml.safe_dump(site.specification.to_plain() | changes)
    (site.folder / "fix.yaml").write_text(text, encoding="utf-8")


def approve(site: Site, user: str) -> None:
    site.world.approving(user).approve(ID, site.world.approval_of(site.campaign().unit).pending)


def published_whole(site: Site) -> None:
    """Readers see what was built of every day, and the doctor finds nothing."""
    assert site.world.content() == {d: [d.day, d.day] for d in DAYS}
    assert site.world.examiner().examine() == ()


def roads(site: Site) -> list[Callable[[], Any]]:
    unit = site.campaign().unit
    return [lambda: site.world.release().publish(ID), lambda: site.world.guarded().release(unit)]


@pytest.mark.faults
def test_a_specification_that_moved_after_the_last_batch_is_not_approved(told: Told, site: Site) -> None:
    told.injected("a specification is edited after the last batch of its campaign")
    assert site.standings.of(ID).state is CampaignState.validated
    write(site, publish_window=["22:00-05:00"])
    with pytest.raises(ApprovalError, match=MOVED):
        approve(site, "anna")
    standing = site.standings.of(ID)
    assert "fix.yaml is no longer what the plan was made from" in standing.drift
    assert next_step(standing).startswith(f"backfill resume {ID}")
    assert site.world.content() == {}
    assert site.world.examiner().examine() == ()
    # The command that it names goes on: nothing is built again, and what is approved is what is published.
    built = site.ledger.attempts()
    site.control.resume(ID, "at night only")
    approve(site, "anna")
    site.world.clock.advance(dt.timedelta(hours=11))
    site.world.release().publish(ID)
    assert site.ledger.attempts() == built
    published_whole(site)
    told.found(standing.drift, next_step(standing))


@pytest.mark.faults
def test_a_specification_that_moved_after_the_approval_is_not_published_on_any_road(told: Told, site: Site) -> None:
    told.injected("a specification is edited after its campaign is approved")
    approve(site, "anna")
    write(site, validation={"row_count_tolerance": 5})
    for road in roads(site):
        with pytest.raises(ApprovalError, match=MOVED):
            road()
    (refusal,) = site.world.release().plan(ID).refusals
    assert "no longer what the plan was made from" in refusal
    assert site.ledger.releases() == ()
    assert site.world.examiner().examine() == ()
    write(site)
    assert not site.world.release().publish(ID).already
    published_whole(site)
    told.found(refusal)


def test_other_approvers_hold_from_the_resume_on_that_brought_them(site: Site) -> None:
    approve(site, "anna")
    write(site, approval=BOSS)
    site.world.clock.advance(dt.timedelta(minutes=1))
    site.control.resume(ID, "the boss wants to see it")
    site.world.clock.advance(dt.timedelta(minutes=1))
    assert site.standings.of(ID).state is CampaignState.validated
    for road in roads(site):
        with pytest.raises(ApprovalError, match=r"nobody has approved .*by boss"):
            road()
    approve(site, "boss")
    assert not site.world.release().publish(ID).already


def test_a_specification_that_cannot_be_read_any_more_is_not_published(site: Site) -> None:
    approve(site, "anna")
    (site.folder / "fix.yaml").write_text("backfill_id: [", encoding="utf-8")
    with pytest.raises(ApprovalError, match=r"cannot be read any more: .*; mend or restore the file"):
        site.world.release().publish(ID)


def test_a_file_that_is_gone_blocks_nothing_and_is_said_to_be_gone(site: Site) -> None:
    assert site.standings.of(ID).uncompared == ""
    (site.folder / "fix.yaml").unlink()
    standing = site.standings.of(ID)
    assert standing.uncompared == f"its file {site.folder / 'fix.yaml'} is not there: not compared with the plan"
    assert standing.drift == ""
    approve(site, "anna")
    site.world.release().publish(ID)
    assert site.standings.of(ID).uncompared == ""


def test_a_campaign_that_was_rolled_back_comes_again_as_what_it_was(site: Site) -> None:
    approve(site, "anna")
    release = site.world.release().publish(ID).outcome.release
    write(site, approval=BOSS)
    assert site.standings.of(ID).drift == ""
    site.world.undoer().execute(release, "not yet")
    site.world.clock.advance(dt.timedelta(minutes=1))
    # No resume could plan it anew: its unit is over.
    assert site.phase() is Phase.running
    approve(site, "anna")
    assert not site.world.release().publish(ID).already
