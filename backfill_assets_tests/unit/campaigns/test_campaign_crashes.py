"""A command of a campaign dies between any two of its steps; said again, it comes to the same end, and nothing happens twice."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from backfill_assets.domain.campaign import Action, CampaignState, Phase
from backfill_assets.domain.errors import ApprovalError, CampaignError, RollbackError
from backfill_assets.domain.release import ReleaseKind, ReleaseState
from backfill_assets.domain.units import UnitState
from backfill_assets_tests.told import Told
from backfill_assets_tests.unit.campaigns.campaign_crash import (
    OF_A_SITE,
    OF_A_WORLD,
    KeptScheduler,
    Order,
    died,
    site_of,
    world_of,
)
from backfill_assets_tests.unit.campaigns.campaign_world import DAYS as RANGE
from backfill_assets_tests.unit.campaigns.campaign_world import NAME, CampaignWorld
from backfill_assets_tests.unit.campaigns.site import CANARIES, DAYS, ID, Site
from backfill_assets_tests.unit.campaigns.world import explained, mended

pytestmark = pytest.mark.slow

REST = tuple(sorted(set(DAYS) - set(CANARIES)))
# The locks and leases of the dead run out.
LATER = dt.timedelta(minutes=5)
BOTH = ("orders", "sales")
OLD, NEW = {d: [1] for d in RANGE}, {d: [2] for d in RANGE}


def deaths(told: Told, order: Order) -> Iterator[tuple[str, Order]]:
    """Die before each change that a command makes, each time in a copy of the folder; the call, and the order for later."""
    for at in count(1):
        folder = order.folder.with_name(f"{order.folder.name}_{at}")
        shutil.copytree(order.folder, folder)
        own = replace(order, folder=folder, at=at)
        call = died(own)
        if not call:
            return
        told.injected(f"kill -9 of {order.command} of a campaign before {call}")
        yield call, replace(own, now=own.now + LATER, at=at + 100)


def started(folder: Path) -> Site:
    """A site whose campaign is planned."""
    folder.mkdir()
    site = Site(folder, scheduler=KeptScheduler(folder))
    site.plan()
    return site


def worked(site: Site, failing: Sequence[dt.date] = ()) -> None:
    """The runs of the newest backfill have ended."""
    assert isinstance(site.scheduler, KeptScheduler)
    site.run(failing=failing)
    site.scheduler.keep()


def ready(site: Site, command: str, code: str = "c0de") -> Order:
    assert isinstance(site.scheduler, KeptScheduler)
    site.scheduler.keep()
    site.world.close()
    return Order(site.folder, command, site.world.clock.now(), code=code)


def said_again(told: Told, site: Site, command: str) -> None:
    """What happens after a crash: the sensor looks, people say it again, the sensor looks."""
    found, refusal = explained(site.world), ""
    site.conduct()
    try:
        OF_A_SITE[command](site)
    except CampaignError as error:
        refusal = str(error)
    site.conduct()
    told.found(*found, refusal)


def to_its_end(site: Site) -> Counter[dt.date]:
    """Let all runs work to their end; how often each day was built since."""
    before = len(site.ledger.attempts())
    for _ in range(3):
        if site.scheduler.active(ID):
            worked(site)
        site.conduct()
    assert site.standings.of(ID).state is CampaignState.validated
    mended(site.world)
    return Counter(d for attempt in site.ledger.attempts()[before:] for d in attempt.days)


def days_asked(site: Site) -> list[tuple[dt.date, ...]]:
    site.scheduler.active(ID)
    return [request.days for request in site.scheduler.requests]


@pytest.mark.faults
def test_a_launch_that_dies_claims_and_launches_its_days_once(told: Told, tmp_path: Path) -> None:
    calls = []
    for call, order in deaths(told, ready(started(tmp_path / "a"), "launch")):
        calls.append(call)
        site = site_of(order)
        said_again(told, site, "launch")
        assert (site.phase(), days_asked(site)) == (Phase.canary, [CANARIES])
        (unit,) = site.ledger.units()
        assert site.ledger.claims("sales", DAYS) == dict.fromkeys(DAYS, unit.id)
        assert to_its_end(site) == dict.fromkeys(DAYS, 1)
        assert days_asked(site) == [CANARIES, REST]
        assert site.actions().count(Action.launched) == 1
        site.world.close()
    assert calls == ["assign", "change_campaign", "launch", "note"]


@pytest.mark.faults
@pytest.mark.parametrize("code", ["c0de", "n3w"])
def test_a_resume_that_dies_launches_what_lacks_once(told: Told, tmp_path: Path, code: str) -> None:
    site = started(tmp_path / "a")
    site.control.launch(ID)
    worked(site)
    site.conduct()
    worked(site, failing=[REST[-1]])
    assert site.phase() is Phase.stopped
    lacking = {f.day for f in site.control.lacking(ID)}
    calls = []
    for call, order in deaths(told, ready(site, "resume", code)):
        calls.append(call)
        again = site_of(order)
        said_again(told, again, "resume")
        asked = CANARIES if code == "n3w" else tuple(sorted(lacking))
        assert days_asked(again) == [CANARIES, REST, asked]
        assert to_its_end(again) == dict.fromkeys(DAYS if code == "n3w" else lacking, 1)
        assert again.actions().count(Action.resumed) == 1
        again.world.close()
    moved = ["set_contract"] if code == "n3w" else []
    assert calls == [*moved, "change_campaign", "launch", "note"]


@pytest.mark.faults
def test_a_pause_that_dies_leaves_no_run_in_the_queue(told: Told, tmp_path: Path) -> None:
    site = started(tmp_path / "a")
    site.control.launch(ID)
    calls = []
    for call, order in deaths(told, ready(site, "pause")):
        calls.append(call)
        again = site_of(order)
        said_again(told, again, "pause")
        assert (again.phase(), again.scheduler.active(ID)) == (Phase.paused, ())
        assert again.actions().count(Action.paused) == 1
        again.control.resume(ID)
        assert to_its_end(again) == dict.fromkeys(DAYS, 1)
        again.world.close()
    assert calls == ["change_campaign", "cancel"]


@pytest.mark.faults
def test_a_conductor_that_dies_after_the_canaries_launches_the_rest_once(told: Told, tmp_path: Path) -> None:
    site = started(tmp_path / "a")
    site.control.launch(ID)
    worked(site)
    calls = []
    for call, order in deaths(told, ready(site, "conduct")):
        calls.append(call)
        again = site_of(order)
        said_again(told, again, "conduct")
        assert days_asked(again) == [CANARIES, REST]
        assert to_its_end(again) == dict.fromkeys(REST, 1)
        assert again.actions().count(Action.canaries_passed) == 1
        again.world.close()
    assert calls == ["change_campaign", "launch", "note"]


@pytest.mark.faults
def test_a_conductor_that_dies_while_it_stops_a_campaign_takes_its_runs_away_next_time(
    told: Told, tmp_path: Path
) -> None:
    site = started(tmp_path / "a")
    site.control.launch(ID)
    calls = []
    for call, order in deaths(told, ready(site, "conduct", code="n3w")):
        calls.append(call)
        again = site_of(order)
        said_again(told, again, "conduct")
        assert (again.phase(), again.scheduler.active(ID)) == (Phase.stopped, ())
        assert again.actions().count(Action.stopped) == 1
        mended(again.world)
        again.world.close()
    assert calls == ["change_campaign", "cancel"]


@pytest.mark.faults
def test_an_approval_that_dies_is_there_with_its_journal_or_not_at_all(told: Told, tmp_path: Path) -> None:
    world = CampaignWorld(tmp_path / "a")
    _, unit = world.validated()
    evidence = world.approval_of(unit.id).pending
    calls = []
    for call, order in deaths(told, of_a_world(world, "approve", evidence)):
        calls.append(call)
        again = world_of(order)
        said_once_more(told, again, order)
        assert [approval.evidence for approval in again.ledger.approvals(unit.id)] == [evidence]
        assert journalled(again, Action.approved) == 1
        again.close()
    assert calls == ["approve"]


@pytest.mark.faults
def test_a_publication_that_dies_is_whole_and_there_once_after_it_is_said_again(told: Told, tmp_path: Path) -> None:
    world = CampaignWorld(tmp_path / "a", BOTH)
    for name in BOTH:
        world.released(OLD, name)
    _, unit = world.approved(targets=dict.fromkeys(BOTH, RANGE))
    calls = []
    for call, order in deaths(told, replace(of_a_world(world, "publish"), names=BOTH)):
        calls.append(call)
        again = world_of(order)
        assert all(again.content(name) in (OLD, NEW) for name in BOTH)
        said_once_more(told, again, order)
        assert [again.content(name) for name in BOTH] == [NEW, NEW]
        assert again.ledger.unit(unit.id).state is UnitState.published
        standing = Counter(manifest.dataset for manifest in in_effect(again, unit.id))
        assert standing == dict.fromkeys(BOTH, 1)
        assert journalled(again, Action.published) == 1
        assert again.data_releases.differing() == ()
        again.close()
    assert Counter(calls) == {
        "prepare": 2, "store_manifest": 2, "intend": 2, "commit": 2, "finalize": 2, "seal": 2, "note": 1, "write": 1,
    }  # fmt: skip


@pytest.mark.faults
def test_a_rollback_that_dies_is_done_once_after_it_is_said_again(told: Told, tmp_path: Path) -> None:
    world = CampaignWorld(tmp_path / "a")
    world.released(OLD)
    _, unit = world.approved()
    release = world.release().publish(NAME).outcome.release
    calls = []
    for call, order in deaths(told, of_a_world(world, "rollback", release)):
        calls.append(call)
        again = world_of(order)
        assert again.content() in (OLD, NEW)
        said_once_more(told, again, order)
        assert again.content() == OLD
        assert again.ledger.unit(unit.id).state is UnitState.rolled_back
        assert [hold.target[1] for hold in again.ledger.holds("sales")] == list(RANGE)
        back = [r for r in again.ledger.releases(unit=unit.id) if r.manifest.kind is ReleaseKind.rollback]
        assert [r.state for r in back if r.state is not ReleaseState.abandoned] == [ReleaseState.finalized]
        assert journalled(again, Action.rolled_back) == 1
        assert again.data_releases.differing() == ()
        again.close()
    assert calls == ["store_manifest", "intend", "commit", "hold", "finalize", "note", "write"]


def of_a_world(world: CampaignWorld, command: str, target: str = "") -> Order:
    world.clock.advance(dt.timedelta(minutes=1))
    world.close()
    return Order(world.folder, command, world.clock.now(), target=target)


def said_once_more(told: Told, world: CampaignWorld, order: Order) -> None:
    """The same command again: it does what is left, or says that all is done."""
    command: Callable[[CampaignWorld, str], object] = OF_A_WORLD[order.command]
    told.found(*explained(world))
    try:
        command(world, order.target)
    except ApprovalError as error:
        assert "is approved already" in str(error)  # noqa: PT017  # only some of the deaths end so
    except RollbackError as error:
        assert "are as they were before it already" in str(error)  # noqa: PT017  # the same
    mended(world)


def journalled(world: CampaignWorld, action: Action) -> int:
    return [entry.action for entry in world.ledger.journal(NAME)].count(action)


def in_effect(world: CampaignWorld, unit: str) -> list[object]:
    true = [r.manifest for r in world.ledger.releases(unit=unit) if r.state is ReleaseState.finalized]
    undone = {manifest.undoes for manifest in true}
    return [m for m in true if m.kind is ReleaseKind.publish and m.release not in undone]
