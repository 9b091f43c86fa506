"""The commands `python -m demo` and `python -m demo campaign`: the main job, and a campaign from draft to clean-up."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from backfill_assets.cli.output import run_command

_ALL_MONTHS: Final = 12

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.callback(invoke_without_command=True)
def main_job(
    context: typer.Context,
    months: Annotated[
        int | None,
        typer.Option(
            help="How many months of 2013 to land and build.", min=3, max=_ALL_MONTHS, show_default=str(_ALL_MONTHS)
        ),
    ] = None,
) -> None:
    """Land real flights, build their history with a bug in it, correct the model, backfill, publish, and show it all."""
    if context.invoked_subcommand is None:
        from demo.run import run_demo  # noqa: PLC0415  # loads Dagster: `--help` stays quick

        run_demo(months or _ALL_MONTHS)
    elif months is not None:
        raise typer.BadParameter("it belongs to the main job; leave it out", param_hint="'--months'")


@app.command()
def campaign(
    scale: Annotated[
        float, typer.Option(help="Scale factor of TPC-H; 1 has 1.4 million order lines.", min=0.01, max=10)
    ] = 0.01,
) -> None:
    """Play a campaign over 18 months of daily sales, command by command, from its specification to its clean-up."""
    from demo.campaign import run_campaign_demo  # noqa: PLC0415  # loads Dagster: `--help` stays quick

    run_campaign_demo(scale)


if __name__ == "__main__":
    run_command(app)
