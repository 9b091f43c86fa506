"""The command that writes reports: all that speaks for and against a unit on one page, or the index of all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import errors, say
from backfill_assets.core.errors import UnitError
from backfill_assets.dataset.faults import shown_path
from backfill_assets.orchestration.release_events import reports_of, tell
from backfill_assets.report.records import review_as_json


def report(
    target: Annotated[str, typer.Argument(help="A campaign, a unit or a release.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, instead of the unit's below the reports.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the review as JSON and write nothing.")] = False,
    index: Annotated[bool, typer.Option("--index", help="Write the page of all datasets and campaigns.")] = False,
) -> None:
    """Write the report of a campaign, unit or release: one page without network, and the same as JSON beside it."""
    application = Application.from_env()
    if bool(target) is index:
        raise UnitError("name a campaign, a unit or a release, or ask for all of them with --index; see: backfill list")
    if index:
        say(shown_path(reports_of(application).write_index(application.metrics.all(), _units(application), out)))
        return
    review = application.reviews.of(target)
    if json:
        print(review_as_json(review))  # noqa: T201  # for programs, not for rich
        return
    say(review.judgement.sentence)
    say(shown_path(reports_of(application).write(review, out)))


def say_report(application: Application, unit: str, *, quiet: bool = False) -> None:
    """Write the report of a unit after a step that has changed what it says; its sentence and place, unless `quiet`."""
    told = tell(application, application.ledger.unit(unit), partial(errors.print, markup=False))
    for line in filter(None, () if quiet else (told.sentence, told.address or told.page)):
        say(line)


def _units(application: Application) -> dict[str, str]:
    """By campaign, release and unit the unit whose report is about it."""
    ledger = application.ledger
    units = {unit.id: unit.id for unit in ledger.units()}
    campaigns = {campaign.id: campaign.unit for campaign in ledger.campaigns() if campaign.unit}
    return units | campaigns | {record.manifest.release: record.manifest.unit for record in ledger.releases()}
