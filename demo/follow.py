"""Follows a native backfill in the terminal: a bar of the days checked, and the runs behind it."""

from __future__ import annotations

import time

import dagster as dg
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from backfill_assets.application import Application
from backfill_assets.cli.output import console
from backfill_assets.orchestration.backfills import OVER
from backfill_assets.orchestration.launches import BACKFILL_TAG

_LOOK_SECONDS = 2


def follow(application: Application, backfill_id: str, days: int) -> str:
    """Show progress until the backfill is over; returns its final status in Dagster's words."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("days checked"), TimeElapsedColumn(),
    )  # fmt: skip
    with dg.DagsterInstance.get() as instance, Progress(*columns, console=console) as progress:
        bar = progress.add_task("waiting for the daemon", total=days)
        while True:
            backfill = instance.get_backfill(backfill_id)
            status = backfill.status.value if backfill else "FAILED"
            progress.update(bar, completed=_checked(application, backfill_id), description=_runs(instance, backfill_id))
            if status in OVER:
                return status
            time.sleep(_LOOK_SECONDS)


def _checked(application: Application, backfill_id: str) -> int:
    units = [u for u in application.ledger.units() if u.opened_by == backfill_id]
    return sum(bool(e.verdicts) for u in units for e in application.ledger.evidence(u.id).values())


def _runs(instance: dg.DagsterInstance, backfill_id: str) -> str:
    runs = instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}))
    if not runs:
        return "waiting for the daemon"
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.status.value.lower()] = counts.get(run.status.value.lower(), 0) + 1
    return "runs: " + ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
