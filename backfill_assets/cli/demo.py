"""The command `backfill demo`: the main job on real flights, from a wrong history to an undoable release."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    months: Annotated[int, typer.Option(help="How many months of 2013 to land and build.", min=3, max=12)] = 12,
) -> None:
    """Land real flights, build their history with a bug in it, correct the model, backfill, publish, and show it all."""
    from backfill_assets.demo.run import run_demo  # loads Dagster and the demo's data

    run_demo(months)
