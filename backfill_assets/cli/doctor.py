"""Commands that examine: doctor, the Spark server, SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import Json, as_json, say, table, without_secrets_of
from backfill_assets.core.errors import EngineError, QueryTimeoutError
from backfill_assets.core.text import format_duration, number_of
from backfill_assets.core.unit import AttemptState
from backfill_assets.doctor.doctor import Doctor, Repairer
from backfill_assets.doctor.findings import Finding, FindingSeverity

if TYPE_CHECKING:
    from backfill_assets.doctor.findings import EventLog
    from backfill_assets.spark.server import SparkServer


_COLUMNS = ("severity", "finding", "backfill doctor --repair", "otherwise")


def doctor(
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what is safe to repair, and list what is left.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare ledger, Delta logs, manifests, files, reports and Dagster's events; exit code 1 if it finds an error."""
    application = Application.from_env()
    with _events(application) as events:
        found = events if isinstance(events, Finding) else None
        examiner: Doctor = replace(application.doctor, events=None if isinstance(events, Finding) else events)
        done = Repairer(examiner, application.reconcile).repair() if repair else ()
        findings = (*([found] if found else []), *examiner.examine())
    if json:
        as_json({"repaired": done, "findings": findings} if repair else findings)
    else:
        for result in done:
            say(str(result))
        if repair and not done:
            say("nothing to repair automatically")
        if not findings:
            say("everything that was compared agrees")
            return
        table(_COLUMNS, [(f.severity.value, f.what, str(f.repair or "-"), f.remedy) for f in findings])
    if any(f.severity is FindingSeverity.error for f in findings):
        raise typer.Exit(1)


@contextmanager
def _events(application: Application) -> Iterator[EventLog | Finding | None]:
    """The event log of the Dagster instance for the duration of the block; None if no instance is configured."""
    if not os.environ.get("DAGSTER_HOME"):
        yield None
        return
    from backfill_assets.orchestration.event_log import DagsterEventLog  # loads Dagster
    from backfill_assets.orchestration.names import opened_instance  # loads Dagster

    try:
        instance = opened_instance()
    except Exception as error:  # noqa: BLE001  # an unreachable database is a finding
        why = str(error).strip().splitlines()[-1:]
        said = without_secrets_of(os.environ, " ".join(why))
        what = f"Dagster's event log cannot be read ({type(error).__name__}: {said})"
        yield Finding.error(what, "check its database and its dagster.yaml; the rest was examined")
        return
    with instance:
        yield DagsterEventLog(instance, application)


_TASK: Final = timedelta(seconds=30)

spark = typer.Typer(help="The warm Spark server of this warehouse.", no_args_is_help=True)


@spark.command()
def start() -> None:
    """Start the server if it does not run, and recreate the published views."""
    application = Application.from_env()
    endpoint = _server(application).ensure()
    application.refresh_views()
    say(f"Spark Connect server at {endpoint.url}")


@spark.command()
def stop() -> None:
    """Stop the embedded server; work that runs on it is lost, and the next attempt does it again."""
    stopped = _server(Application.from_env()).stop()
    say("stopped" if stopped else "no server was running")


@spark.command("status")
def server_status() -> None:
    """Show whether a server runs and works, where, since when, and how it is configured; exit code 1 if it does not work."""
    from backfill_assets.spark.server import ServerState

    application = Application.from_env()
    found = _server(application).status()
    problem = _problem(application) if found.state is ServerState.RUNNING else ""
    if found.state is ServerState.SILENT:
        problem = "no: it does not answer"
    works = "yes" if found.state is ServerState.RUNNING else "-"
    rows = [
        ("state", found.state.value), ("works", problem or works), ("url", found.url or "-"), ("host", found.host or "-"),
        ("pid", found.pid or "-"), ("started at", found.started_at or "-"), ("last used", found.last_used or "-"),
        ("log", found.log or "-"), *sorted(found.configuration.items()),
    ]  # fmt: skip
    table(("what", "value"), rows)
    if problem:
        busy = application.ledger.attempts(state=AttemptState.running)
        stop = "backfill spark stop; the next command or run that needs a server starts another"
        say(
            f"{number_of(len(busy), 'batch')} running: the server may only be busy. If they make no progress: {stop}"
            if busy
            else f"run: {stop}"
        )
        raise typer.Exit(1)


def _problem(application: Application) -> str:
    """Why a running server does no work: it may answer a query although no executor runs its tasks."""
    from pyspark.errors import PySparkException

    from backfill_assets.spark.session import open_session

    settings = application.settings.model_copy(update={"query_timeout": _TASK})
    try:
        with open_session(settings, application.ids.new("status")) as session:
            session.range(0, 2, 1, 2).agg({"id": "sum"}).collect()
    except QueryTimeoutError:
        return f"no: no task has run within {format_duration(_TASK)}"
    except (EngineError, PySparkException) as error:
        return f"no: {str(error).strip().splitlines()[0]}"
    return ""


def sql(
    query: Annotated[str, typer.Argument(help="One statement, such as: SELECT count(*) FROM published.flights")],
    rows: Annotated[int, typer.Option(help="Maximum number of rows to show.", min=1, max=100_000)] = 50,
) -> None:
    """Run SQL on the warm server; datasets are the views published.<dataset>."""
    from pyspark.errors import PySparkException  # takes half a second, which other commands need not wait

    from backfill_assets.pipeline.samples import shown_value  # the same

    application = Application.from_env()
    application.refresh_views()
    try:
        with application.session(application.ids.new("sql")) as session:
            frame = session.sql(query)
            found = frame.limit(rows + 1).collect() if frame.columns else []
            columns = frame.columns
    except PySparkException as error:
        raise EngineError(f"Spark refused the query: {str(error).strip().splitlines()[0]}") from None
    if columns:
        table(columns, [[shown_value(value) for value in row] for row in found[:rows]])
        say(f"the first {rows} rows; ask for more with --rows" if len(found) > rows else number_of(len(found), "row"))


def _server(application: Application) -> SparkServer:
    from backfill_assets.spark.server import SparkServer  # takes more than a second: it loads Spark's client

    return SparkServer(application.settings)
