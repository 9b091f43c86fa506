"""Commands about releases and for readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.campaigns import publish_campaign
from backfill_assets.cli.output import DryRun, Json, as_json, campaign_of, chosen_day, say, table
from backfill_assets.core.days import checked_range, format_days
from backfill_assets.core.errors import CampaignError, EvidenceError, RollbackError
from backfill_assets.core.release import DaySwap, restorable_until
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.dataset.definition import Publication

Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"])]


_TEN_YEARS = 10 * 365 * 24 * 60
"""In minutes."""


def releases(
    dataset: Annotated[str, typer.Argument(help="A dataset; without it, all.")] = "",
    json: Json = False,
) -> None:
    """List releases, newest first, and until when each can be rolled back."""
    application = Application.from_env()
    if dataset:
        application.dataset(dataset)
    rows = [_row(application, record) for record in application.ledger.releases(dataset or None)]
    if json:
        as_json(rows)
    else:
        columns = (
            "release",
            "kind",
            "dataset",
            "days",
            "version",
            "state",
            "by",
            "at (UTC)",
            "restorable until",
            "unit",
        )
        table(columns, [tuple(row.values()) for row in rows])


def publish(
    unit: Annotated[str, typer.Argument(help="A unit or a campaign.")],
    evidence: Annotated[
        str,
        typer.Option(
            help="Release this evidence and no other; of a unit without a campaign it is the approval as well."
        ),
    ] = "",
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    outside_window: Annotated[
        str, typer.Option(metavar="REASON", help="Publish a campaign outside of its publish window, and why.")
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Release a complete unit in one atomic commit per table; refused unless every day's evidence is there and fresh."""
    application = Application.from_env()
    if campaign := campaign_of(application, unit):
        how = {"reason": reason, "outside_window": outside_window, "evidence_hash": evidence}
        _say_outdated(application, publish_campaign(application, campaign, how, dry_run=dry_run))
        return
    if outside_window or dry_run:
        raise CampaignError(
            f"--outside-window and --dry-run are for campaigns, and {unit!r} is none; see: backfill list"
        )
    if not evidence and needs_approval(application, unit):
        raise EvidenceError(
            f"unit {unit} is released only after approval: review it with `backfill status {unit}`, and name the "
            "evidence hash that it shows with --evidence"
        )
    release_now(application, unit, evidence, reason)


def release_now(application: Application, unit: str, evidence: str = "", reason: str = "") -> None:
    """Release a unit, tell Dagster, and say what was released and what is to be done next."""
    from backfill_assets.orchestration.release_events import report_release  # loads Dagster

    outcome = application.publisher.release(unit, evidence_hash=evidence or None, reason=reason)
    report_release(application, outcome)
    for name, days in outcome.days.items():
        say(f"{outcome.releases[name]}: {name} {format_days(days)} is published")
        say(f"undo it with: backfill rollback {outcome.releases[name]} --reason '…'")
    _say_outdated(application, outcome.days)


