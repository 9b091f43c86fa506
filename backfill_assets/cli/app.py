"""The console script `backfill`."""

from __future__ import annotations

from collections.abc import Callable

import typer

from backfill_assets.cli import (
    campaign_release,
    campaigns,
    deliveries,
    drafts,
    engine,
    examination,
    launches,
    metrics,
    proof,
    readers,
    releases,
    report,
    specifications,
    status,
    units,
)
from backfill_assets.cli.failures import run_command

app = typer.Typer(
    name="backfill",
    help="Safe historical backfills: look at units and releases, publish, roll back, sweep.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(engine.spark, name="spark")
app.add_typer(units.hold, name="hold")
_COMMANDS: tuple[Callable[..., None], ...] = (
    status.status, metrics.metrics, deliveries.deliveries, deliveries.withdraw, deliveries.reland,
    readers.path, engine.sql, launches.resume, launches.refresh, units.discard, releases.releases, releases.publish,
    releases.rollback, releases.reconcile, releases.sweep, examination.doctor, drafts.new, specifications.validate,
    campaigns.plan, campaigns.launch, campaigns.pause, campaigns.stop, campaign_release.preview, campaign_release.approve,
    campaign_release.sign_off, campaign_release.cleanup, campaign_release.watch_release, campaign_release.history,
    proof.prove, proof.diff_history, report.report,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(command)
# `set` and `list` are words of Python as well.
app.command("set")(campaigns.set_knobs)
app.command("list")(campaigns.list_campaigns)


def main() -> None:
    """Run a command; what it refuses is said in one message, without a stack trace, with exit code 1."""
    run_command(app)
