"""Commands about open units and days on hold."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.desk import campaign_of, opened_desk
from backfill_assets.cli.output import chosen_day, say, table
from backfill_assets.core.days import checked_range, day_range, format_days
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import UnitState

hold = typer.Typer(help="Days that the live pipeline and refresh leave alone.", no_args_is_help=True)


def discard(
    unit: Annotated[str, typer.Argument(help="A unit, as `backfill status` lists it, or a campaign.")],
    reason: Annotated[str, typer.Option(help="Why; kept in a campaign's journal.")] = "",
) -> None:
    """Give an open unit up: nothing of it is published, its days are free again, the sweep takes its files."""
    application = Application.from_env()
    if campaign := campaign_of(application, unit):
        with opened_desk(application, "") as desk:
            found = desk.control.discard(campaign, reason)
    else:
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
    """Let the live pipeline and refresh work on these days again."""
    application = Application.from_env()
    edges = (chosen_day(first), chosen_day(last))
    checked_range(*edges)
    application.dataset(dataset).check_days(edges)
    days = day_range(*edges)
    say(f"no longer on hold: {number_of(application.ledger.lift(dataset, days), 'day')} of {dataset}")
