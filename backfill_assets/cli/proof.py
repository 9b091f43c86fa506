"""Commands that prove and report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from backfill_assets.application import Application, reports_of
from backfill_assets.cli.output import as_json, say, table
from backfill_assets.core.canonical import plain
from backfill_assets.core.certificate import Certificate
from backfill_assets.core.days import parse_days
from backfill_assets.core.errors import LayoutError, UnitError
from backfill_assets.dataset.checkout import datasets_at
from backfill_assets.dataset.yaml import shown_path
from backfill_assets.proof.history_diff import as_markdown
from backfill_assets.report.review import review_as_json


def report(
    target: Annotated[str, typer.Argument(help="A campaign, a unit or a release.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; by default the unit's folder in the reports folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the review as JSON and write nothing.")] = False,
    index: Annotated[bool, typer.Option("--index", help="Write the page of all datasets and campaigns.")] = False,
) -> None:
    """Write the report of a campaign, unit or release: one page that needs no network, and the same as JSON."""
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


def _units(application: Application) -> dict[str, str]:
    """Map each campaign, release and unit to the unit whose report covers it."""
    ledger = application.ledger
    units = {unit.id: unit.id for unit in ledger.units()}
    campaigns = {campaign.id: campaign.unit for campaign in ledger.campaigns() if campaign.unit}
    return units | campaigns | {record.manifest.release: record.manifest.unit for record in ledger.releases()}


Partitions = Annotated[
    str, typer.Option(metavar="DAYS", help="The days, such as 2013-03-01,2013-03-05 or 2013-03-01..2013-03-03.")
]


def diff_history(
    models: Annotated[
        str, typer.Option(metavar="REF", help="The commit whose models to try, such as HEAD or a branch.")
    ],
    partitions: Partitions = "",
    dataset: Annotated[
        list[str] | None, typer.Option(help="A dataset; by default, those whose code differs from what is published.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the Markdown to this file, not to standard output.")] = None,
) -> None:
    """Show what the models of a commit would change in published days, as Markdown; exit code 1 if a model fails."""
    application = Application.from_env()
    days = parse_days(partitions, "--partitions") if partitions else ()
    with datasets_at(application.settings.datasets, models) as checkout:
        diff = application.history_diffs.of(checkout, tuple(dataset or ()), days)
    text = as_markdown(diff)
    if out is not None:
        _write(out, text)
    else:
        print(text)  # noqa: T201  # rich would fold it
    if diff.has_problems:
        raise typer.Exit(1)


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LayoutError(
            f"the diff cannot be written to {shown_path(out)} ({error.strerror}); name another file with --out"
        ) from error


def show_certificates(certificates: Sequence[Certificate], *, json: bool) -> None:
    """Print the result of each recomputation by day, and the rows that differ."""
    if json:
        as_json([_as_plain(one) for one in certificates])
        return
    for one in certificates:
        _show(one)


def _as_plain(certificate: Certificate) -> object:
    found = plain(certificate)
    assert isinstance(found, dict)  # noqa: S101  # of a dataclass
    return {**found, "passed": certificate.passed, "hash": certificate.hash}


def _show(certificate: Certificate) -> None:
    table(("recomputation", "day", "rows", "result", "columns"), list(_rows(certificate)), certificate.dataset)
    for found in certificate.disagreements:
        if not found.rows:
            continue
        columns = tuple(dict.fromkeys(column for row in found.rows for column in row))
        rows: Sequence[Sequence[object]] = [[row.get(column, "-") for column in columns] for row in found.rows]
        say(f"{found.day}: old is {certificate.first!r}, new is {found.recomputation!r}")
        table(columns, rows)
    for touched in certificate.touched:
        say(f"changed meanwhile, and not by a release, landing or staging: {touched}")


def _rows(certificate: Certificate) -> Iterator[tuple[object, ...]]:
    differs = {(found.recomputation, found.day): found.columns for found in certificate.disagreements}
    for way in certificate.recomputations:
        for day, prints in sorted(certificate.prints[way.name].items()):
            columns = differs.get((way.name, day))
            result = "differs" if columns is not None else "equal" if way.name != certificate.first else "-"
            yield way.name, day, f"{prints.rows:,}", result, ", ".join(columns or ())
