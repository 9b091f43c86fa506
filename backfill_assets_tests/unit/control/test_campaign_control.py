"""A campaign from launch to validated: canaries first, stops by itself, continues with missing days and nothing else."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_assets.campaign.gate import Admitted, Halts, Waits
from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Action, CampaignState, JournalEntry, Knobs, Phase
from backfill_assets.control.conductor import Batch
from backfill_assets.core.errors import CampaignError, ClaimedDaysError
from backfill_assets.core.unit import UNIT_TAG, Attempt, AttemptState, UnitState
from backfill_assets_tests.harness.between import Died, between, dies_at
from backfill_assets_tests.harness.specifications import CANARIES, NAME, SIX_DAYS, with_canaries
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed

pytestmark = pytest.mark.slow


REST = tuple(sorted(set(SIX_DAYS) - set(CANARIES)))
HOUR = dt.timedelta(hours=1)


def test_a_launch_claims_all_days_and_runs_the_canaries_alone(planned: World) -> None:
    launched = planned.control.launch(NAME)
    assert launched.phase is Phase.canary
    assert set(planned.ledger.claims("sales", SIX_DAYS).values()) == {launched.unit}
    (request,) = planned.scheduler.requests
    assert request.days == CANARIES
    assert dict(request.layers) == {"sales": ("raw", "staging", "shadow")}
    assert request.tags[UNIT_TAG] == launched.unit
    assert [notice for notice, _ in planned.notices] == [Notice.announced, Notice.launched]


def test_after_the_canaries_the_rest_follows_and_then_the_campaign_is_validated(planned: World) -> None:
    planned.control.launch(NAME)
    assert planned.conduct() == ""
    planned.run()
    planned.conduct()
    assert planned.phase() is Phase.running
    assert planned.scheduler.requests[-1].days == REST
    planned.run()
    assert "validated" in planned.conduct()
    assert planned.conduct() == ""
    assert planned.standings.of(NAME).state is CampaignState.validated
    assert planned.actions() == [
        Action.planned, Action.launched, Action.backfill, Action.canaries_passed, Action.backfill, Action.validated,
    ]  # fmt: skip
    assert planned.notices[-1][0] is Notice.validated


def test_canary_only_stops_after_the_canaries_and_resume_runs_the_rest(planned: World) -> None:
    planned.control.launch(NAME, canary_only=True)
    planned.run()
    planned.conduct()
    assert planned.phase() is Phase.paused
    planned.control.resume(NAME)
    assert planned.scheduler.requests[-1].days == REST


def test_a_failed_canary_stops_the_campaign_and_nothing_else_is_launched(planned: World) -> None:
    planned.control.launch(NAME)
    planned.run(failing=CANARIES[:1])
    assert planned.phase() is Phase.stopped
    planned.conduct()
    assert len(planned.scheduler.requests) == 1
    assert planned.notices[-1][0] is Notice.stopped
    assert planned.standings.of(NAME).days[("sales", CANARIES[0])] == "failed"


def test_a_batch_that_began_before_a_resume_does_not_stop_what_was_resumed(planned: World) -> None:
    planned.control.launch(NAME)
    entries = len(planned.ledger.journal(NAME))
    planned.conductor.halt(NAME, "2022-02-01 failed checks", entries)
    assert planned.phase() is Phase.stopped
    # The batch of the other canary is still running, with the wrong code; its backfill is active until it ends.
    planned.scheduler.at_work = ["b1"]
    planned.control.resume(NAME, "the model is corrected")
    assert len(planned.scheduler.requests) == 1
    planned.build_days(CANARIES[1:], failing=CANARIES[1:])
    planned.conductor.halt(NAME, "2022-02-06 failed checks", entries)
    assert planned.phase() is Phase.canary
    planned.scheduler.at_work = []
    assert "launched backfill b2" in planned.conduct()
    assert planned.scheduler.requests[-1].days == CANARIES
    # The batch that fails now began after the resume.
    planned.run(failing=CANARIES[:1])
    assert planned.phase() is Phase.stopped


def test_resume_runs_what_is_missing_or_failed_and_nothing_else(planned: World) -> None:
    planned.control.launch(NAME)
    planned.run()
    planned.conduct()
    planned.run(failing=[REST[3]])
    before = {d: e.hash for d, e in planned.evidence().items() if e.passed}
    assert planned.phase() is Phase.stopped
    assert {f.day for f in planned.conductor.publisher.blockers(planned.ledger.campaign(NAME).unit)} == {REST[3]}
    planned.control.resume(NAME, "the file was delivered again")
    assert planned.scheduler.requests[-1].days == (REST[3],)
    planned.run()
    planned.conduct()
    assert planned.standings.of(NAME).state is CampaignState.validated
    assert {d: planned.evidence()[d].hash for d in before} == before


def test_a_backfill_that_ends_without_its_days_stops_the_campaign_and_says_why(planned: World) -> None:
    planned.control.launch(NAME)
    planned.scheduler.failed_of = "run 1234: the server is gone"
    planned.run(but=CANARIES)
    assert "the server is gone" in planned.conduct()
    assert planned.phase() is Phase.stopped


def test_a_cancelled_backfill_stops_the_campaign(planned: World) -> None:
    planned.control.launch(NAME)
    planned.run(but=CANARIES)
    assert "cancelled in Dagster?" in planned.conduct()


def test_a_paused_campaign_starts_no_batch_and_leaves_the_queue(planned: World) -> None:
    planned.control.launch(NAME)
    planned.control.pause(NAME, "month end")
    assert not isinstance(planned.gatekeeper.ask(NAME), Admitted)
    assert planned.scheduler.active(NAME) == ()
    assert planned.conduct() == ""
    planned.control.resume(NAME)
    assert planned.scheduler.requests[-1].days == CANARIES


def test_a_pause_lets_the_running_batch_end_before_its_backfill_is_cancelled(planned: World) -> None:
    planned.control.launch(NAME)
    batch = Batch("sales", CANARIES)
    attempt = planned.gatekeeper.begin(NAME, batch, "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    planned.control.pause(NAME, "month end")
    assert planned.scheduler.active(NAME) == ("b1",)
    planned.ledger.end_attempt(attempt.number, AttemptState.done)
    assert "cancelled 1" in planned.conduct()
    assert planned.scheduler.active(NAME) == ()


def test_a_run_that_ended_at_a_closed_gate_is_launched_again_when_it_opens(planned: World) -> None:
    planned.scheduler.live = ()
    planned.control.launch(NAME)
    planned.scheduler.live = ("live",)
    planned.scheduler.at_work = []
    planned.ledger.note(JournalEntry(NAME, planned.clock.now(), "the gate", Action.waits, "live runs"))
    assert planned.conduct() == ""
    assert len(planned.scheduler.requests) == 1
    planned.scheduler.live = ()
    assert "launched backfill b2" in planned.conduct()


def test_knobs_act_on_the_next_batch_and_are_recorded(planned: World) -> None:
    planned.control.launch(NAME)
    planned.run()
    planned.conduct()
    planned.control.set(NAME, "the night is quiet", partitions_per_batch=4)
    assert planned.run() == [REST]
    entry = next(e for e in planned.ledger.journal(NAME) if e.action is Action.set)
    assert entry.reason == "the night is quiet"
    assert entry.detail["after"] == {"max_concurrency": 1, "partitions_per_batch": 4}


def test_two_operators_who_each_turn_a_knob_do_not_undo_each_other(planned: World) -> None:
    both = planned.control, planned.control
    both[0].set(NAME, "faster", max_concurrency=4)
    both[1].set(NAME, "larger", partitions_per_batch=14)
    assert planned.campaign().knobs == Knobs(4, 14)
    first, second = (str(e) for e in planned.ledger.journal(NAME) if e.action is Action.set)
    assert first.endswith("UTC (max_concurrency 1 → 4): faster")
    assert second.endswith("UTC (partitions_per_batch 2 → 14): larger")


def test_a_knob_below_one_is_refused(planned: World) -> None:
    with pytest.raises(CampaignError, match="write max_concurrency from 1 to 100"):
        planned.control.set(NAME, "", max_concurrency=0)


def test_only_one_of_two_batches_that_ask_together_may_start(planned: World) -> None:
    planned.control.launch(NAME)
    found: list[object] = []
    start = threading.Barrier(2)

    def ask(d: dt.date) -> None:
        start.wait()
        found.append(planned.gatekeeper.begin(NAME, Batch("sales", (d,)), f"run_{d}", HOUR))

    threads = [threading.Thread(target=ask, args=(d,)) for d in CANARIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in found) == ["Attempt", "Waits"]


@pytest.mark.faults
def test_changed_code_stops_the_campaign_and_resume_freezes_a_new_plan(observed: Observed, planned: World) -> None:
    observed.injected("the code of a model moves while a campaign is at work")
    planned.control.launch(NAME)
    planned.run()
    planned.conduct()
    before = planned.campaign().plan.fingerprint
    planned.basis.codes["sales"] = "n3w"
    assert planned.run() == []
    said = planned.conduct()
    assert "has changed since the plan" in said
    assert planned.phase() is Phase.stopped
    resumed = planned.control.resume(NAME, "the fix was wrong")
    assert resumed.plan.fingerprint != before
    # Everything is stale now, the canaries included: they go first again.
    assert resumed.phase is Phase.canary
    assert planned.scheduler.requests[-1].days == CANARIES
    for _ in range(2):
        planned.run()
        planned.conduct()
    planned.release().publish(NAME)
    assert planned.content() == {d: [d.day, d.day] for d in SIX_DAYS}
    assert planned.doctor().examine() == ()
    observed.found(said, f"resumed with the canaries {CANARIES[0]} and {len(CANARIES) - 1} others")


def test_a_day_whose_input_moved_after_the_end_is_only_marked_stale(planned: World) -> None:
    planned.control.launch(NAME)
    for _ in range(2):
        planned.run()
        planned.conduct()
    planned.basis.changed["sales", REST[0]] = "delivered again"
    assert planned.conduct() == ""
    assert planned.phase() is Phase.running
    assert planned.standings.of(NAME).days == {("sales", REST[0]): "stale"}
    assert planned.standings.of(NAME).state is CampaignState.stale
    planned.control.resume(NAME)
    assert planned.scheduler.requests[-1].days == (REST[0],)
    planned.run()
    planned.conduct()
    assert planned.standings.of(NAME).state is CampaignState.validated


def test_a_passed_day_that_goes_stale_while_the_others_run_stops_nothing(planned: World) -> None:
    planned.control.launch(NAME)
    planned.run()
    planned.basis.changed["sales", CANARIES[0]] = "delivered again"
    planned.conduct()
    # The day is launched with the others: it also has no current evidence.
    assert planned.scheduler.requests[-1].days == tuple(sorted((CANARIES[0], *REST)))
    planned.run()
    planned.basis.changed["sales", REST[1]] = "delivered again"
    assert "published rows of sales" in planned.conduct()
    assert planned.conduct() == ""
    assert planned.phase() is Phase.running
    assert planned.standings.of(NAME).state is CampaignState.stale
    assert len(planned.scheduler.requests) == 2


def test_a_resume_of_a_validated_campaign_lets_nothing_be_computed_again_by_itself(planned: World) -> None:
    planned.control.launch(NAME)
    for _ in range(2):
        planned.run()
        planned.conduct()
    planned.control.resume(NAME, "to be sure")
    assert planned.standings.of(NAME).state is CampaignState.validated
    assert [notice for notice, _ in planned.notices].count(Notice.validated) == 1
    planned.basis.changed["sales", REST[0]] = "delivered again"
    assert planned.conduct() == ""
    assert planned.standings.of(NAME).state is CampaignState.stale
    assert len(planned.scheduler.requests) == 2
    planned.control.resume(NAME, "the new file is right")
    assert planned.scheduler.requests[-1].days == (REST[0],)


def test_a_failure_behind_a_closed_gate_still_stops_the_campaign(planned: World) -> None:
    planned.control.launch(NAME)
    planned.scheduler.at_work = []
    now = planned.clock.now()
    planned.ledger.note(JournalEntry(NAME, now, "the gate", Action.waits, "live runs", {"run": "run_1"}))
    planned.scheduler.failed_of = "run 9: the model fails"
    assert "the model fails" in planned.conduct()
    assert planned.phase() is Phase.stopped


def test_the_runs_behind_one_that_gave_up_leave_the_queue(planned: World) -> None:
    planned.control.launch(NAME)
    now = planned.clock.now()
    planned.ledger.note(JournalEntry(NAME, now, "the gate", Action.waits, "blackout window", {"run": "run_9"}))
    assert "cancelled 1" in planned.conduct()
    planned.scheduler.failed_of = "run 9: the gate is shut"
    assert "launched backfill b2" in planned.conduct()


def test_a_campaign_that_has_passed_is_not_stopped_by_its_budget(tmp_path: Path) -> None:
    world = World(tmp_path, asked=with_canaries(budget={"wall_time": "1s"}))
    world.plan()
    world.control.launch(NAME)
    world.run()
    world.conduct()
    world.run()
    attempt = world.gatekeeper.begin(NAME, Batch("sales", SIX_DAYS[:1]), "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    world.clock.advance(dt.timedelta(seconds=2))
    world.ledger.end_attempt(attempt.number, AttemptState.done)
    assert "validated" in world.conduct()
    world.close()


def test_bytes_count_from_the_start_of_a_batch_however_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path, asked=with_canaries(budget={"bytes_read_per_day": "5 KB"}, max_concurrency=9))
    world.released({d: [1, 2, 3] for d in SIX_DAYS})
    world.plan()
    world.control.launch(NAME)
    world.control.set(NAME, "", max_concurrency=9)
    found = world.gatekeeper.begin(NAME, Batch("sales", SIX_DAYS[:2]), "run_1", HOUR)
    assert isinstance(found, Attempt)
    assert found.bytes_read > 1_000
    world.ledger.end_attempt(found.number, AttemptState.failed)
    assert world.gatekeeper.traffic(world.campaign()).bytes_today == found.bytes_read
    assert isinstance(world.gatekeeper.begin(NAME, Batch("sales", SIX_DAYS[2:4]), "run_2", HOUR), Halts)
    world.close()


def test_a_spent_budget_stops_the_campaign(tmp_path: Path) -> None:
    world = World(tmp_path, asked=with_canaries(budget={"wall_time": "1s"}))
    world.plan()
    world.control.launch(NAME)
    attempt = world.gatekeeper.begin(NAME, Batch("sales", CANARIES), "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    world.clock.advance(dt.timedelta(seconds=2))
    world.ledger.end_attempt(attempt.number, AttemptState.done)
    assert "wall_time: 1s" in world.conduct()
    assert world.phase() is Phase.stopped
    assert world.scheduler.active(NAME) == ()
    world.close()


def test_one_of_two_operators_who_launch_wins_and_the_other_is_refused(planned: World) -> None:
    planned.control.launch(NAME)
    with pytest.raises(CampaignError, match=r"is canary \(launched by ada at .*launch needs a campaign"):
        planned.control.launch(NAME)
    assert len(planned.scheduler.requests) == 1


def test_a_launch_that_died_after_it_claimed_the_days_can_be_repeated(planned: World) -> None:
    dying = between(planned.ledger, {"change_campaign"}, before=dies_at("change_campaign"))
    died = replace(planned.control, warehouse=replace(planned.control.warehouse, ledger=dying))
    with pytest.raises(Died):
        died.launch(NAME)
    (unit,) = planned.ledger.units()
    assert planned.control.launch(NAME).unit == unit.id


def test_a_launch_that_died_before_its_backfill_is_completed_by_the_conductor(planned: World) -> None:
    control = planned.control
    planned.scheduler.live = ("live",)
    control.launch(NAME)
    assert planned.scheduler.requests == []
    planned.scheduler.live = ()
    assert "launched backfill b1" in planned.conduct()


def test_days_of_another_open_unit_are_refused_by_name(planned: World) -> None:
    other = planned.open_unit({"sales": SIX_DAYS[:1]})
    with pytest.raises(ClaimedDaysError, match=other.id):
        planned.control.launch(NAME)
    assert planned.phase() is Phase.planned


def test_a_campaign_whose_unit_was_discarded_takes_no_further_step(planned: World) -> None:
    unit = planned.control.launch(NAME).unit
    planned.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    assert planned.conduct() == ""
    assert planned.conductor.waiting() == ()
    assert planned.standings.of(NAME).state is CampaignState.discarded


def test_the_floor_of_progress_lets_one_batch_through_beside_a_busy_live_pipeline(tmp_path: Path) -> None:
    world = World(tmp_path, asked=with_canaries(min_progress="1 batch per hour"))
    world.plan()
    world.control.launch(NAME)
    world.scheduler.live = ("live",)
    assert isinstance(world.gatekeeper.ask(NAME), Waits)
    world.clock.advance(HOUR)
    attempt = world.gatekeeper.begin(NAME, Batch("sales", CANARIES[:1]), "run_1", HOUR)
    assert isinstance(attempt, Attempt)
    world.ledger.end_attempt(attempt.number, AttemptState.done)
    assert isinstance(world.gatekeeper.ask(NAME), Waits)
    world.close()


def test_a_campaign_whose_release_is_in_force_is_neither_paused_nor_stopped_nor_resumed(planned: World) -> None:
    planned.control.launch(NAME)
    for _ in range(2):
        planned.run()
        planned.conduct()
    planned.release().publish(NAME)
    before = planned.campaign(), planned.actions()
    for command in (planned.control.pause, planned.control.stop, planned.control.resume):
        with pytest.raises(CampaignError, match=r"is published .*is no longer possible"):
            command(NAME, "too late")
    with pytest.raises(CampaignError, match="set is no longer possible"):
        planned.control.set(NAME, "too late", max_concurrency=2)
    assert (planned.campaign(), planned.actions()) == before
