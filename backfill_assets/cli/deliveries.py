"""Commands about deliveries: which are in force, withdraw them, read them again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import Json, as_json, say, table
from backfill_assets.cli.stale import warn_of_problems
from backfill_assets.core.days import format_days, parse_day, parse_days
from backfill_assets.core.errors import ArgumentError
from backfill_assets.core.text import number_of
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.pipeline.deliveries import Chosen, Done, ShownDelivery
from backfill_assets.pipeline.purge import Purge, Purged

Name = Annotated[str, typer.Argument(help="A dataset with a source.")]
Prefix = Annotated[str, typer.Option(help="A folder below the sources folder with everything in it, or one file.")]
Reason = Annotated[str, typer.Option(help="Why, for the journal.")]
DeliveryDays = Annotated[str, typer.Option(metavar="DAYS", help="Delivery days, such as 2024-03-01..2024-03-07.")]


def deliveries(dataset: Name, days: DeliveryDays = "", json: Json = False) -> None:
    """Show which deliveries are in force, why others are not, and what the sources have now."""
    application = _opened(dataset)
    found = application.delivery_commands.shown(dataset, parse_days(days, "--days") if days else ())
    rows = [_row(one) for one in found]
    if json:
        as_json(rows)
        return
    columns = ("day", "file", "content", "rows", "unreadable", "delivered (UTC)", "in force", "why", "source")
    table(columns, [tuple(row[name] for name in _SHOWN) for row in rows])


def withdraw(
    dataset: Name,
    file: Annotated[str, typer.Argument(help="A file, by its path below the sources folder.")] = "",
    prefix: Prefix = "",
    reason: Reason = "",
    undo: Annotated[bool, typer.Option("--undo", help="Undo a withdrawal.")] = False,
) -> None:
    """Withdraw the newest delivery of a path: it stays in raw, but nothing is built from it any more."""
    if bool(file) == bool(prefix):
        raise ArgumentError("name one file, or a folder with --prefix")
    application, chosen = _opened(dataset), Chosen(file, prefix)
    commands = application.delivery_commands
    done = commands.restore(dataset, chosen, reason) if undo else commands.withdraw(dataset, chosen, reason)
    # A day that was published from the deliveries now in force is up to date.
    found = application.staleness.of(dataset, {StaleCause.source})
    stale = tuple(day for day in found.days if day in done.published)
    _say(dataset, done, "restored" if undo else "withdrawn", stale)
    warn_of_problems([found])


def purge(
    dataset: Name,
    file: Annotated[str, typer.Argument(help="A file, by its path below the sources folder.")] = "",
    prefix: Prefix = "",
    before: Annotated[str, typer.Option(metavar="DAY", help="Only of delivery days before this one.")] = "",
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Delete deliveries that no longer count from raw, for good; what counts has to be withdrawn first."""
    if not file and not prefix and not before:
        raise ArgumentError("say which: a file, a folder with --prefix, or --before DAY")
    application, chosen = _opened(dataset), Chosen(file, prefix)
    day = parse_day(before, "--before") if before else None
    if dry_run:
        _say_purged(Purge(application.pipeline).plan(dataset, chosen, day), "would be purged")
        return
    with application.session(application.ids.new("purge")) as spark:
        done = Purge(application.pipeline).execute(spark, dataset, chosen, reason, day)
    if done.deliveries or not done.kept:
        _say_purged(done, "purged")
    for path in sorted({one.path for one in done.kept}):
        say(f"not purged: {path} counts again; see: backfill deliveries {dataset}")
    if done.kept:
        raise typer.Exit(1)


def reland(
    dataset: Name,
    days: DeliveryDays = "",
    prefix: Prefix = "",
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Keep deliveries in raw as they are if their file is gone.")
    ] = False,
) -> None:
    """Read source files again, and replace their rows in raw."""
    if not days and not prefix:
        raise ArgumentError("say which files: --days 2024-03-01..2024-03-07, or --prefix")
    application, chosen = _opened(dataset), Chosen(prefix=prefix, days=parse_days(days, "--days") if days else ())
    with application.session(application.ids.new("reland")) as spark:
        done = application.delivery_commands.reland(spark, dataset, chosen, reason, force=force)
    _say(dataset, done, "read again", done.published)


_SHOWN = ("day", "path", "content", "rows", "corrupt_rows", "delivered_at", "in_force", "why", "source")


def _opened(dataset: str) -> Application:
    application = Application.from_env()
    # Refuses a dataset that does not exist or has no source.
    _ = application.dataset(dataset).landing
    return application


def _row(one: ShownDelivery) -> dict[str, object]:
    found, row = one.standing, {"day": one.day.isoformat(), "path": one.path, "source": one.source}
    if found is None:
        unknown = ("content", "rows", "corrupt_rows", "delivered_at", "order", "fingerprint")
        return {**row, **dict.fromkeys(unknown, "-"), "in_force": "no", "why": ""}
    delivery = found.delivery
    return {
        **row, "content": delivery.fingerprint[:8], "rows": delivery.rows, "corrupt_rows": delivery.corrupt_rows,
        "delivered_at": f"{delivery.delivered_at:%Y-%m-%d %H:%M:%S}", "order": delivery.order,
        "fingerprint": delivery.fingerprint, "in_force": "yes" if found.counts else "no", "why": found.why,
    }  # fmt: skip


def _say_purged(done: Purged, what: str) -> None:
    if not done.deliveries:
        say("nothing to do: already purged")
        return
    first, *others = sorted({one.path for one in done.deliveries})
    until = f", last {others[-1]}" if others else ""
    number = number_of(len(done.deliveries), "file")
    say(f"{what}: {number}, first {first}{until}; {number_of(done.rows, 'row')} of raw")
    say("the data files that had them go with the first `backfill sweep` after 7 days")


def _say(dataset: str, done: Done, what: str, stale: Sequence[dt.date]) -> None:
    if not done.deliveries:
        say(f"nothing to do: already {what}")
        return
    first, *others = sorted({one.path for one in done.deliveries})
    until = f", last {others[-1]}" if others else ""
    say(f"{what}: {number_of(len(done.deliveries), 'file')}, first {first}{until}")
    say(f"built from them: {dataset} {format_days(done.days)}")
    if stale:
        say(f"published as before: {format_days(stale)}; build them again with: backfill refresh {dataset}")
