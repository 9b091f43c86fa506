"""A command of a campaign dies between any two of its steps; repeated, it reaches the same end, and nothing happens twice."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from backfill_assets.campaign.state import Action, CampaignState, Phase
from backfill_assets.core.errors import ApprovalError, CampaignError, RollbackError
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets_tests.harness.specifications import CANARIES, DAYS, NAME, SIX_DAYS, specification, with_canaries
from backfill_assets_tests.harness.world import World, explained, repaired
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.control.campaign_crash import COMMANDS, KeptScheduler, Order, died, world_of

pytestmark = pytest.mark.slow

REST = tuple(sorted(set(SIX_DAYS) - set(CANARIES)))
# The locks and leases of the dead process expire.
LATER = dt.timedelta(minutes=5)
BOTH = ("orders", "sales")
OLD, NEW = {d: [1] for d in DAYS}, {d: [2] for d in DAYS}


def deaths(observed: Observed, order: Order) -> Iterator[tuple[str, Order]]:
    """Die before each change of a command, each time in a copy of the folder; yields the call, and the order for later."""
    for at in count(1):
        folder = order.folder.with_name(f"{order.folder.name}_{at}")
        shutil.copytree(order.folder, folder)
        own = replace(order, folder=folder, at=at)
        call = died(own)
        if not call:
            return
        observed.injected(f"kill -9 of {order.command} of a campaign before {call}")
        yield call, replace(own, now=own.now + LATER, at=at + 100)


def started(folder: Path) -> World:
    """A world whose campaign is planned."""
    folder.mkdir()
    world = World(folder, scheduler=KeptScheduler(folder), asked=with_canaries())
    world.plan()
    return world


def worked(world: World, failing: Sequence[dt.date] = ()) -> None:
    """The runs of the newest backfill have ended."""
    assert isinstance(world.scheduler, KeptScheduler)
    world.run(failing=failing)
    world.scheduler.keep()


def ready(world: World, command: str, code: str = "c0de") -> Order:
    assert isinstance(world.scheduler, KeptScheduler)
    world.scheduler.keep()
    world.close()
    return Order(world.folder, command, world.clock.now(), code=code)


def said_again(observed: Observed, world: World, command: str) -> None:
    """What happens after a crash: the sensor runs, the user repeats the command, the sensor runs."""
    found, refusal = explained(world), ""
    world.conduct()
    try:
        COMMANDS[command](world, "")
    except CampaignError as error:
        refusal = str(error)
    world.conduct()
    observed.found(*found, refusal)


def to_its_end(world: World) -> Counter[dt.date]:
    """Let all runs finish; returns how often each day was built since."""
    before = len(world.ledger.attempts())
    for _ in range(3):
        if world.scheduler.active(NAME):
            worked(world)
        world.conduct()
    assert world.standings.of(NAME).state is CampaignState.validated
    repaired(world)
    return Counter(d for attempt in world.ledger.attempts()[before:] for d in attempt.days)


def days_asked(world: World) -> list[tuple[dt.date, ...]]:
    world.scheduler.active(NAME)
    return [request.days for request in world.scheduler.requests]


@pytest.mark.faults
def test_a_launch_that_dies_claims_and_launches_its_days_once(observed: Observed, tmp_path: Path) -> None:
    calls = []
    for call, order in deaths(observed, ready(started(tmp_path / "a"), "launch")):
        calls.append(call)
        world = world_of(order)
        said_again(observed, world, "launch")
        assert (world.phase(), days_asked(world)) == (Phase.canary, [CANARIES])
        (unit,) = world.ledger.units()
        assert world.ledger.claims("sales", SIX_DAYS) == dict.fromkeys(SIX_DAYS, unit.id)
        assert to_its_end(world) == dict.fromkeys(SIX_DAYS, 1)
        assert days_asked(world) == [CANARIES, REST]
        assert world.actions().count(Action.launched) == 1
        world.close()
    assert calls == ["assign", "change_campaign", "launch", "note"]


@pytest.mark.faults
@pytest.mark.parametrize("code", ["c0de", "n3w"])
def test_a_resume_that_dies_launches_missing_days_once(observed: Observed, tmp_path: Path, code: str) -> None:
    world = started(tmp_path / "a")
    world.control.launch(NAME)
    worked(world)
    world.conduct()
    worked(world, failing=[REST[-1]])
    assert world.phase() is Phase.stopped
    missing = {f.day for f in world.conductor.publisher.blockers(world.ledger.campaign(NAME).unit)}
    calls = []
    for call, order in deaths(observed, ready(world, "resume", code)):
        calls.append(call)
        again = world_of(order)
        said_again(observed, again, "resume")
        asked = CANARIES if code == "n3w" else tuple(sorted(missing))
        assert days_asked(again) == [CANARIES, REST, asked]
        assert to_its_end(again) == dict.fromkeys(SIX_DAYS if code == "n3w" else missing, 1)
        assert again.actions().count(Action.resumed) == 1
        again.close()
    moved = ["set_contract"] if code == "n3w" else []
    assert calls == [*moved, "change_campaign", "launch", "note"]


@pytest.mark.faults
def test_a_pause_that_dies_leaves_no_run_in_the_queue(observed: Observed, tmp_path: Path) -> None:
    world = started(tmp_path / "a")
    world.control.launch(NAME)
    calls = []
    for call, order in deaths(observed, ready(world, "pause")):
        calls.append(call)
        again = world_of(order)
        said_again(observed, again, "pause")
        assert (again.phase(), again.scheduler.active(NAME)) == (Phase.paused, ())
        assert again.actions().count(Action.paused) == 1
        again.control.resume(NAME)
        assert to_its_end(again) == dict.fromkeys(SIX_DAYS, 1)
        again.close()
    assert calls == ["change_campaign", "cancel"]


@pytest.mark.faults
def test_a_conductor_that_dies_after_the_canaries_launches_the_rest_once(observed: Observed, tmp_path: Path) -> None:
    world = started(tmp_path / "a")
    world.control.launch(NAME)
    worked(world)
    calls = []
    for call, order in deaths(observed, ready(world, "conduct")):
        calls.append(call)
        again = world_of(order)
        said_again(observed, again, "conduct")
        assert days_asked(again) == [CANARIES, REST]
        assert to_its_end(again) == dict.fromkeys(REST, 1)
        assert again.actions().count(Action.canaries_passed) == 1
        again.close()
    assert calls == ["change_campaign", "launch", "note"]


@pytest.mark.faults
def test_a_conductor_that_dies_while_it_stops_a_campaign_cancels_its_runs_next_time(
    observed: Observed, tmp_path: Path
) -> None:
    world = started(tmp_path / "a")
    world.control.launch(NAME)
    calls = []
    for call, order in deaths(observed, ready(world, "conduct", code="n3w")):
        calls.append(call)
        again = world_of(order)
        said_again(observed, again, "conduct")
        assert (again.phase(), again.scheduler.active(NAME)) == (Phase.stopped, ())
        assert again.actions().count(Action.stopped) == 1
        repaired(again)
        again.close()
    assert calls == ["change_campaign", "cancel"]


@pytest.mark.faults
def test_an_approval_that_dies_is_stored_with_its_journal_or_not_at_all(observed: Observed, tmp_path: Path) -> None:
    world = World(tmp_path / "a", asked=specification())
    _, unit = world.validated()
    evidence = world.approval_of(unit.id).pending
    calls = []
    for call, order in deaths(observed, of_a_world(world, "approve", evidence)):
        calls.append(call)
        again = world_of(order)
        said_once_more(observed, again, order)
        assert [approval.evidence for approval in again.ledger.approvals(unit.id)] == [evidence]
        assert journalled(again, Action.approved) == 1
        again.close()
    assert calls == ["approve"]


@pytest.mark.faults
def test_a_publication_that_dies_is_complete_and_made_once_after_it_is_repeated(
    observed: Observed, tmp_path: Path
) -> None:
    world = World(tmp_path / "a", BOTH, asked=specification())
    for name in BOTH:
        world.released(OLD, name)
    _, unit = world.approved(targets=dict.fromkeys(BOTH, DAYS))
    calls = []
    for call, order in deaths(observed, replace(of_a_world(world, "publish"), names=BOTH)):
        calls.append(call)
        again = world_of(order)
        assert all(again.content(name) in (OLD, NEW) for name in BOTH)
        said_once_more(observed, again, order)
        assert [again.content(name) for name in BOTH] == [NEW, NEW]
        assert again.ledger.unit(unit.id).state is UnitState.published
        standing = Counter(manifest.dataset for manifest in in_effect(again, unit.id))
        assert standing == dict.fromkeys(BOTH, 1)
        assert journalled(again, Action.published) == 1
        assert again.data_releases.differing() == ()
        again.close()
    assert Counter(calls) == {
        "prepare": 2, "store_manifest": 2, "intend": 2, "commit": 2, "finalize_publication": 1, "seal": 2, "note": 1, "write": 1,
    }  # fmt: skip


@pytest.mark.faults
def test_a_rollback_that_dies_is_done_once_after_it_is_repeated(observed: Observed, tmp_path: Path) -> None:
    world = World(tmp_path / "a", asked=specification())
    world.released(OLD)
    _, unit = world.approved()
    release = world.release().publish(NAME).outcome.release
    calls = []
    for call, order in deaths(observed, of_a_world(world, "rollback", release)):
        calls.append(call)
        again = world_of(order)
        assert again.content() in (OLD, NEW)
        said_once_more(observed, again, order)
        assert again.content() == OLD
        assert again.ledger.unit(unit.id).state is UnitState.rolled_back
        assert [hold.target[1] for hold in again.ledger.holds("sales")] == list(DAYS)
        back = [r for r in again.ledger.releases(unit=unit.id) if r.manifest.kind is ReleaseKind.rollback]
        assert [r.state for r in back if r.state is not ReleaseState.abandoned] == [ReleaseState.finalized]
        assert journalled(again, Action.rolled_back) == 1
        assert again.data_releases.differing() == ()
        again.close()
    assert calls == ["store_manifest", "intend", "commit", "hold", "finalize", "note", "append"]


def of_a_world(world: World, command: str, target: str = "") -> Order:
    world.clock.advance(dt.timedelta(minutes=1))
    world.close()
    return Order(world.folder, command, world.clock.now(), target=target)


def said_once_more(observed: Observed, world: World, order: Order) -> None:
    """The same command again: it does the rest, or says that all is done."""
    observed.found(*explained(world))
    try:
        COMMANDS[order.command](world, order.target)
    except ApprovalError as error:
        assert "is already approved" in str(error)  # noqa: PT017  # only some of the deaths end so
    except RollbackError as error:
        assert "are already as they were before it" in str(error)  # noqa: PT017  # the same
    repaired(world)


def journalled(world: World, action: Action) -> int:
    return [entry.action for entry in world.ledger.journal(NAME)].count(action)


def in_effect(world: World, unit: str) -> list[object]:
    true = [r.manifest for r in world.ledger.releases(unit=unit) if r.state is ReleaseState.finalized]
    undone = {manifest.undoes for manifest in true}
    return [m for m in true if m.kind is ReleaseKind.publish and m.release not in undone]
