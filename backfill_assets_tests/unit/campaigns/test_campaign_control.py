"""A campaign from launch to validated: canaries first, stops by itself, goes on with what is missing and nothing else."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.campaigns.conducting.gatekeeper import Batch
from backfill_assets.domain.campaign import Action, CampaignState, JournalEntry, Knobs, Phase
from backfill_assets.domain.errors import CampaignError, ClaimedDaysError
from backfill_assets.domain.gate import Admitted, Halts, Waits
from backfill_assets.domain.specification import Notice
from backfill_assets.domain.units import UNIT_TAG, UnitState
from backfill_assets.domain.work import Attempt, AttemptState
from backfill_assets.ledger import SqlLedger
from backfill_assets_tests.told import Told
from backfill_assets_tests.unit.campaigns.site import CANARIES, DAYS, ID, Site

pytestmark = pytest.mark.slow


class DiesBeforeTheCampaignChanges:
    """A ledger whose process ends right before a campaign is changed."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        if name == "change_campaign":
            raise KeyboardInterrupt
        return getattr(self._ledger, name)


REST = tuple(sorted(set(DAYS) - set(CANARIES)))
HOUR = dt.timedelta(hours=1)


def test_a_launch_claims_all_days_and_runs_the_canaries_alone(site: Site) -> None:
    launched = site.control.launch(ID)
    assert launched.phase is Phase.canary
    assert set(site.ledger.claims("sales", DAYS).values()) == {launched.unit}
    (request,) = site.scheduler.requests
    assert request.days == CANARIES
    assert dict(request.layers) == {"sales": ("raw", "staging", "shadow")}
    assert request.tags[UNIT_TAG] == launched.unit
    assert [notice for notice, _ in site.told] == [Notice.announced, Notice.launched]


def test_after_the_canaries_the_rest_follows_and_then_the_campaign_is_validated(site: Site) -> None:
    site.control.launch(ID)
    assert site.conduct() == ""
    site.run()
    site.conduct()
    assert site.phase() is Phase.running
    assert site.scheduler.requests[-1].days == REST
    site.run()
    assert "validated" in site.conduct()
    assert site.conduct() == ""
    assert site.standings.of(ID).state is CampaignState.validated
    assert site.actions() == [
        Action.planned, Action.launched, Action.backfill, Action.canaries_passed, Action.backfill, Action.validated,
    ]  # fmt: skip
    assert site.told[-1][0] is Notice.validated


def test_canary_only_stops_after_the_canaries_and_resume_runs_the_rest(site: Site) -> None:
    site.control.launch(ID, canary_only=True)
    site.run()
    site.conduct()
    assert site.phase() is Phase.paused
    site.control.resume(ID)
    assert site.scheduler.requests[-1].days == REST


def test_a_failed_canary_stops_the_campaign_and_nothing_else_is_launched(site: Site) -> None:
    site.control.launch(ID)
    site.run(failing=CANARIES[:1])
    assert site.phase() is Phase.stopped
    site.conduct()
    assert len(site.scheduler.requests) == 1
    assert site.told[-1][0] is Notice.stopped
    assert site.standings.of(ID).days[("sales", CANARIES[0])] == "failed"


def test_resume_runs_what_is_missing_or_failed_and_nothing_else(site: Site) -> None:
    site.control.launch(ID)
    site.run()
    site.conduct()
    site.run(failing=[REST[3]])
    before = {d: e.hash for d, e in site.evidence().items() if e.passed}
    assert site.phase() is Phase.stopped
    assert {f.day for f in site.control.lacking(ID)} == {REST[3]}
    site.control.resume(ID, "the file was delivered again")
    assert site.scheduler.requests[-1].days == (REST[3],)
    site.run()
    site.conduct()
    assert site.standings.of(ID).state is CampaignState.validated
    assert {d: site.evidence()[d].hash for d in before} == before


def test_a_backfill_that_ends_without_its_days_stops_the_campaign_and_says_why(site: Site) -> None:
    site.control.launch(ID)
    site.scheduler.failed_of = "run 1234: the server is gone"
    site.run(but=CANARIES)
    assert "the server is gone" in site.conduct()
    assert site.phase() is Phase.stopped


