"""What was reviewed is what is released: nothing is approved or published if the file changed after the last batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backfill_assets.campaign.state import Action, CampaignState, JournalEntry, Phase
from backfill_assets.cli.campaign_status import next_step
from backfill_assets.core.errors import ApprovalError
from backfill_assets_tests.harness.specifications import NAME, SIX_DAYS, with_canaries
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed

pytestmark = pytest.mark.slow

BOSS = {"required": True, "by": ["boss"]}
MOVED = r"fix\.yaml has changed since the plan; .*backfill resume tax-fix-2026; if not, restore the file"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A validated campaign that remembers its file."""
    made = World(tmp_path, asked=with_canaries({"required": True, "by": ["anna"]}))
    write(made)
    planned = replace(made.plan(), file=str(made.folder / "fix.yaml"))
    made.ledger.add_campaign(planned, JournalEntry(NAME, planned.created_at, "ada", Action.planned))
    made.control.launch(NAME)
    made.conductor.halt(NAME, "to be built in one go", len(made.ledger.journal(NAME)))
    made.build_days(SIX_DAYS)
    made.scheduler.at_work = []
    made.control.resume(NAME)
    yield made
    made.close()


def write(world: World, **changes: object) -> None:
    text = yaml.safe_dump(world.specification.to_plain() | changes)
    (world.folder / "fix.yaml").write_text(text, encoding="utf-8")


def approve(world: World, user: str) -> None:
    world.approving(user).approve(NAME, world.approval_of(world.campaign().unit).pending)


def published_whole(world: World) -> None:
    """Readers see the built rows of every day, and the doctor finds nothing."""
    assert world.content() == {d: [d.day, d.day] for d in SIX_DAYS}
    assert world.doctor().examine() == ()


def ways(world: World) -> list[Callable[[], Any]]:
    unit = world.campaign().unit
    return [lambda: world.release().publish(NAME), lambda: world.campaign_publisher().release(unit)]


@pytest.mark.faults
def test_a_specification_that_moved_after_the_last_batch_is_not_approved(observed: Observed, world: World) -> None:
    observed.injected("a specification is edited after the last batch of its campaign")
    assert world.standings.of(NAME).state is CampaignState.validated
    write(world, publish_window=["22:00-05:00"])
    with pytest.raises(ApprovalError, match=MOVED):
        approve(world, "anna")
    standing = world.standings.of(NAME)
    assert "fix.yaml has changed since the plan" in standing.drift
    said = next_step(standing, world.datasets)
    assert said.startswith(f"backfill resume {NAME}")
    assert world.content() == {}
    assert world.doctor().examine() == ()
    # The command that it names continues: nothing is built again, and exactly the approved evidence is published.
    built = world.ledger.attempts()
    world.control.resume(NAME, "at night only")
    approve(world, "anna")
    world.clock.advance(dt.timedelta(hours=11))
    world.release().publish(NAME)
    assert world.ledger.attempts() == built
    published_whole(world)
    observed.found(standing.drift, said)


@pytest.mark.faults
def test_a_specification_that_moved_after_the_approval_is_not_published_in_any_way(
    observed: Observed, world: World
) -> None:
    observed.injected("a specification is edited after its campaign is approved")
    approve(world, "anna")
    write(world, validation={"row_count_tolerance": 5})
    for way in ways(world):
        with pytest.raises(ApprovalError, match=MOVED):
            way()
    (refusal,) = world.release().plan(NAME).refusals
    assert "has changed since the plan" in refusal
    assert world.ledger.releases() == ()
    assert world.doctor().examine() == ()
    write(world)
    assert not world.release().publish(NAME).already
    published_whole(world)
    observed.found(refusal)


def test_new_approvers_count_from_the_resume_that_brought_them(world: World) -> None:
    approve(world, "anna")
    write(world, approval=BOSS)
    world.clock.advance(dt.timedelta(minutes=1))
    world.control.resume(NAME, "the boss wants to see it")
    world.clock.advance(dt.timedelta(minutes=1))
    assert world.standings.of(NAME).state is CampaignState.validated
    for way in ways(world):
        with pytest.raises(ApprovalError, match=r"is not approved; .*by boss"):
            way()
    approve(world, "boss")
    assert not world.release().publish(NAME).already


def test_a_specification_that_cannot_be_read_any_more_is_not_published(world: World) -> None:
    approve(world, "anna")
    (world.folder / "fix.yaml").write_text("backfill_id: [", encoding="utf-8")
    with pytest.raises(ApprovalError, match=r"can no longer be read: .*; fix or restore the file"):
        world.release().publish(NAME)


def test_a_file_that_is_gone_blocks_nothing_and_is_reported_as_gone(world: World) -> None:
    assert world.standings.of(NAME).uncompared == ""
    (world.folder / "fix.yaml").unlink()
    standing = world.standings.of(NAME)
    assert standing.uncompared == f"its file {world.folder / 'fix.yaml'} is missing: not compared with the plan"
    assert standing.drift == ""
    approve(world, "anna")
    world.release().publish(NAME)
    assert world.standings.of(NAME).uncompared == ""


def test_a_campaign_that_was_rolled_back_is_published_again_by_its_old_rules(world: World) -> None:
    approve(world, "anna")
    release = world.release().publish(NAME).outcome.release
    write(world, approval=BOSS)
    assert world.standings.of(NAME).drift == ""
    world.campaign_rollback().execute(release, "not yet")
    world.clock.advance(dt.timedelta(minutes=1))
    # No resume could plan it again: its unit is over.
    assert world.phase() is Phase.running
    approve(world, "anna")
    assert not world.release().publish(NAME).already
