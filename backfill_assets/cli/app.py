"""The console script `backfill`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

from backfill_assets import operations
from backfill_assets.cli import (
    adopt,
    backups,
    campaigns,
    deliveries,
    doctor,
    launches,
    proof,
    releases,
    specifications,
    stale,
    status,
)
from backfill_assets.cli.output import command_of, run_command, show_json
from backfill_assets.environment import environment_in

app = typer.Typer(
    name="backfill",
    help="Safe historical backfills: look at units and releases, publish, roll back, sweep.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(doctor.spark, name="spark")
app.add_typer(releases.hold, name="hold")
_COMMANDS: tuple[Callable[..., None], ...] = (
    specifications.init, adopt.adopt, adopt.unadopt, status.status, stale.stale, stale.keep, status.metrics, launches.run,
    deliveries.deliveries, deliveries.withdraw, deliveries.purge, deliveries.reland, releases.path, releases.sandbox, doctor.sql,
    launches.resume, launches.refresh, status.discard, releases.releases, releases.publish,
    releases.reconcile, doctor.doctor, specifications.new, specifications.validate,
    campaigns.preview, campaigns.history, proof.diff_history, proof.report, backups.backup, backups.restore,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(command)
_SHOWN: Mapping[str, Callable[..., None]] = {
    "watch-release": campaigns.show_figures, "prove": proof.show_certificates, "cleanup": show_json, "sweep": show_json,
}  # fmt: skip
for operation in operations.OPERATIONS:
    if operation.command:
        app.command(operation.command)(command_of(operation, _SHOWN.get(operation.command)))
app.command(help=operations.plan.__doc__)(campaigns.plan)
app.command(help=operations.launch.__doc__)(campaigns.launch)
# `set` and `list` are also Python built-ins.
app.command("set", help=operations.set_knobs.__doc__)(campaigns.set_knobs)
app.command("list")(campaigns.list_campaigns)


def main() -> None:
    """Run a command; a refusal prints one message without a stack trace and exits with code 1."""
    run_command(_in_working_folder)


def _in_working_folder() -> None:
    # Like Dagster's commands, ours import modules from the working folder, for models, and read its `.env`.
    folder: Path | None = None
    with contextlib.suppress(OSError):  # it is gone, or this user may not enter it
        folder = Path.cwd()
    if folder is not None:
        sys.path.insert(0, str(folder))
        if not _needs_no_settings(sys.argv[1:]):
            os.environ.update(environment_in(folder, os.environ))
    app()


def _needs_no_settings(words: Sequence[str]) -> bool:
    """Whether a command reads no state: help, completion in the shell, a new project."""
    return words[:1] in ([], ["init"]) or "--help" in words or "_BACKFILL_COMPLETE" in os.environ
