"""Commands about campaigns, from plan to clean-up."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from backfill_assets import operations
from backfill_assets.application import Application
from backfill_assets.campaign.plan import Plan, explain
from backfill_assets.cli.campaign_status import follow_campaign, say_standing
from backfill_assets.cli.output import (
    Json,
    Webserver,
    as_json,
    chosen_day,
    finish,
    opened_services,
    opened_shell,
    say,
    shell_of,
    table,
)
from backfill_assets.cli.stale import say_kept, words_as_json
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.text import number_of
from backfill_assets.operations import PARAMETERS, Shell
from backfill_assets.release.readers import DayChange
from backfill_assets.release.watch import ReleaseWatch

Watch = Annotated[bool, typer.Option("--watch", help="Show progress, rate and time left until it ends.")]
CampaignId = Annotated[str, typer.Argument(help=PARAMETERS["campaign"])]

_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_SHOWN = 60


def plan(
    file: Annotated[Path, typer.Argument(help=PARAMETERS["file"])],
    explained: Annotated[bool, typer.Option("--explain", help="List every step, in the launch's words.")] = False,
    json: Json = False,
) -> None:
    """Run the operation; shows the plan as a table, with every step, or as JSON."""
    application = Application.from_env()
    with opened_shell(application) as shell:
        result = operations.plan(shell, file)
    steps, *rest = result.lines
    if json:
        as_json(result.value)
        return
    if explained:
        say(steps)
    else:
        _say_plan(result.value["plan"])
    for line in rest:
        say(line)


def launch(
    campaign: CampaignId,
    canary_only: Annotated[bool, typer.Option("--canary-only", help=PARAMETERS["canary_only"])] = False,
    watch: Watch = False,
    explained: Annotated[bool, typer.Option("--explain", help="Only list the steps of the plan.")] = False,
    webserver: Webserver = "",
) -> None:
    """Run the operation; can list only the steps, or show progress until the campaign ends."""
    application = Application.from_env()
    if explained:
        planned = application.ledger.campaign(campaign).plan
        say("\n".join(filter(None, (explain(planned), operations.moved_since(application, planned)))))
        return
    with opened_services(application, webserver) as services:
        shell = shell_of(application, lambda: services.control)
        finish(operations.launch(shell, campaign, canary_only=canary_only))
        if watch:
            follow_campaign(application, services, campaign)


def set_knobs(
    campaign: CampaignId,
    knobs: Annotated[list[str], typer.Argument(help="max_concurrency=1 or partitions_per_batch=14, or both.")],
    reason: Annotated[str, typer.Option(help=PARAMETERS["reason"])] = "",
) -> None:
    """Run the operation with the knobs as `name=value`."""
    given = {}
    for knob in knobs:
        name, _, value = knob.partition("=")
        if name not in {"max_concurrency", "partitions_per_batch"} or not _COUNT.fullmatch(value):
            raise typer.BadParameter(
                f"{knob[:_SHOWN]!r}: write max_concurrency=N or partitions_per_batch=N, N at least 1"
            )
        given[name] = int(value)
    with opened_shell(Application.from_env()) as shell:
        finish(operations.set_knobs(shell, campaign, reason=reason, **given))


def list_campaigns(json: Json = False) -> None:
    """List all campaigns, newest first, with their state."""
    application = Application.from_env()
    rows = []
    with opened_services(application, "") as services:
        for campaign in application.ledger.campaigns():
            standing = services.standings.of(campaign.id, obstacles=False)
            rows.append(
                {
                    "campaign": campaign.id,
                    "state": standing.state.value,
                    "dataset": campaign.specification.target.dataset,
                    "days": format_days(campaign.plan.days, most=3),
                    "owner": campaign.specification.owner,
                    "planned_at": f"{campaign.created_at:%Y-%m-%d %H:%M}",
                    "unit": campaign.unit or "-",
                }
            )
    if json:
        as_json(rows)
        return
    columns = ("campaign", "state", "dataset", "days", "owner", "planned (UTC)", "unit")
    table(columns, [tuple(row.values()) for row in rows], "Campaigns")


def resume_campaign(
    application: Application, campaign: str, reason: str, webserver: str, *, only_explain: bool, watch: bool
) -> None:
    """Resume a campaign, or only explain what is missing; with `watch`, follow it to its end."""
    with opened_services(application, webserver) as services:
        if only_explain:
            say_standing(application, services.standings.of(campaign), details=True)
            return
        finish(operations.resume(shell_of(application, lambda: services.control), campaign, reason=reason))
        if watch:
            follow_campaign(application, services, campaign)


def _say_plan(made: Plan) -> None:
    rows = [
        (d.name, " → ".join(d.layers), format_days(d.days, most=3), len(d.days), f"{d.rows:,}", f"{d.bytes / 1e6:,.1f}")
        for d in made.datasets
    ]
    table(("dataset", "layers", "days", "count", "rows now", "MB now"), rows, f"Plan of {made.campaign}")
    if made.canaries:
        say(f"canaries: {', '.join(map(str, made.canaries))}")
    estimate = made.estimate
    minutes = estimate.seconds / 60
    say(
        f"estimate: {estimate.rows:,} rows to write, {estimate.bytes / 1e6:,.1f} MB to read, "
        f"{number_of(estimate.batches, 'batch')}, {minutes:,.1f} min of batch time"
        + (f", {estimate.cost}" if estimate.cost else "")
    )
    for warning in made.warnings:
        say(f"warning: {warning}")


def preview(
    unit: Annotated[str, typer.Argument(help="A campaign, or an open unit.")],
    drop: Annotated[bool, typer.Option("--drop", help="Drop the preview.")] = False,
) -> None:
    """Create the views `preview.<dataset>`: published days outside the range, the unit's new days inside."""
    application = Application.from_env()
    unit = unit_of(application, unit)
    if drop:
        say(f"dropped: {', '.join(application.preview.drop(unit)) or 'nothing'}")
        return
    for shown in application.preview.show(unit):
        say(f"{shown.view}: {len(shown.new)} new days ({format_days(shown.new, most=3)})")
        if shown.missing:
            say(f"  still as published: {format_days(shown.missing, most=3)}")
        say(f'  try it: backfill sql "SELECT * FROM {shown.view} LIMIT 10"')


