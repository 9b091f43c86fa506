"""Where the time of a native backfill went, from the events that Dagster stored of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import dagster as dg

from backfill_assets.orchestration.launches import BACKFILL_TAG

WORK: Final = ("raw", "staging", "shadow", "checks", "published")
"""The work of steps until they give their first event to Dagster; the step of the shadow builds, then checks, batch by batch."""
EVENTS: Final = "events stored"
"""The rest of the steps: materializations and check results of every day go into Dagster's database."""
RUNS: Final = "around steps"
"""A run's time before, between and after its steps."""
STARTS: Final = "process start"
"""From Dagster's order to start a run until its process, which has to import everything first, begins."""
DAEMON: Final = "daemon"
"""All other time without a run: the daemon checks, creates runs, takes them from the queue, notices the end."""
ORCHESTRATION: Final = (EVENTS, RUNS, STARTS, DAEMON)
STAGES: Final = (*WORK, *ORCHESTRATION)

_Type = dg.DagsterEventType
_MARKS: Final = {"shadow": ": building ", "checks": ": checking "}
"""What a shadow's step logs when it begins to build and to check a batch."""
_STORED: Final = {_Type.ASSET_MATERIALIZATION, _Type.ASSET_CHECK_EVALUATION, _Type.STEP_OUTPUT}
_BEGIN, _END = {_Type.STEP_START}, {_Type.STEP_SUCCESS, _Type.STEP_FAILURE}


@dataclass(frozen=True)
class Span:
    """A stretch of time that belongs to a stage, in seconds since 1970."""

    stage: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True)
class RunTimes:
    """A run: when it was ordered, its first event to its last, and its steps' events as (kind, step, time), in order.

    `marks` are the times at which a step began to build or to check a batch, as (stage, step, time), in order.
    """

    ordered: float
    begin: float
    end: float
    events: Sequence[tuple[dg.DagsterEventType, str, float]]
    marks: Sequence[tuple[str, str, float]] = ()


def runs_of(instance: dg.DagsterInstance, backfill_id: str) -> tuple[RunTimes, ...]:
    """The runs of a backfill that has ended, in the order of their starts."""
    records = instance.get_run_records(dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}))
    return tuple(sorted((_run(instance, record) for record in records), key=lambda run: run.begin))


def spans_of(runs: Sequence[RunTimes], launched: float, ended: float) -> tuple[Span, ...]:
    """Cut the time from launch to end into stages; overlapping runs are counted separately."""
    spans: list[Span] = []
    for run in runs:
        steps = _steps(run)
        spans += steps
        spans += [Span(RUNS, begin, end) for begin, end in _gaps([(s.begin, s.end) for s in steps], run.begin, run.end)]
    busy = [(run.begin, run.end) for run in runs]
    starts = [span for run in runs for span in _gaps(busy, max(run.ordered, launched), run.begin)]
    spans += [Span(STARTS, begin, end) for begin, end in starts]
    return (*spans, *(Span(DAEMON, begin, end) for begin, end in _gaps([*busy, *starts], launched, ended)))


def _run(instance: dg.DagsterInstance, record: dg.RunRecord) -> RunTimes:
    found = instance.all_logs(record.dagster_run.run_id)
    logged = [(entry.dagster_event, entry.timestamp) for entry in found if entry.dagster_event is not None]
    events = [
        (event.event_type, event.step_key, time)
        for event, time in logged
        if event.step_key is not None and event.event_type in {*_STORED, *_BEGIN, *_END}
    ]
    marks = [
        (stage, entry.step_key, entry.timestamp)
        for entry in found
        for stage, mark in _MARKS.items()
        if entry.dagster_event is None and entry.step_key is not None and mark in entry.user_message
    ]
    begin = record.start_time or 0.0
    ordered = min((time for event, time in logged if event.event_type is _Type.RUN_STARTING), default=begin)
    return RunTimes(ordered, begin, record.end_time or 0.0, sorted(events, key=lambda e: e[2]), marks)


def _steps(run: RunTimes) -> list[Span]:
    spans: list[Span] = []
    for step in dict.fromkeys(name for _, name, _ in run.events):
        own = [(kind, time) for kind, name, time in run.events if name == step]
        begins = [time for kind, time in own if kind in _BEGIN]
        ends = [time for kind, time in own if kind in _END]
        if begins and ends:
            observed = min((time for kind, time in own if kind in _STORED), default=ends[-1])
            marks = [(stage, time) for stage, name, time in run.marks if name == step and time < observed]
            layer = step.partition("__")[0]
            cuts = [(layer, begins[0]), *marks, (EVENTS, observed), ("", ends[-1])]
            spans += [Span(stage, begin, end) for (stage, begin), (_, end) in pairwise(cuts)]
    return spans


def _gaps(busy: Iterable[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    """What `busy` leaves free between two times."""
    free = []
    at = begin
    for first, last in sorted(busy):
        if at < first and at < end:
            free.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        free.append((at, end))
    return free
