"""How the benchmark divides the time into stages."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from benchmarks.stages import DAEMON, EVENTS, RUNS, STARTS, RunTimes, Span, spans_of

Type = dg.DagsterEventType
STEPS = (
    (Type.STEP_START, "raw__orders", 11.0),
    (Type.ASSET_MATERIALIZATION, "raw__orders", 14.0),
    (Type.ASSET_MATERIALIZATION, "raw__orders", 15.0),
    (Type.STEP_OUTPUT, "raw__orders", 16.0),
    (Type.STEP_SUCCESS, "raw__orders", 16.5),
    (Type.STEP_START, "checks__orders", 17.0),
    (Type.ASSET_CHECK_EVALUATION, "checks__orders", 19.0),
    (Type.STEP_SUCCESS, "checks__orders", 22.0),
)


def totals(spans: Sequence[Span]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for span in spans:
        sums[span.stage] = sums.get(span.stage, 0.0) + span.seconds
    return {stage: round(seconds, 6) for stage, seconds in sums.items()}


def shifted(run: RunTimes, by: float) -> RunTimes:
    events = [(kind, step, time + by) for kind, step, time in run.events]
    return RunTimes(run.ordered + by, run.begin + by, run.end + by, events)


RUN = RunTimes(ordered=5.0, begin=10.0, end=23.0, events=STEPS)


def test_every_second_from_launch_to_end_belongs_to_one_stage() -> None:
    assert totals(spans_of([RUN], launched=2.0, ended=30.0)) == {
        "raw": 3.0,
        "checks": 2.0,
        EVENTS: 2.5 + 3.0,
        RUNS: 1.0 + 0.5 + 1.0,
        STARTS: 5.0,
        DAEMON: 3.0 + 7.0,
    }


def test_runs_one_after_the_other_add_up_to_the_wall_time() -> None:
    spans = spans_of([RUN, shifted(RUN, 20.0)], launched=2.0, ended=50.0)
    assert sum(span.seconds for span in spans) == 48.0


def test_a_run_that_starts_while_another_one_works_costs_no_time_of_its_own() -> None:
    second = RunTimes(ordered=12.0, begin=24.0, end=25.0, events=())
    assert totals(spans_of([RUN, second], launched=5.0, ended=25.0))[STARTS] == 5.0 + 1.0


def test_a_step_that_stores_nothing_is_all_work() -> None:
    events = ((Type.STEP_START, "published__orders", 3.0), (Type.STEP_SUCCESS, "published__orders", 4.0))
    run = RunTimes(ordered=1.0, begin=2.0, end=5.0, events=events)
    assert totals(spans_of([run], launched=1.0, ended=5.0)) == {"published": 1.0, EVENTS: 0.0, RUNS: 2.0, STARTS: 1.0}


def test_the_step_of_the_shadow_is_cut_where_it_begins_to_build_and_to_check_each_batch() -> None:
    step = "shadow__orders"
    events = ((Type.STEP_START, step, 2.0), (Type.ASSET_MATERIALIZATION, step, 10.0), (Type.STEP_SUCCESS, step, 11.0))
    marks = [("shadow", step, 3.0), ("checks", step, 5.0), ("shadow", step, 6.0), ("checks", step, 9.0)]
    elsewhere = [("checks", "shadow__other", 7.0), ("checks", step, 10.5)]
    run = RunTimes(ordered=1.0, begin=2.0, end=11.0, events=events, marks=[*marks, *elsewhere])
    assert totals(spans_of([run], launched=1.0, ended=11.0)) == {
        "shadow": 1.0 + 2.0 + 3.0,
        "checks": 1.0 + 1.0,
        EVENTS: 1.0,
        STARTS: 1.0,
    }


def test_a_step_that_never_ended_is_no_stage() -> None:
    run = RunTimes(ordered=1.0, begin=2.0, end=5.0, events=((Type.STEP_START, "raw__orders", 3.0),))
    assert totals(spans_of([run], launched=1.0, ended=5.0)) == {RUNS: 3.0, STARTS: 1.0}
