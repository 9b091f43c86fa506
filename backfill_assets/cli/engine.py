"""Commands about Spark: start, stop and look at the embedded server, and run SQL on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import say, table
from backfill_assets.domain.errors import EngineError
from backfill_assets.domain.names import number_of

if TYPE_CHECKING:
    from backfill_assets.lakehouse.engine.server import SparkServer

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
    """Stop the embedded server; work that runs on it is lost and is done again by the next attempt."""
    stopped = _server(Application.from_env()).stop()
    say("stopped" if stopped else "no server was running")


@spark.command("status")
def server_status() -> None:
    """Show whether a server runs, where, since when, and how it is configured."""
    found = _server(Application.from_env()).status()
    rows = [
        ("state", found.state.value), ("url", found.url or "-"), ("host", found.host or "-"), ("pid", found.pid or "-"),
        ("started at", found.started_at or "-"), ("last used", found.last_used or "-"), ("log", found.log or "-"),
        *sorted(found.configuration.items()),
    ]  # fmt: skip
    table(("what", "value"), rows)


def sql(
    query: Annotated[str, typer.Argument(help="One statement, such as: SELECT count(*) FROM published.flights")],
    rows: Annotated[int, typer.Option(help="How many rows to show at the most.", min=1, max=100_000)] = 50,
) -> None:
    """Run SQL on the warm server; datasets are the views published.<dataset>."""
    from pyspark.errors import PySparkException  # half a second that other commands need not wait

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
        table(columns, found[:rows])
        say(f"the first {rows} rows; ask for more with --rows" if len(found) > rows else number_of(len(found), "row"))


def _server(application: Application) -> SparkServer:
    from backfill_assets.lakehouse.engine.server import SparkServer  # more than a second: it brings Spark's client

    return SparkServer(application.settings)
