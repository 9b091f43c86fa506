"""Commands about releases, the holds that rollbacks leave, and for readers."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from backfill_assets import operations
from backfill_assets.application import Application
from backfill_assets.cli.campaigns import say_release
from backfill_assets.cli.output import DryRun, Json, as_json, campaign_of, finish, opened_shell, say, table, warn
from backfill_assets.control.approve import needs_approval
from backfill_assets.core.days import format_days, parse_days
from backfill_assets.core.errors import ArgumentError, CampaignError, EvidenceError, InvalidDayError
from backfill_assets.core.release import restorable_until
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import ReleaseRecord

_MOST: Final = 50


def releases(
    dataset: Annotated[str, typer.Argument(help="A dataset; without it, all.")] = "",
    most: Annotated[
        int | None,
        typer.Option(min=0, help=f"List at most so many, 0 for all; by default {_MOST}, and all with --json."),
    ] = None,
    json: Json = False,
) -> None:
    """List the newest releases, the last one first, and until when each can be rolled back."""
    application = Application.from_env()
    if dataset:
        application.dataset(dataset)
    limit = (0 if json else _MOST) if most is None else most
    found = application.ledger.releases(dataset or None, most=limit + 1 if limit else None)
    rows = [_row(application, record) for record in found[: limit or None]]
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
    if limit and len(found) > limit:
        warn(f"there are older releases; see: backfill releases{f' {dataset}' if dataset else ''} --most 0")


def publish(
    unit: Annotated[str, typer.Argument(help="A unit or a campaign.")],
    evidence: Annotated[
        str,
        typer.Option(help="Release exactly this evidence; for a unit without a campaign this is also the approval."),
    ] = "",
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    outside_window: Annotated[str, typer.Option(metavar="REASON", help=operations.PARAMETERS["outside_window"])] = "",
    dry_run: DryRun = False,
) -> None:
    """Release a complete unit in one atomic commit per table; refused unless every day has current evidence."""
    application = Application.from_env()
    campaign = campaign_of(application, unit)
    if not campaign and (outside_window or dry_run):
        raise CampaignError(
            f"--outside-window and --dry-run are for campaigns, and {unit!r} is not one; see: backfill list"
        )
    targets = () if campaign else application.ledger.unit(unit).targets
    if not evidence and needs_approval(None, targets, application.catalog.definitions):
        raise EvidenceError(
            f"unit {unit} is released only after approval: review it with `backfill status {unit}`, then pass the "
            "evidence hash that it shows with --evidence"
        )
    how = {"evidence": evidence, "outside_window": outside_window}
    with opened_shell(application) as shell:
        if dry_run:
            say_release(shell, campaign, **how)
        elif campaign:
            finish(operations.publish_campaign(shell, campaign, reason=reason, **how))
        else:
            finish(operations.publish_unit(shell, unit, evidence=evidence or None, reason=reason))


def reconcile(
    accept_older: Annotated[
        str,
        typer.Option(
            metavar="DATASET",
            help="Let its table go on as it is, although its log lacks releases that the ledger has: they count no more.",
        ),
    ] = "",
) -> None:
    """Make the ledger agree with the Delta logs after a crash; safe to repeat."""
    application = Application.from_env()
    for release in application.reconcile.accept_older(accept_older) if accept_older else ():
        say(
            f"{release} of {accept_older} counts no more; see which days come out differently: backfill stale {accept_older}"
        )
    done = application.reconcile.run()
    for line in done:
        say(str(line))
    say(f"{len(done)} settled or left alone" if done else "ledger and Delta logs agree")
    if any(one.kind.left for one in done):
        raise typer.Exit(1)


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


def sandbox(
    dataset: Annotated[str, typer.Argument(help="A dataset; without it, all sandboxes are listed.")] = "",
    days: Annotated[str, typer.Argument(help="Published days of it, such as 2024-03-01..2024-03-07.")] = "",
    name: Annotated[str, typer.Argument(help="What the copy is called.")] = "",
    drop: Annotated[str, typer.Option(metavar="NAME", help="Remove this sandbox.")] = "",
) -> None:
    """Copy some published days into the table sandbox.NAME, to try a model on them; changes there reach nobody else.

    backfill sandbox flights 2013-03-01..2013-03-07 trial
    """
    application = Application.from_env()
    if drop:
        application.sandboxes.drop(drop)
        say(f"dropped: sandbox.{drop}")
        return
    if not dataset:
        table(("sandbox", "copied from"), sorted(application.sandboxes.listed().items()))
        return
    if not days or not name:
        raise ArgumentError(f"name the days of {dataset} and the copy, such as: backfill sandbox {dataset} DAYS trial")
    asked, published = parse_days(days), application.tables[application.dataset(dataset).name]
    application.dataset(dataset).check_days(asked)
    version = published.version()
    held = {day for day, files in (published.at(version) if version >= 0 else {}).items() if files}
    copied = tuple(day for day in asked if day in held)
    if not copied:
        raise InvalidDayError(
            f"{dataset} {format_days(asked, most=3)}: no row of these days is published, so there is nothing to copy"
        )
    now, who = application.clock.now(), application.identity.name()
    about = f"{dataset} {format_days(copied, most=3)}, version {version}, on {now:%Y-%m-%d} by {who}"
    rows = application.sandboxes.copy(dataset, copied, version, name, about)
    say(f"sandbox.{name}: {number_of(rows, 'row')} of {number_of(len(copied), 'day')} of {dataset}, version {version}")
    if empty := [day for day in asked if day not in held]:
        say(f"  not published, or without rows: {format_days(empty, most=3)}")
    say(f'  try it: backfill sql "SELECT * FROM sandbox.{name} LIMIT 10"; remove it: backfill sandbox --drop {name}')


def path(
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    release: Annotated[
        str, typer.Option(help="A release of it: also print, after a tab, the table version to read it by.")
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
        # For $(…) and `read`, so without rich's wrapping; a tab is the default separator of `cut`.
        print(folder if found is None else f"{folder}\t{found.version}")  # noqa: T201


hold = typer.Typer(help="Days that the live pipeline and refresh do not touch.", no_args_is_help=True)


@hold.command("list")
def hold_list(dataset: Annotated[str, typer.Argument(help="A dataset.")]) -> None:
    """List the days on hold."""
    application = Application.from_env()
    application.dataset(dataset)
    rows = [(h.target[1], h.reason, h.by, f"{h.since:%Y-%m-%d %H:%M}") for h in application.ledger.holds(dataset)]
    table(("day", "reason", "by", "since (UTC)"), rows)


@hold.command("lift")
def hold_lift(
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    days: Annotated[str, typer.Argument(metavar="DAYS", help=operations.PARAMETERS["partitions"])],
) -> None:
    """Let the live pipeline and refresh work on these days again."""
    application = Application.from_env()
    chosen = parse_days(days)
    application.dataset(dataset).check_days(chosen)
    say(f"no longer on hold: {number_of(application.ledger.lift(dataset, chosen), 'day')} of {dataset}")
