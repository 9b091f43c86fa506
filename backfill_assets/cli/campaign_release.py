"""Commands after a campaign's last batch: preview, approve, publish, sign off, clean up, watch, look back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.campaign.load import uncompared
from backfill_assets.cli.campaigns import CampaignId, Reason
from backfill_assets.cli.output import as_json, chosen_day, say, table
from backfill_assets.cli.report import say_report
from backfill_assets.cli.status import Json
from backfill_assets.control.publication import ReleasePlan
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.unit import shown_days
from backfill_assets.release.history import DayChange

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


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
        _say_plan(application.campaign_release.plan(campaign, **asked))
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


def _say_plan(plan: ReleasePlan) -> None:
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
