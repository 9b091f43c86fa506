"""Several operators change one campaign at the same moment: one wins, all others learn who did what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier

import pytest

from backfill_assets.campaign.state import Action, Campaign, Phase
from backfill_assets.core.errors import CampaignError
from backfill_assets.ledger.open import Ledger
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.ledgers import empty_postgres_ledger, opened_ledger
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, an_entry
from backfill_assets_tests.unit.ledger.processes import together

pytestmark = pytest.mark.slow

PROCESSES = 3
TURNS = 12

# In even turns the winner's phase stops the others, in odd turns only its revision does.
LAUNCH_AT_THE_SAME_MOMENT = """
import dataclasses, json, sys, time
from pathlib import Path
from backfill_assets.campaign.state import Action, Phase
from backfill_assets.core.errors import CampaignError
from backfill_assets.ledger.open import open_ledger
from backfill_assets_tests.unit.ledger.campaign_samples import an_entry
from backfill_assets.system import SystemClock

url, folder, me, turns = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ledger = open_ledger(url, SystemClock())
(folder / f"ready-{me}").touch()
while not (folder / "go").exists():
    time.sleep(0.002)
everybody, deadline = len(list(folder.glob("ready-*"))), time.monotonic() + 60
for turn in range(turns):
    campaign = ledger.campaign(f"race-{turn}")
    (folder / f"seen-{turn}-{me}").touch()
    while len(list(folder.glob(f"seen-{turn}-*"))) < everybody and time.monotonic() < deadline:
        pass
    changed = dataclasses.replace(campaign, phase=Phase.running) if turn % 2 == 0 else campaign.turned(max_concurrency=9)
    told = ""
    try:
        ledger.change_campaign(changed, {Phase.planned}, an_entry(Action.launched, f"user-{me}", campaign=campaign.id))
    except CampaignError as refused:
        told = str(refused)
    print(json.dumps({"turn": turn, "user": f"user-{me}", "told": told}))
"""


@dataclass(frozen=True)
class Race:
    """What is left in the ledger, and the answer to each process, by turn and user."""

    ledger: Ledger
    observed: dict[int, dict[str, str]]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def race(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    folder = tmp_path_factory.mktemp("race")
    url = f"sqlite:///{folder}/state/ledger.db"
    if request.param == "postgres":
        url = empty_postgres_ledger(str(request.getfixturevalue("postgres_cluster")), "campaign_race")
    ledger = opened_ledger(url, SystemClock())
    for turn in range(TURNS):
        ledger.add_campaign(a_campaign(f"race-{turn}"), an_entry(Action.planned, campaign=f"race-{turn}"))
    observed: dict[int, dict[str, str]] = {turn: {} for turn in range(TURNS)}
    for lines in together(LAUNCH_AT_THE_SAME_MOMENT, url, folder, PROCESSES, TURNS):
        for line in map(json.loads, lines):
            observed[line["turn"]][line["user"]] = line["told"]
    yield Race(ledger, observed)
    ledger.close()


def test_exactly_one_of_several_processes_that_change_a_campaign_together_wins(race: Race) -> None:
    for turn, observed in race.observed.items():
        assert len(observed) == PROCESSES
        [winner] = [user for user, refusal in observed.items() if not refusal]
        assert [entry.by for entry in race.ledger.journal(f"race-{turn}")] == ["ada", winner]
        assert race.ledger.campaign(f"race-{turn}").revision == 1


def test_each_process_that_lost_knows_who_won(race: Race) -> None:
    for turn, observed in race.observed.items():
        entry = race.ledger.journal(f"race-{turn}")[-1]
        refusals = [refusal for refusal in observed.values() if refusal]
        assert len(refusals) == PROCESSES - 1
        for refusal in refusals:
            assert refusal.startswith(
                f"campaign race-{turn} is running" if turn % 2 == 0 else f"campaign race-{turn} was"
            )
            assert f"({entry})" in refusal


def test_exactly_one_of_several_threads_that_turn_knobs_together_wins(ledger: Ledger) -> None:
    seen = ledger.add_campaign(a_campaign(), an_entry(Action.planned))
    start = Barrier(6)

    def turn(number: int) -> str:
        start.wait(timeout=60)
        entry = an_entry(Action.set, f"user-{number}")
        try:
            ledger.change_campaign(seen.turned(max_concurrency=number + 10), {Phase.planned}, entry)
        except CampaignError as refused:
            return str(refused)
        return ""

    with ThreadPoolExecutor(6) as pool:
        observed = list(pool.map(turn, range(6)))
    [winner] = [number for number, refusal in enumerate(observed) if not refusal]
    assert ledger.campaign("fix-1").knobs.max_concurrency == winner + 10
    assert all(f"(set by user-{winner} at" in refusal for number, refusal in enumerate(observed) if number != winner)


def test_only_one_of_a_launch_and_a_concurrent_plan_wins(ledger: Ledger) -> None:
    """The user who launches has seen the plan that is launched."""
    for turn in range(6):
        seen = ledger.add_campaign(a_campaign(f"race-{turn}"), an_entry(Action.planned, campaign=f"race-{turn}"))
        start = Barrier(2)

        def launch(seen: Campaign = seen, start: Barrier = start) -> Campaign:
            start.wait(timeout=60)
            launched = replace(seen, phase=Phase.running)
            return ledger.change_campaign(launched, {Phase.planned}, an_entry(Action.launched, campaign=launched.id))

        def plan(seen: Campaign = seen, start: Barrier = start) -> Campaign:
            start.wait(timeout=60)
            again = replace(seen, file="backfills/other.yaml")
            return ledger.add_campaign(again, an_entry(Action.planned, campaign=again.id))

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(launch), pool.submit(plan)]
        [refused] = [error for future in futures if (error := future.exception())]
        assert isinstance(refused, CampaignError)
        [won] = [future.result() for future in futures if not future.exception()]
        assert ledger.campaign(f"race-{turn}") == won