def test_a_cancelled_backfill_stops_the_campaign(site: Site) -> None:
    site.control.launch(ID)
    site.run(but=CANARIES)
    assert "cancelled in Dagster?" in site.conduct()


def test_a_paused_campaign_starts_no_batch_and_leaves_the_queue(site: Site) -> None:
    site.control.launch(ID)
    site.control.pause(ID, "month end")
    assert not isinstance(site.gatekeeper.ask(ID), Admitted)
    assert site.scheduler.active(ID) == ()
    assert site.conduct() == ""
    site.control.resume(ID)
    assert site.scheduler.requests[-1].days == CANARIES


def test_a_pause_lets_the_batch_at_work_end_before_its_backfill_is_cancelled(site: Site) -> None:
    site.control.launch(ID)
    batch = Batch("sales", CANARIES)
    attempt = site.gatekeeper.begin(ID, batch, "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    site.control.pause(ID, "month end")
    assert site.scheduler.active(ID) == ("b1",)
    site.ledger.end_attempt(attempt.number, AttemptState.done)
    assert "cancelled 1" in site.conduct()
    assert site.scheduler.active(ID) == ()


def test_a_run_that_ended_before_a_shut_gate_is_launched_again_when_it_opens(site: Site) -> None:
    site.scheduler.live = ()
    site.control.launch(ID)
    site.scheduler.live = ("live",)
    site.scheduler.at_work = []
    site.ledger.note(JournalEntry(ID, site.world.clock.now(), "the gate", Action.waits, "live runs"))
    assert site.conduct() == ""
    assert len(site.scheduler.requests) == 1
    site.scheduler.live = ()
    assert "launched backfill b2" in site.conduct()


def test_knobs_act_on_the_next_batch_and_are_recorded(site: Site) -> None:
    site.control.launch(ID)
    site.run()
    site.conduct()
    site.control.set(ID, "the night is quiet", partitions_per_batch=4)
    assert site.run() == [REST]
    entry = next(e for e in site.ledger.journal(ID) if e.action is Action.set)
    assert entry.reason == "the night is quiet"
    assert entry.detail["after"] == {"max_concurrency": 1, "partitions_per_batch": 4}


def test_of_two_operators_who_turn_a_knob_each_neither_undoes_the_other(site: Site) -> None:
    both = site.control, site.control
    both[0].set(ID, "faster", max_concurrency=4)
    both[1].set(ID, "larger", partitions_per_batch=14)
    assert site.campaign().knobs == Knobs(4, 14)
    first, second = (str(e) for e in site.ledger.journal(ID) if e.action is Action.set)
    assert first.endswith("UTC (max_concurrency 1 → 4): faster")
    assert second.endswith("UTC (partitions_per_batch 2 → 14): larger")


def test_a_knob_below_one_is_refused(site: Site) -> None:
    with pytest.raises(CampaignError, match="write max_concurrency from 1 to 100"):
        site.control.set(ID, "", max_concurrency=0)


def test_of_two_batches_that_ask_at_once_only_one_is_let_in(site: Site) -> None:
    site.control.launch(ID)
    found: list[object] = []
    start = threading.Barrier(2)

    def ask(d: dt.date) -> None:
        start.wait()
        found.append(site.gatekeeper.begin(ID, Batch("sales", (d,)), f"run_{d}", HOUR))

    threads = [threading.Thread(target=ask, args=(d,)) for d in CANARIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in found) == ["Attempt", "Waits"]


@pytest.mark.faults
def test_code_that_moved_stops_the_campaign_and_resume_freezes_a_new_plan(told: Told, site: Site) -> None:
    told.injected("the code of a model moves while a campaign is at work")
    site.control.launch(ID)
    site.run()
    site.conduct()
    before = site.campaign().plan.fingerprint
    site.basis.codes["sales"] = "n3w"
    assert site.run() == []
    said = site.conduct()
    assert "no longer what the plan was made from" in said
    assert site.phase() is Phase.stopped
    resumed = site.control.resume(ID, "the fix was wrong")
    assert resumed.plan.fingerprint != before
    # Everything is stale now, the canaries included: they go first again.
    assert resumed.phase is Phase.canary
    assert site.scheduler.requests[-1].days == CANARIES
    for _ in range(2):
        site.run()
        site.conduct()
    site.world.release().publish(ID)
    assert site.world.content() == {d: [d.day, d.day] for d in DAYS}
    assert site.world.examiner().examine() == ()
    told.found(said, f"resumed with the canaries {CANARIES[0]} and {len(CANARIES) - 1} others")


def test_a_day_whose_input_moved_after_the_end_is_only_marked_stale(site: Site) -> None:
    site.control.launch(ID)
    for _ in range(2):
        site.run()
        site.conduct()
    site.basis.changed["sales", REST[0]] = "delivered again"
    assert site.conduct() == ""
    assert site.phase() is Phase.running
    assert site.standings.of(ID).days == {("sales", REST[0]): "stale"}
    assert site.standings.of(ID).state is CampaignState.stale
    site.control.resume(ID)
    assert site.scheduler.requests[-1].days == (REST[0],)
    site.run()
    site.conduct()
    assert site.standings.of(ID).state is CampaignState.validated


def test_a_passed_day_that_goes_stale_while_the_others_run_stops_nothing(site: Site) -> None:
    site.control.launch(ID)
    site.run()
    site.basis.changed["sales", CANARIES[0]] = "delivered again"
    site.conduct()
    # The day comes along with the others: it lacks fresh evidence like them.
    assert site.scheduler.requests[-1].days == tuple(sorted((CANARIES[0], *REST)))
    site.run()
    site.basis.changed["sales", REST[1]] = "delivered again"
    assert "something behind sales" in site.conduct()
    assert site.conduct() == ""
    assert site.phase() is Phase.running
    assert site.standings.of(ID).state is CampaignState.stale
    assert len(site.scheduler.requests) == 2


def test_a_resume_of_a_validated_campaign_lets_nothing_be_computed_again_by_itself(site: Site) -> None:
    site.control.launch(ID)
    for _ in range(2):
        site.run()
        site.conduct()
    site.control.resume(ID, "to be sure")
    assert site.standings.of(ID).state is CampaignState.validated
    assert [notice for notice, _ in site.told].count(Notice.validated) == 1
    site.basis.changed["sales", REST[0]] = "delivered again"
    assert site.conduct() == ""
    assert site.standings.of(ID).state is CampaignState.stale
    assert len(site.scheduler.requests) == 2
    site.control.resume(ID, "the new file is right")
    assert site.scheduler.requests[-1].days == (REST[0],)


def test_a_failure_behind_a_shut_gate_still_stops_the_campaign(site: Site) -> None:
    site.control.launch(ID)
    site.scheduler.at_work = []
    now = site.world.clock.now()
    site.ledger.note(JournalEntry(ID, now, "the gate", Action.waits, "live runs", {"run": "run_1"}))
    site.scheduler.failed_of = "run 9: the model fails"
    assert "the model fails" in site.conduct()
    assert site.phase() is Phase.stopped


def test_the_runs_behind_one_that_gave_up_leave_the_queue(site: Site) -> None:
    site.control.launch(ID)
    now = site.world.clock.now()
    site.ledger.note(JournalEntry(ID, now, "the gate", Action.waits, "blackout window", {"run": "run_9"}))
    assert "cancelled 1" in site.conduct()
    site.scheduler.failed_of = "run 9: the gate is shut"
    assert "launched backfill b2" in site.conduct()


def test_a_campaign_that_has_passed_is_not_stopped_by_its_budget(tmp_path: Path) -> None:
    site = Site(tmp_path, budget={"wall_time": "1s"})
    site.plan()
    site.control.launch(ID)
    site.run()
    site.conduct()
    site.run()
    attempt = site.gatekeeper.begin(ID, Batch("sales", DAYS[:1]), "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    site.world.clock.advance(dt.timedelta(seconds=2))
    site.ledger.end_attempt(attempt.number, AttemptState.done)
    assert "validated" in site.conduct()
    site.world.close()


def test_bytes_count_from_the_start_of_a_batch_however_it_ends(tmp_path: Path) -> None:
    site = Site(tmp_path, budget={"bytes_read_per_day": "5 KB"}, max_concurrency=9)
    site.world.released({d: [1, 2, 3] for d in DAYS})
    site.plan()
    site.control.launch(ID)
    site.control.set(ID, "", max_concurrency=9)
    found = site.gatekeeper.begin(ID, Batch("sales", DAYS[:2]), "run_1", HOUR)
    assert isinstance(found, Attempt)
    assert found.bytes_read > 1_000
    site.ledger.end_attempt(found.number, AttemptState.failed)
    assert site.gatekeeper.traffic(site.campaign()).bytes_today == found.bytes_read
    assert isinstance(site.gatekeeper.begin(ID, Batch("sales", DAYS[2:4]), "run_2", HOUR), Halts)
    site.world.close()


def test_a_spent_budget_stops_the_campaign(tmp_path: Path) -> None:
    site = Site(tmp_path, budget={"wall_time": "1s"})
    site.plan()
    site.control.launch(ID)
    attempt = site.gatekeeper.begin(ID, Batch("sales", CANARIES), "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    site.world.clock.advance(dt.timedelta(seconds=2))
    site.ledger.end_attempt(attempt.number, AttemptState.done)
    assert "wall_time: 1s" in site.conduct()
    assert site.phase() is Phase.stopped
    assert site.scheduler.active(ID) == ()
    site.world.close()


def test_of_two_operators_who_launch_one_wins_and_the_other_is_told(site: Site) -> None:
    site.control.launch(ID)
    with pytest.raises(CampaignError, match=r"is canary \(launched by ada at .*launch needs one"):
        site.control.launch(ID)
    assert len(site.scheduler.requests) == 1


def test_a_launch_that_died_after_it_claimed_the_days_can_be_repeated(site: Site) -> None:
    died = replace(site.control, ledger=DiesBeforeTheCampaignChanges(site.ledger))
    with pytest.raises(KeyboardInterrupt):
        died.launch(ID)
    (unit,) = site.ledger.units()
    assert site.control.launch(ID).unit == unit.id


def test_a_launch_that_died_before_its_backfill_is_completed_by_the_conductor(site: Site) -> None:
    control = site.control
    site.scheduler.live = ("live",)
    control.launch(ID)
    assert site.scheduler.requests == []
    site.scheduler.live = ()
    assert "launched backfill b1" in site.conduct()


def test_days_of_another_open_unit_are_refused_by_name(site: Site) -> None:
    other = site.world.open_unit({"sales": DAYS[:1]})
    with pytest.raises(ClaimedDaysError, match=other.id):
        site.control.launch(ID)
    assert site.phase() is Phase.planned


def test_a_campaign_whose_unit_was_discarded_takes_no_further_step(site: Site) -> None:
    unit = site.control.launch(ID).unit
    site.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    assert site.conduct() == ""
    assert site.conductor.waiting() == ()
    assert site.standings.of(ID).state is CampaignState.discarded


def test_the_floor_of_progress_lets_one_batch_through_beside_a_busy_live_pipeline(tmp_path: Path) -> None:
    site = Site(tmp_path, min_progress="1 batch per hour")
    site.plan()
    site.control.launch(ID)
    site.scheduler.live = ("live",)
    assert isinstance(site.gatekeeper.ask(ID), Waits)
    site.world.clock.advance(HOUR)
    attempt = site.gatekeeper.begin(ID, Batch("sales", CANARIES[:1]), "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    site.ledger.end_attempt(attempt.number, AttemptState.done)
    assert isinstance(site.gatekeeper.ask(ID), Waits)
    site.world.close()


def test_a_campaign_whose_release_stands_is_neither_paused_nor_stopped_nor_resumed(site: Site) -> None:
    site.control.launch(ID)
    for _ in range(2):
        site.run()
        site.conduct()
    site.world.release().publish(ID)
    before = site.campaign(), site.actions()
    for command in (site.control.pause, site.control.stop, site.control.resume):
        with pytest.raises(CampaignError, match=r"is published .*is not possible any more"):
            command(ID, "too late")
    with pytest.raises(CampaignError, match="set is not possible any more"):
        site.control.set(ID, "too late", max_concurrency=2)
    assert (site.campaign(), site.actions()) == before