def show_figures(seen: ReleaseWatch, *, json: bool) -> None:
    """Print each figure of a release's consumers: before it, after it, and now."""
    if json:
        as_json(seen)
        return
    rows = [(w.consumer, w.figure, w.before, w.after, w.now, "drifted" if w.drifted else "") for w in seen.figures]
    table(("consumer", "figure", "before", "after", "now", ""), rows, f"{seen.dataset} through {seen.through}")


def history(
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    day: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Only this day.")] = None,
    json: Json = False,
) -> None:
    """Show who changed the days of a dataset, when and why, with the old and new figures."""
    application = Application.from_env()
    application.dataset(dataset)
    days = None if day is None else [chosen_day(day)]
    changes, kept = application.history.of(dataset, days), application.ledger.kept_days(dataset, days)
    if json:
        as_json({"changes": changes, "kept": [words_as_json(one) for one in kept]})
        return
    columns = ("day", "release", "kind", "by", "approved by", "at (UTC)", "rows", "measures", "why")
    table(columns, [_change(change) for change in changes])
    say_kept(kept)


def unit_of(application: Application, name: str) -> str:
    """The unit with this name, or the unit of the campaign with this name.

    Raises:
        CampaignError: the campaign was never launched.
    """
    if name not in {campaign.id for campaign in application.ledger.campaigns()}:
        return name
    unit = application.ledger.campaign(name).unit
    if not unit:
        raise CampaignError(f"campaign {name} was never launched; launch it with: backfill launch {name}")
    return unit


def _change(change: DayChange) -> tuple[object, ...]:
    moved = {name: pair for name, pair in change.measures.items() if pair[0] != pair[1]}
    measures = ", ".join(
        f"{name} {' → '.join('nothing' if v is None else str(v) for v in pair)}" for name, pair in moved.items()
    )
    return (
        change.day, change.release, change.kind.value, change.by, change.approved_by or "-",
        f"{change.at:%Y-%m-%d %H:%M}", f"{_some(change.rows_before)} → {_some(change.rows_after)}", measures,
        "; ".join(filter(None, [change.reason, f"ends the hold of {change.ended_hold}" if change.ended_hold else ""])),
    )  # fmt: skip


def _some(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"


def say_release(shell: Shell, campaign: str, *, evidence: str, outside_window: str) -> None:
    """Print what publishing a campaign would do; exit code 1 if it would be refused."""
    operations.warn_uncompared(shell, shell.application.ledger.campaign(campaign))
    plan = shell.application.campaign_release.plan(campaign, outside_window=outside_window, evidence_hash=evidence)
    rows = [
        (
            c.dataset, format_days(c.days, most=3), c.version, c.removed, c.added, _some(c.rows_before), _some(c.rows_after)
        )
        for c in plan.changes
    ]  # fmt: skip
    columns = ("dataset", "days", "version", "files out", "files in", "rows before", "rows after")
    table(columns, rows, f"Publishing {plan.campaign} would do this")
    say(f"evidence {plan.evidence}")
    for refusal in plan.refusals:
        say(f"would be refused: {refusal}")
    if plan.refusals:
        raise typer.Exit(1)
