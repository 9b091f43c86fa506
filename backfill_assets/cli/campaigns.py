"""Commands that run a campaign: plan, launch, pause, resume, stop, set, list."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.campaign.load import uncompared
from backfill_assets.campaign.plan import SHOWN_DIGITS, Plan, explain
from backfill_assets.cli.campaign_status import follow_campaign, say_standing
from backfill_assets.cli.desk import Webserver, backfill_slots, opened_desk
from backfill_assets.cli.output import as_json, say, table
from backfill_assets.cli.status import Json
from backfill_assets.control.planner import Freezer
from backfill_assets.core.days import format_days
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import shown_days

CampaignId = Annotated[str, typer.Argument(help="The campaign: the backfill_id of its specification.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the campaign's journal.")]
Watch = Annotated[bool, typer.Option("--watch", help="Stay, with progress, rate and time left, until it ends.")]

_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_SHOWN = 60


def plan(
    file: Annotated[Path, typer.Argument(help="The specification, a YAML file under backfills/.")],
    explained: Annotated[bool, typer.Option("--explain", help="List every step, in the words of the launch.")] = False,
    json: Json = False,
) -> None:
    """Freeze the plan of a specification: batches, canaries, estimate, warnings; nothing is built yet."""
    application = Application.from_env()
    planner = replace(application.planner, slots=backfill_slots(os.environ))
    settings = application.settings
    freezer = Freezer(planner, application.identity, settings.computes, settings.state)
    campaign, frozen = freezer.freeze(file)
    made = campaign.plan
    if json:
        as_json({"fingerprint": made.fingerprint, "plan": made, "file": str(frozen)})
        return
    if explained:
        say(explain(made))
    else:
        _say_plan(made)
    say(f"plan {made.fingerprint[:SHOWN_DIGITS]} is frozen in {frozen}")
    say(f"next: backfill launch {campaign.id}" + (" --canary-only" if made.canaries else ""))


def launch(
    campaign: CampaignId,
    canary_only: Annotated[bool, typer.Option("--canary-only", help="Stop after the canaries have passed.")] = False,
    watch: Watch = False,
    explained: Annotated[bool, typer.Option("--explain", help="Only list the steps of the plan.")] = False,
    webserver: Webserver = "",
) -> None:
    """Announce a planned campaign, claim its days, and launch it as native backfills: canaries first, then the rest."""
    application = Application.from_env()
    planned = application.ledger.campaign(campaign).plan
    days = application.planner.moved(planned)
    moved = f"moved since the plan, and built from what is there now: {shown_days(days)}" if days else ""
    if explained:
        say("\n".join(filter(None, (explain(planned), moved))))
        return
    with opened_desk(application, webserver) as desk:
        launched = desk.control.launch(campaign, canary_only=canary_only)
        say(f"campaign {campaign} is launched; unit {launched.unit} claims {_targets(launched.plan)}")
        for attention in filter(None, (moved, uncompared(launched))):
            say(attention)
        if watch:
            follow_campaign(application, desk, campaign)
        else:
            say(f"the Dagster daemon runs it; see: backfill status {campaign}")


def pause(campaign: CampaignId, reason: Reason, webserver: Webserver = "") -> None:
    """Let no further batch start; what is at work ends, what has passed stays, no run slot is held."""
    with opened_desk(Application.from_env(), webserver) as desk:
        desk.control.pause(campaign, reason)
    say(f"campaign {campaign} is paused; go on with: backfill resume {campaign}")


def stop(campaign: CampaignId, reason: Reason, webserver: Webserver = "") -> None:
    """Stop a campaign for a cause that has to be mended; what has passed stays."""
    with opened_desk(Application.from_env(), webserver) as desk:
        desk.control.stop(campaign, reason)
    say(f"campaign {campaign} is stopped; after the cause is mended: backfill resume {campaign}")


def set_knobs(
    campaign: CampaignId,
    knobs: Annotated[list[str], typer.Argument(help="max_concurrency=1 or partitions_per_batch=14, or both.")],
    reason: Reason = "",
) -> None:
    """Turn the knobs of a campaign; batches that start from now on go by them."""
    given = {}
    for knob in knobs:
        name, _, value = knob.partition("=")
        if name not in {"max_concurrency", "partitions_per_batch"} or not _COUNT.fullmatch(value):
            raise typer.BadParameter(
                f"{knob[:_SHOWN]!r}: write max_concurrency=N or partitions_per_batch=N, N from 1 on"
            )
        given[name] = int(value)
    application = Application.from_env()
    with opened_desk(application, "") as desk:
        knobs_now = desk.control.set(campaign, reason, **given).knobs
    say(
        f"campaign {campaign}: max_concurrency={knobs_now.max_concurrency}, "
        f"partitions_per_batch={knobs_now.partitions_per_batch}"
    )


def list_campaigns(json: Json = False) -> None:
    """List all campaigns, newest first, with their state."""
    application = Application.from_env()
    rows = []
    with opened_desk(application, "") as desk:
        for campaign in application.ledger.campaigns():
            standing = desk.standings.of(campaign.id)
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


def resume_campaign(application: Application, campaign: str, how: tuple[str, bool, bool], webserver: str) -> None:
    """Go on with a campaign; `how` is (reason, only explain, watch)."""
    reason, only_explain, watch = how
    with opened_desk(application, webserver) as desk:
        if only_explain:
            say_standing(application, desk.standings.of(campaign), details=True)
            return
        desk.control.resume(campaign, reason)
        say(f"campaign {campaign} goes on with what is missing, failed or stale")
        if watch:
            follow_campaign(application, desk, campaign)


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


def _targets(made: Plan) -> str:
    return "; ".join(f"{name} {format_days(days, most=3)}" for name, days in made.targets.items())
