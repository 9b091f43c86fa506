"""Commands about campaigns, from plan to clean-up."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.campaign.load import uncompared
from backfill_assets.campaign.plan import SHOWN_DIGITS, Plan, explain
from backfill_assets.cli.campaign_status import follow_campaign, say_standing
from backfill_assets.cli.output import (
    DryRun,
    Json,
    Webserver,
    as_json,
    backfill_slots,
    chosen_day,
    opened_desk,
    say,
    table,
)
from backfill_assets.cli.proof import say_report
from backfill_assets.control.planner import Freezer
from backfill_assets.control.publication import ReleasePlan
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import shown_days
from backfill_assets.release.readers import DayChange

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


def preview(
    unit: Annotated[str, typer.Argument(help="A campaign, or an open unit.")],
    drop: Annotated[bool, typer.Option("--drop", help="Drop the preview.")] = False,
) -> None:
    """Create the views `preview.<dataset>`: published outside the range, the unit's new days inside."""
    application = Application.from_env()
    unit = unit_of(application, unit)
    if drop:
        say(f"dropped: {', '.join(application.preview.drop(unit)) or 'nothing'}")
        return
    for shown in application.preview.show(unit):
        say(f"{shown.view}: {len(shown.new)} new days ({format_days(shown.new, most=3)})")
        if shown.lacking:
            say(f"  as published still: {format_days(shown.lacking, most=3)}")
        say(f'  try it: backfill sql "SELECT * FROM {shown.view} LIMIT 10"')


def approve(
    campaign: CampaignId,
    evidence: Annotated[str, typer.Option(help="The evidence hash that you approve, as `backfill status` shows it.")],
    by: Annotated[str, typer.Option(help="The name of the specification's list in which you approve.")] = "",
    reason: Reason = "",
) -> None:
    """Approve exactly the evidence that you have seen; days recomputed later need an approval of their own."""
    application = Application.from_env()
    given = application.approving.approve(campaign, evidence, by=by, reason=reason)
    who = given.identity if given.by == given.identity else f"{given.identity} as {given.by}"
    say(f"{who} approves {shown_days(given.days)} of campaign {campaign}, evidence {given.evidence[:16]}")
    say_report(application, application.ledger.campaign(campaign).unit)
    say(f"next: backfill publish {campaign}")


def publish_campaign(
    application: Application, campaign: str, how: Mapping[str, str], *, dry_run: bool
) -> Mapping[str, tuple[date, ...]]:
    """Publish a campaign, or say what that would do; `how` has reason, outside_window, evidence_hash; the days by dataset."""
    from backfill_assets.orchestration.release_events import report_release  # loads Dagster

    if attention := uncompared(application.ledger.campaign(campaign)):
        say(f"attention: {attention}")
    if dry_run:
        asked = {name: value for name, value in how.items() if name != "reason"}
        _say_release(application.campaign_release.plan(campaign, **asked))
        return {}
    publication = application.campaign_release.publish(campaign, **how)
    report_release(application, publication.outcome)
    say(str(publication))
    for name, days in publication.outcome.days.items():
        say(f"{publication.outcome.releases[name]}: {name} {format_days(days)} is published")
        say(f"undo it with: backfill rollback {publication.outcome.releases[name]} --reason '…'")
    return publication.outcome.days


def sign_off(campaign: CampaignId, reason: Reason = "") -> None:
    """Close a published campaign: somebody has looked at what readers see, and it is right."""
    application = Application.from_env()
    application.sign_off.sign_off(campaign, reason)
    say(f"campaign {campaign} is signed off by {application.identity.name()}; its files stay until the window ends")


def cleanup(campaign: CampaignId, reason: Reason = "", dry_run: DryRun = False, json: Json = False) -> None:
    """Let go of what only a rollback of the campaign needed, after its window has ended and it is signed off."""
    application = Application.from_env()
    done = application.sign_off.cleanup(campaign, reason, dry_run=dry_run)
    if json:
        as_json(done)
        return
    if done.window_until is not None:
        say(f"the rollback window ends at {done.window_until:%Y-%m-%d %H:%M} UTC")
    if done.refusal:
        say(f"would be refused: {done.refusal}")
    say(done.listed(dry_run=dry_run))


def watch_release(
    release: Annotated[str, typer.Argument(help="A release, as `backfill releases` lists it.")], json: Json = False
) -> None:
    """Run the queries of a dataset's consumers before, after and now; exit code 1 if a figure has drifted."""
    seen = Application.from_env().watch_release.watch(release)
    if json:
        as_json(seen)
    else:
        rows = [(w.consumer, w.figure, w.before, w.after, w.now, "drifted" if w.drifted else "") for w in seen.figures]
        table(("consumer", "figure", "before", "after", "now", ""), rows, f"{seen.dataset} through {seen.through}")
        say(str(seen))
    if seen.drifted:
        raise typer.Exit(1)


def history(
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    day: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Only this day.")] = None,
    json: Json = False,
) -> None:
    """Tell who changed the days of a dataset, when, why, and from what to what."""
    application = Application.from_env()
    application.dataset(dataset)
    changes = application.history.of(dataset, None if day is None else [chosen_day(day)])
    if json:
        as_json(changes)
        return
    columns = ("day", "release", "kind", "by", "approved by", "at (UTC)", "rows", "measures", "why")
    table(columns, [_change(change) for change in changes])


def unit_of(application: Application, name: str) -> str:
    """The unit of that name, or the unit of the campaign of that name.

    Raises:
        CampaignError: the campaign was never launched.
    """
    if name not in {campaign.id for campaign in application.ledger.campaigns()}:
        return name
    unit = application.ledger.campaign(name).unit
    if not unit:
        raise CampaignError(f"campaign {name} was never launched; do that with: backfill launch {name}")
    return unit


def _change(change: DayChange) -> tuple[object, ...]:
    moved = {name: pair for name, pair in change.measures.items() if pair[0] != pair[1]}
    measures = ", ".join(
        f"{name} {' → '.join('nothing' if v is None else str(v) for v in pair)}" for name, pair in moved.items()
    )
    return (
        change.day, change.release, change.kind.value, change.by, change.approved_by or "-",
        f"{change.at:%Y-%m-%d %H:%M}", f"{_some(change.rows_before)} → {_some(change.rows_after)}", measures,
        "; ".join(filter(None, [change.reason, f"ends the hold of {change.repairs}" if change.repairs else ""])),
    )  # fmt: skip


def _some(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"


def _say_release(plan: ReleasePlan) -> None:
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
