"""Commands about open units and days on hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.campaigns import resume_campaign
from backfill_assets.cli.output import say, table
from backfill_assets.domain.days import day_range, format_days, parse_day
from backfill_assets.domain.units import UNIT_TAG, UnitState

UnitId = Annotated[str, typer.Argument(help="The unit, as `backfill status` lists it.")]
hold = typer.Typer(help="Days that the live pipeline must leave alone.", no_args_is_help=True)


Webserver = Annotated[
    str, typer.Option(envvar="BACKFILL_ASSETS_WEBSERVER", help="URL of a Dagster webserver to launch through.")
]


def resume(
    unit: Annotated[str, typer.Argument(help="A unit or a campaign.")],
    reason: Annotated[str, typer.Option(help="Why; kept in a campaign's journal.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Only say which days would run, and why.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay with a campaign until it ends.")] = False,
    webserver: Webserver = "",
) -> None:
    """Launch what a campaign or an open unit still lacks, and only that; a unit is then released."""
    application = Application.from_env()
    if unit in {campaign.id for campaign in application.ledger.campaigns()}:
        resume_campaign(application, unit, (reason, explain, watch), webserver)
        return
    found = application.ledger.unit(unit)
    lacking = {(f.dataset, f.day) for f in application.publisher.missing(unit)}
    # A unit that lacks nothing only needs its release: any of its days brings that about.
    lacking |= {(name, days[0]) for name, days in found.targets.items()} if not lacking else set()
    names = {name for name, _ in lacking}
    names |= set(application.catalog.downstream_of(names)) & set(found.targets)
    days = sorted({day for _, day in lacking})
    _launch(application, sorted(names), days, (f"resume {unit}", f"what unit {unit} still lacks", unit), webserver)


def refresh(
    dataset: Annotated[
        str, typer.Argument(help="A dataset; without it, all that their upstreams have left behind.")
    ] = "",
    webserver: Webserver = "",
) -> None:
    """Launch a backfill of the published days that were built from an upstream as it was before its last release."""
    application = Application.from_env()
    if dataset:
        application.dataset(dataset)
    outdated = [o for o in application.outdated.all() if not dataset or o.dataset == dataset]
    if not outdated:
        say("nothing is outdated: every published day was built from what is published of its upstreams")
        return
    for group in application.catalog.groups:
        mine = [o for o in outdated if o.dataset in group]
        # What is built from a dataset that is built anew will be outdated next: it comes along.
        names = {o.dataset for o in mine} | set(application.catalog.downstream_of(o.dataset for o in mine))
        days = sorted({day for o in mine for day in o.days})
        if names:
            _launch(
                application, sorted(names), days, ("refresh", "days that their upstreams left behind", ""), webserver
            )


def _launch(
    application: Application, names: Sequence[str], days: Sequence[date], about: tuple[str, str, str], webserver: str
) -> None:
    from backfill_assets.orchestration.backfills import Backfill, launch_backfill  # loads Dagster
    from backfill_assets.orchestration.names import keys_of, layers_of

    title, description, unit = about
    first, *others = application.catalog.upstream_first(names)
    layers = {name: layers_of(application.dataset(name)) for name in names}
    backfill = Backfill(
        dataset=first,
        partitions=tuple(keys_of(days)),
        layers=layers[first],
        others={name: layers[name] for name in others},
        title=title,
        description=description,
        tags={UNIT_TAG: unit} if unit else {},
    )
    backfill_id = launch_backfill(backfill, webserver or None)
    where = f" in unit {unit}" if unit else ""
    say(f"launched backfill {backfill_id}: {', '.join(names)} {format_days(days)}{where}; the Dagster daemon runs it")


def discard(unit: UnitId) -> None:
    """Give an open unit up: nothing of it is published, its days are free again, the sweep takes its files."""
    application = Application.from_env()
    found = application.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    say(f"discarded {found.id}; free again: " + "; ".join(f"{n} {format_days(d)}" for n, d in found.targets.items()))


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
    first: Annotated[datetime, typer.Argument(formats=["%Y-%m-%d"], help="First day.")],
    last: Annotated[datetime, typer.Argument(formats=["%Y-%m-%d"], help="Last day.")],
) -> None:
    """Let the live pipeline work on these days again."""
    application = Application.from_env()
    application.dataset(dataset)
    days = day_range(parse_day(f"{first:%Y-%m-%d}"), parse_day(f"{last:%Y-%m-%d}"))
    say(f"{application.ledger.lift(dataset, days)} days of {dataset} are no longer on hold")
