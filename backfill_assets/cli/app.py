"""The console script `backfill`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import typer

from backfill_assets.cli import (
    campaign_release,
    campaigns,
    deliveries,
    demo,
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
from backfill_assets.cli.failures import noted, require_text
from backfill_assets.cli.output import collect_rarely, refuse
from backfill_assets.domain.errors import BackfillError

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
    proof.prove, proof.diff_history, report.report, demo.demo, demo.demo_campaign,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(command)
# `set` and `list` are words of Python as well.
app.command("set")(campaigns.set_knobs)
app.command("list")(campaigns.list_campaigns)


def main() -> None:
    """Run a command; what it refuses is said in one message, without a stack trace, with exit code 1.

    So is what went wrong otherwise; its trace stands in `errors.log` of the state folder.
    """
    # By default SIGTERM kills Python at once, and the Spark work of the command would go on without it.
    signal.signal(signal.SIGTERM, _leave)
    collect_rarely()
    try:
        require_text(sys.argv[1:])
        app()
    except BackfillError as error:
        refuse("refused", str(error))
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  # a trace is for those who mend it, and what it quotes may be a secret
        refuse("failed", noted(error, os.environ))
        sys.exit(1)


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + signum)
