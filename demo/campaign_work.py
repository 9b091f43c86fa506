"""The parts of the campaign's story in which Dagster works and the story waits."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg

from backfill_assets.cli.output import console, opened_dagster, say
from backfill_assets.cli.watch import follow
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.orchestration.backfills import DagsterBackfills, Launched, launch_backfill
from demo.campaign_models import DATASET, UPSTREAM
from demo.campaign_specification import CAMPAIGN, StoryError
from demo.campaign_stage import Stage, narrate, show_command

_LOOK_SECONDS = 0.5
_LONGEST_SECONDS = 900
_GOOD_BEFORE_THE_PAUSE = 30
"""The three canaries, and a batch of the rest has passed."""


def build_history(stage: Stage, days: tuple[dt.date, ...]) -> None:
    """Build and publish both datasets by one native backfill.

    Raises:
        StoryError: it did not succeed.
    """
    application = stage.application
    layers = {name: application.dataset(name).launched_layers for name in (UPSTREAM, DATASET)}
    request = BackfillRequest(
        layers, days, title="history, as it was", description="net revenue and margin with the tax in them"
    )
    say(f"a native backfill of {len(days)} partitions, from raw to published, of {UPSTREAM} and {DATASET} together")
    with opened_dagster() as instance:
        launched = Launched(launch_backfill(request), dict.fromkeys(layers, days))
        state = follow(application, instance, launched)
    if state.failure:
        raise StoryError(f"{state.failure}; the log of the daemon: {stage.log}")


def pause_on_the_way(stage: Stage) -> None:
    """Resume the campaign, and pause it as from a second terminal when its first batches have passed.

    Raises:
        StoryError: a command was refused, or the campaign did not get as far as that.
    """
    why = "the month is being closed, the machine is needed"
    watching = stage.start("resume", CAMPAIGN, "--reason", "the tax is subtracted once", "--watch")
    try:
        _wait_for_batches(stage, watching)
        said = stage.quietly("pause", CAMPAIGN, "--reason", why)
        if watching.wait(_LONGEST_SECONDS):
            raise StoryError(f"the resumed campaign was not paused but ended; the log of the daemon: {stage.log}")
    finally:
        watching.kill()
    narrate("The campaign was paused in a second terminal, with:")
    show_command("backfill", "pause", CAMPAIGN, "--reason", why)
    say(said.strip())
    with dg.DagsterInstance.get() as instance, console.status("its backfill leaves the run queue"):
        _wait_until_clear(DagsterBackfills(instance))
    say("Dagster's run queue no longer holds a run of the campaign")


def run_live_day(stage: Stage, day: dt.date) -> None:
    """Launch the live job for a day, and wait for its run.

    Raises:
        StoryError: the run could not be launched, or failed.
    """
    job, tags = f"live_{UPSTREAM}", json.dumps({"dagster/partition": day.isoformat()})
    command = ["job", "launch", "-m", "backfill_assets.definitions", "-j", job, "--tags", tags]
    show_command("dagster", *command)
    dagster = str(Path(sys.executable).with_name("dagster"))
    done = subprocess.run([dagster, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise StoryError(f"the live run was not launched: {done.stdout.strip()[-1000:]}")
    with dg.DagsterInstance.get() as instance, console.status(f"{job} of {day}"):
        run = _finished(instance, job)
    if run.status is not dg.DagsterRunStatus.SUCCESS:
        raise StoryError(f"the live run of {day} ended {run.status.value}; the log of the daemon: {stage.log}")
    say(f"run {run.run_id[:8]} of {job}, {day}: {run.status.value}")


def _wait_for_batches(stage: Stage, watching: subprocess.Popen[bytes]) -> None:
    ledger = stage.application.ledger
    unit = ledger.campaign(CAMPAIGN).unit
    while sum(e.passed and bool(e.verdicts) for e in ledger.evidence(unit, DATASET).values()) < _GOOD_BEFORE_THE_PAUSE:
        if watching.poll() is not None:
            raise StoryError(
                f"the resumed campaign ended before it could be paused; the log of the daemon: {stage.log}"
            )
        time.sleep(_LOOK_SECONDS)


def _wait_until_clear(backfills: DagsterBackfills) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while backfills.active(CAMPAIGN):
        if time.monotonic() > deadline:
            raise StoryError(f"the backfill of the paused campaign did not end in {_LONGEST_SECONDS} s")
        time.sleep(_LOOK_SECONDS)


def _finished(instance: dg.DagsterInstance, job: str) -> dg.DagsterRun:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        run = next(iter(instance.get_runs(dg.RunsFilter(job_name=job), limit=1)), None)
        if run is not None and run.is_finished:
            return run
        time.sleep(_LOOK_SECONDS)
    raise StoryError(f"the run of {job} took longer than {_LONGEST_SECONDS} s; look at it in Dagster")
