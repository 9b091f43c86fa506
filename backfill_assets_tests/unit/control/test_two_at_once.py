"""Two operators do the same at the same moment: one wins, the other learns who did what, and it happens once."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Action, Approval, Campaign
from backfill_assets.core.errors import ApprovalError, BackfillError, CampaignError, RollbackError
from backfill_assets_tests.harness.actors import Scheduler
from backfill_assets_tests.harness.specifications import CANARIES, DAYS, NAME, SIX_DAYS, specification, with_canaries
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed

OPERATORS = ("carl", "eve")


def at_once(act: Callable[[str, int, threading.Barrier], object]) -> dict[str, object]:
    """The result or error of each operator; `act` starts a separate process and waits at the barrier."""
    found: dict[str, object] = {}
    barrier = threading.Barrier(len(OPERATORS))

    def run(user: str, first_id: int) -> None:
        try:
            found[user] = act(user, first_id, barrier)
        except BackfillError as error:
            found[user] = error

    threads = [threading.Thread(target=run, args=(user, 100 * i)) for i, user in enumerate(OPERATORS, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def winner_and_loser(found: dict[str, object]) -> tuple[str, str]:
    """The names of both operators; exactly one was refused."""
    losers = [user for user, got in found.items() if isinstance(got, BackfillError)]
    (winner,) = set(OPERATORS) - set(losers)
    return winner, losers[0]


@pytest.mark.faults
def test_one_of_two_launches_wins_and_the_campaign_is_announced_once(observed: Observed, tmp_path: Path) -> None:
    observed.injected("two operators launch the same campaign at once")
    scheduler = Scheduler()
    world = World(tmp_path, scheduler=scheduler, asked=with_canaries())
    world.plan()
    notices: list[tuple[str, Notice, bool]] = []

    def launch(user: str, first_id: int, barrier: threading.Barrier) -> Campaign:
        own = World(tmp_path, first_id=first_id, scheduler=scheduler, asked=with_canaries())

        def notify(_: Campaign, notice: Notice, _text: str) -> None:
            notices.append((user, notice, bool(own.ledger.units())))

        control = replace(own.control, warehouse=own.warehouse(user), notify=notify)
        barrier.wait()
        try:
            return control.launch(NAME)
        finally:
            own.close()

    found = at_once(launch)
    winner, loser = winner_and_loser(found)
    assert isinstance(found[loser], CampaignError)
    assert f"launched by {winner} at" in str(found[loser])
    # It is announced before its days are claimed, and only by the operator who launches it.
    assert notices == [(winner, Notice.announced, False), (winner, Notice.launched, True)]
    assert len(world.ledger.units()) == 1
    assert [request.days for request in scheduler.requests] == [CANARIES]
    assert world.actions().count(Action.launched) == 1
    assert world.doctor().examine() == ()
    assert built_by(world) == dict.fromkeys(SIX_DAYS, 1)
    world.release().publish(NAME)
    assert world.content() == {d: [d.day, d.day] for d in SIX_DAYS}
    assert world.doctor().examine() == ()
    world.close()
    observed.found(found[loser])


def built_by(world: World) -> Counter[dt.date]:
    """The runs of the launch finish; returns how often each day was built."""
    for _ in (CANARIES, "the rest"):
        world.run()
        world.conduct()
    return Counter(d for attempt in world.ledger.attempts() for d in attempt.days)


@pytest.mark.faults
def test_one_of_two_approvals_counts_and_the_other_is_refused(
    observed: Observed, campaigns: World, tmp_path: Path
) -> None:
    observed.injected("two operators approve the same evidence at once")
    campaign, unit = campaigns.validated(approval={"required": True, "by": list(OPERATORS)})
    seen = campaigns.approval_of(unit.id).pending

    def approve(user: str, first_id: int, barrier: threading.Barrier) -> Approval:
        own = World(tmp_path, first_id=first_id, asked=specification())
        barrier.wait()
        try:
            return own.approving(user).approve(NAME, seen)
        finally:
            own.close()

    found = at_once(approve)
    winner, loser = winner_and_loser(found)
    assert isinstance(found[loser], ApprovalError)
    assert f"already approved (approved by {winner} at" in str(found[loser])
    assert [given.identity for given in campaigns.ledger.approvals(unit.id)] == [winner]
    assert campaigns.actions(campaign).count(Action.approved) == 1
    campaigns.release().publish(NAME)
    assert campaigns.content() == {d: [2] for d in DAYS}
    assert campaigns.doctor().examine() == ()
    observed.found(found[loser])


@pytest.mark.faults
def test_one_of_two_rollbacks_undoes_the_release_and_the_other_is_refused(
    observed: Observed, campaigns: World, tmp_path: Path
) -> None:
    observed.injected("two operators roll the same release back at once")
    campaigns.released({d: [1] for d in DAYS})
    campaign, _ = campaigns.approved()
    release = campaigns.release().publish(NAME).outcome.release

    def undo(user: str, first_id: int, barrier: threading.Barrier) -> object:
        own = World(tmp_path, first_id=first_id, asked=specification())
        barrier.wait()
        try:
            return own.campaign_rollback(user).execute(release, "margins look odd")
        finally:
            own.close()

    found = at_once(undo)
    winner, loser = winner_and_loser(found)
    assert isinstance(found[loser], RollbackError)
    assert f"by {winner} at" in str(found[loser])
    assert campaigns.content() == {d: [1] for d in DAYS}
    assert [r.manifest.undoes for r in campaigns.ledger.releases()].count(release) == 1
    assert campaigns.actions(campaign).count(Action.rolled_back) == 1
    assert campaigns.doctor().examine() == ()
    observed.found(found[loser])