def rollback(
    release: Annotated[str, typer.Argument(help="The release to undo, as `backfill releases` lists it.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the history and shown to whoever meets the hold.")],
    first: Day = None,
    last: Day = None,
    include_rewritten: Annotated[
        bool,
        typer.Option(help="Also put back days that somebody has rewritten past the releases; their newer rows go."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Put the days of a release back to what they were; days written since stay, and later releases have to go first."""
    from backfill_assets.orchestration.release_events import report_rollback  # loads Dagster

    application = Application.from_env()
    days = _days(application.ledger.release(release), first, last)
    plan = application.rollback.plan(release, days=days)
    consent = frozenset(plan.rewritten) if include_rewritten else frozenset()
    if plan.rewritten:
        how = "put back too" if include_rewritten else "left alone (without --include-rewritten)"
        say(f"rewritten since, {how}: {format_days(plan.rewritten)}")
    for covered in plan.covered:
        say(f"left alone: {covered}")
    if dry_run:
        _say_rollback(plan.chosen(consent), application.rollback.refusals(plan, consent))
        return
    done = application.rollback.execute(release, reason, days=days, consent_rewritten=consent)
    report_rollback(application, done)
    say(f"{done.release}: {done.dataset} {format_days(done.days)} is back to what it was before {release}")
    lift = f"backfill hold lift {done.dataset} {min(done.days)} {max(done.days)}"
    say(f"live runs leave these days alone until they are published again, or: {lift}")
    _say_outdated(application, (done.dataset,))


def _say_rollback(swaps: Sequence[DaySwap], refusals: Sequence[RollbackError]) -> None:
    if swaps:
        say(f"would put back: {format_days(swap.day for swap in swaps)}")
    for refusal in refusals:
        say(f"would be refused: {refusal}")
    if refusals:
        raise typer.Exit(1)


def _say_outdated(application: Application, changed: Iterable[str]) -> None:
    for name in application.catalog.downstream_of(changed):
        if days := application.outdated.of(name).days:
            say(
                f"{name} {format_days(days)} was built from what has changed now; bring it up to date: "
                f"backfill refresh {name}, with --expected-change if its figures must change"
            )


def reconcile() -> None:
    """Make the ledger agree with the Delta logs after a crash; doing it again changes nothing."""
    done = Application.from_env().reconcile.run()
    for line in done:
        say(str(line))
    say(f"{len(done)} things mended" if done else "ledger and Delta logs agree")


def sweep(
    grace: Annotated[
        int, typer.Option(help="Leave files alone that are younger than this many minutes.", min=0, max=_TEN_YEARS)
    ] = 60,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Remove shadow files that no reader, no release in its window and no open unit needs, and old files of staging."""
    application = Application.from_env()
    sweeper = application.sweep(timedelta(minutes=grace))
    swept = sweeper.plan() if dry_run else sweeper.execute()
    staging = {} if dry_run else application.vacuum_staging()
    if json:
        as_json(swept)
        return
    for item in swept:
        say(item.listed("would go" if dry_run else "are gone"))
    for name, count in staging.items():
        if count:
            say(f"{name}: {number_of(count, 'old file')} of staging gone")


def needs_approval(application: Application, unit: str) -> bool:
    """Whether a person has to approve the evidence of a unit before it is released."""
    datasets = [application.dataset(name) for name in application.ledger.unit(unit).targets]
    return any(d.publication is Publication.approval for d in datasets)


def _row(application: Application, record: ReleaseRecord) -> dict[str, object]:
    manifest, at = record.manifest, record.since
    loaded = application.datasets.get(manifest.dataset)
    until = restorable_until(at, loaded.dataset.retention.keep_for) if at and loaded else None
    return {
        "release": manifest.release, "kind": manifest.kind.value, "dataset": manifest.dataset,
        "days": format_days((s.day for s in manifest.days), most=3),
        "version": "-" if record.version is None else record.version, "state": record.state.value, "by": manifest.by,
        "at": f"{manifest.created_at:%Y-%m-%d %H:%M}",
        "restorable_until": f"{until:%Y-%m-%d}" if until and manifest.kind.value == "publish" else "-",
        "unit": manifest.unit,
    }  # fmt: skip


def _days(record: ReleaseRecord, first: datetime | None, last: datetime | None) -> frozenset[date] | None:
    if first is None and last is None:
        return None
    own = sorted(swap.day for swap in record.manifest.days)
    edges = chosen_day(first) if first else own[0], chosen_day(last) if last else own[-1]
    checked_range(*edges)
    return frozenset(day for day in own if edges[0] <= day <= edges[1])


def path(
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    release: Annotated[
        str, typer.Option(help="A release of it: also print, after a tab, the version to read it by.")
    ] = "",
    json: Json = False,
) -> None:
    """Print the folder of a dataset's published Delta table, for readers without Spark."""
    application = Application.from_env()
    application.dataset(dataset)
    folder = application.layout.published_path(dataset)
    found = application.time_travel.to_release(dataset, release) if release else None
    if json:
        newest = application.tables[dataset].version()
        version = {"dataset": dataset, "version": newest if newest >= 0 else None} if found is None else vars(found)
        as_json({"path": str(folder), **version})
    else:
        # For $(…) and `read`, so without rich's wrapping; a tab is the one separator that `cut` takes by itself.
        print(folder if found is None else f"{folder}\t{found.version}")  # noqa: T201
