"""The commands `backfill demo` and `backfill demo-campaign`: the main job, and a campaign from draft to clean-up."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    months: Annotated[int, typer.Option(help="How many months of 2013 to land and build.", min=3, max=12)] = 12,
) -> None:
    """Land real flights, build their history with a bug in it, correct the model, backfill, publish, and show it all."""
    from demo.run import run_demo  # loads Dagster and the demo's data

    run_demo(months)


def demo_campaign(
    scale: Annotated[
        float, typer.Option(help="Scale factor of TPC-H; 1 has 1.4 million order lines.", min=0.01, max=10)
    ] = 0.01,
) -> None:
    """Play a campaign over 18 months of daily sales, command by command, from its specification to its clean-up."""
    from demo.campaign import run_campaign_demo  # loads Dagster

    run_campaign_demo(scale)
