"""The command for readers without Spark: where a published table is, and in which version a release can be read."""

from __future__ import annotations

from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import as_json
from backfill_assets.cli.status import Json


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
