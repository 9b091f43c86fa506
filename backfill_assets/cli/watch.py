"""Watching a launched backfill: its progress, how it ended, and what became of its units."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from backfill_assets import operations
from backfill_assets.application import Application
from backfill_assets.cli.output import console, say
from backfill_assets.control.approve import needs_approval
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import ReleaseMode, Unit, UnitState
from backfill_assets.evidence.readiness import explain_blockers
from backfill_assets.release.finish import last_publish

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.orchestration.backfills import Launched, LaunchState

_LOOK_SECONDS: Final = 2
_PATIENCE: Final = 60
"""Seconds without a run after which a command that watches says that the daemon may be down."""


def follow(application: Application, instance: DagsterInstance, launched: Launched) -> LaunchState:
    """Show the progress of a backfill until it is over; its last state."""
    from backfill_assets.orchestration.backfills import launch_state  # loads Dagster

    # The columns of rich for the time stop when all days are checked.
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("days checked"),
        TextColumn("{task.fields[took]}"),
    )  # fmt: skip
    began, warned, said, spark = time.monotonic(), False, "", "stopped"
    state = launch_state(application, instance, launched)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=sum(map(len, launched.targets.values())), took="")
        while True:
            what, took = in_runs(state.runs), dt.timedelta(seconds=int(time.monotonic() - began))
            if "STARTED" in state.runs and spark in {"stopped", "silent"}:
                spark = _spark(application)
                what += "; Spark is starting" if spark == "silent" else ""
            progress.update(bar, completed=state.checked, description=what, took=str(took))
            if not (console.is_terminal or what == said):
                # Without a terminal, the bar is printed once, at the end.
                said = what
                progress.console.print(f"{took} {what}", markup=False)
            if state.over:
                return state
            if not (state.runs or warned) and time.monotonic() - began > _PATIENCE:
                warned = True
                progress.console.print(
                    f"no run yet after {_PATIENCE} s: check that the Dagster daemon runs", markup=False
                )
            time.sleep(_LOOK_SECONDS)
            state = launch_state(application, instance, launched, state.units)


def _spark(application: Application) -> str:
    """The state of the Spark server; empty if it cannot be known."""
    from backfill_assets.spark.server import SparkServer  # takes more than a second: it loads Spark's client

    with contextlib.suppress(BackfillError):
        return SparkServer(application.settings).status().state.value
    return ""


def in_runs(runs: Mapping[str, int]) -> str:
    """What a launch is doing, by how many of its runs are in which state of Dagster's."""
    states = ", ".join(f"{count} {name.lower().replace('_', ' ')}" for name, count in sorted(runs.items()))
    return f"runs: {states}" if states else "waiting for the Dagster daemon, which may take 30 s"


def ended(instance: DagsterInstance, launched: Launched, state: LaunchState) -> frozenset[str]:
    """Say how a backfill ended; the units whose outcome is still to be said."""
    from backfill_assets.orchestration.backfills import built_in  # loads Dagster

    if state.failure:
        say(f"failed: {state.failure}")
        return state.units
    if launched.only in {Layer.raw, Layer.staging}:
        say(f"{launched.only} is built; this launch releases nothing")
        return state.units
    # If another launch has released the days since this one was made, this command may not have seen its claims.
    units = state.units or built_in(instance, launched)
    if not units:
        say("nothing had to be built or released")
    return units


def outcome(application: Application, unit_id: str, only: Layer | None) -> bool:
    """Say what became of a unit and what to do next; whether something is left that the launch should have done."""
    unit = application.ledger.unit(unit_id)
    if unit.state is UnitState.published:
        for record in last_publish(application.ledger.releases(unit=unit_id)):
            manifest = record.manifest
            days = [swap.day for swap in manifest.days]
            say("\n".join(operations.published_lines(manifest.release, manifest.dataset, days)))
        return False
    if unit.state is not UnitState.open:
        say(f"unit {unit_id} was {unit.state.value.replace('_', ' ')} meanwhile: nothing of it is published")
        return True
    if blockers := application.publisher.blockers(unit_id):
        say(explain_blockers(blockers))
        say(f"after the cause is fixed: backfill resume {unit_id}; or give it up: backfill discard {unit_id}")
        for line in operations.acceptance_lines(application, unit, blockers):
            say(line)
        return True
    say(complete_line(unit_id, application.publisher.evidence_hash(unit_id)))
    return only is not Layer.shadow and releases_itself(application, unit)


def releases_itself(application: Application, unit: Unit) -> bool:
    """Whether the last run of a unit releases it, without approval."""
    return unit.mode is ReleaseMode.auto and not needs_approval(None, unit.targets, application.catalog.definitions)


def complete_line(unit_id: str, evidence: str) -> str:
    """How to release a unit whose checks have all passed."""
    return f"unit {unit_id} is complete; release it with: backfill publish {unit_id} --evidence {evidence}"
