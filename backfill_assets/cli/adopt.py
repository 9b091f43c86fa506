"""Commands about tables that were there before: adopt, unadopt."""

from __future__ import annotations

import os
import re
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import DryRun, finish, opened_shell, say
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ArgumentError, PreconditionError
from backfill_assets.core.text import number_of
from backfill_assets.dataset.releasing import AuditTrail
from backfill_assets.dataset.yaml import shown_path
from backfill_assets.delta.adoptable import FoundTable, look_at
from backfill_assets.operations import Result
from backfill_assets.project.adopted_dataset import draft_of
from backfill_assets.project.scaffold import Scaffold
from backfill_assets.release.adopt import LAST_SWEEP
from backfill_assets.settings import place_of
from backfill_assets.storage.adopted import require_free
from backfill_assets.storage.layout import OWNER
from backfill_assets.storage.location import Location

Name = Annotated[str, typer.Argument(help="The name of the dataset.")]
_STOP = (
    "stop the job that writes this table, and every VACUUM and OPTIMIZE of it, and let them finish: from now on only releases "
    "may write there"
)


def adopt(
    name: Name,
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PATH|TABLE",
            help="The table: its folder, s3://bucket/folder, or its name in Spark's catalog.",
        ),
    ] = "",
    key: Annotated[
        str, typer.Option(help="The columns that identify a row, for the first draft of dataset.yaml.")
    ] = "",
    audit: Annotated[
        AuditTrail, typer.Option(help="Where the draft records who wrote a row: in columns of the table, or not in it.")
    ] = AuditTrail.ledger,
    drained: Annotated[
        bool, typer.Option("--drained", help="The table's former job has ended, and so have its VACUUM and OPTIMIZE.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Accept what another writer did to an adopted table as its new baseline.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Adopt a Delta table where it is, without copying data: draft its dataset.yaml, then name its files as a baseline."""
    application = Application.from_env()
    if again:
        if origin or key or dry_run or not reason:
            raise ArgumentError(
                "--again accepts what was found, so it needs a --reason, and no --from, --key or --dry-run"
            )
        _carry_out(application, name, None, reason)
        return
    if not origin:
        raise ArgumentError("say which table: --from PATH, or --from catalog.schema.name")
    table = _place(application, origin)
    if name not in {*application.datasets, *(problem.dataset for problem in application.catalog.problems)}:
        require_free(application.layout, name, table)
        _draft(application, name, look_at(table), key, audit, write=not dry_run)
        return
    application.dataset(name)
    _show(application.adoption.look(name, table))
    if application.adoption.is_lost(name):
        _put_back(application, name, table, write=not dry_run)
        return
    if dry_run or not drained:
        say(f"nothing was changed; {_STOP}. Then: backfill adopt {name} --from {origin} --drained")
        return
    _carry_out(application, name, table, reason or f"adopted from {origin}")


def unadopt(name: Name, dry_run: DryRun = False) -> None:
    """Give an adopted table back as a plain one, with the rows that readers see now; its releases cannot be undone then."""
    application = Application.from_env()
    if dry_run:
        refused = [f"would be refused: {need}" for need in application.adoption.needs_of(name)]
        finish(Result([*refused, f"nothing was changed; {LAST_SWEEP}"], failed=bool(refused)))
        return
    folder = application.adoption.give_back(name)
    if folder is None:
        say(f"nothing led to the table of {name} any more; its releases no longer count, and it keeps its file {OWNER}")
    else:
        say(
            f"{folder} is a plain Delta table again; other writers may write there. Keep its folder _shadow: it has rows"
        )
    say(
        f"next: remove {shown_path(application.datasets[name].folder)}, and restart Dagster; otherwise the next launch of {name} "
        "publishes to a new table in the warehouse"
    )


def _put_back(application: Application, name: str, table: Location, *, write: bool) -> None:
    if write:
        application.adoption.put_back(name, table)
    leads = "leads" if write else "would lead"
    say(f"{application.layout.link(name)} {leads} to it again; what was released to it counts as before")


def _carry_out(application: Application, name: str, table: Location | None, reason: str) -> None:
    adoption = application.adoption
    done = adoption.accept(name, reason) if table is None else adoption.adopt(name, table, reason)
    with opened_shell(application) as shell:
        shell.report(done)
    days = f", {format_days(done.days, most=3)}" if done.days else ""
    say(f"{done.release}: the baseline of {name} names {number_of(done.files, 'file')}{days}; version {done.version}")


def _place(application: Application, origin: str) -> Location:
    """Where a table is, by path or by its name in Spark's catalog."""
    if "/" in origin or os.path.isdir(origin):  # noqa: PTH112  # False, not an error, for a name that is too long
        return place_of(origin, os.environ)
    if not re.fullmatch(r"\w+(\.\w+){1,2}", origin):
        raise PreconditionError(f"{origin} is neither a folder nor the name of a table, such as catalog.schema.name")
    from pyspark.errors import PySparkException  # takes long to load, and a path does not need it

    try:
        with application.session(application.ids.new("adopt")) as spark:
            place = str(spark.sql(f"DESCRIBE DETAIL {origin}").collect()[0]["location"])
    except PySparkException as error:
        raise PreconditionError(f"{origin} is neither a folder nor a table that Spark knows: {error}") from None
    parts = urlsplit(place)
    if parts.scheme in {"", "file"}:
        return place_of(unquote(parts.path), os.environ)
    if parts.scheme not in {"s3", "s3a", "s3n"}:
        raise PreconditionError(
            f"{origin} lies at {place}, and only tables in folders and S3-compatible buckets are adopted"
        )
    return place_of(f"s3://{parts.netloc}{parts.path}", os.environ)


def _draft(application: Application, name: str, found: FoundTable, key: str, audit: AuditTrail, *, write: bool) -> None:
    _show(found)
    found.require_no_problems()
    keys = tuple(part.strip() for part in key.split(",") if part.strip())
    files = draft_of(found, name, keys, audit)
    folder = application.settings.datasets / name
    if not write:
        for file, text in files.items():
            say(f"--- {shown_path(folder / file)}\n{text}")
        return
    Scaffold(folder, files, {}).write()
    for file in files:
        say(f"wrote {shown_path(folder / file)}")
    say(
        "next: look them over, above all time_zone, end and source; restart Dagster, which reads datasets when it starts; then: "
        f"backfill adopt {name} --from {found.folder}"
    )


def _show(found: FoundTable) -> None:
    rows = "an unknown number of rows" if found.rows is None else number_of(found.rows, "row")
    days = f"{format_days(found.days, most=3)}, " if found.days else ""
    say(f"{found.folder}: {days}{rows} in {number_of(found.files, 'file')}, version {found.version}")
    say(f"its newest commit is a {found.last.operation} of {found.last.at:%Y-%m-%d %H:%M} UTC")
