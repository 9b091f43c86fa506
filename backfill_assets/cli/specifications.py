"""Checking backfill specifications: the command `backfill validate`, and what other commands need of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.campaign.load import LoadedSpecification, SpecificationFault, load_specification, misfits, scoped
from backfill_assets.cli.output import say
from backfill_assets.core.errors import LedgerError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import shown_days
from backfill_assets.dataset.faults import shown_path


def validate(files: Annotated[list[Path], typer.Argument(help="Specifications, such as backfills/*.yaml.")]) -> None:
    """Check specifications by themselves and against the datasets; tells every fault of all of them with its line."""
    application = Application.from_env()
    faults: list[SpecificationFault] = []
    good: list[LoadedSpecification] = []
    for file in dict.fromkeys(files):
        loaded = load_specification(file)
        if isinstance(loaded, LoadedSpecification):
            found = (*misfits_here(application, loaded), *_namesakes(loaded, good))
            good.append(loaded)
        else:
            found = loaded
        faults += found
    for fault in faults:
        say(str(fault))
    faulty = {fault.file for fault in faults}
    for loaded in good:
        if loaded.file not in faulty:
            _report(application, loaded)
    if faults:
        say(f"{number_of(len(faults), 'fault')} in {len(faulty)} of {number_of(len(set(files)), 'file')}")
        raise typer.Exit(1)


def misfits_here(application: Application, loaded: LoadedSpecification) -> tuple[SpecificationFault, ...]:
    """What the datasets, the clock and the environment of this process do not bear out of a specification."""
    now, computes = application.clock.now(), application.settings.computes
    return misfits(loaded, application.catalog, now=now, computes=computes)


def _namesakes(loaded: LoadedSpecification, others: Sequence[LoadedSpecification]) -> Iterator[SpecificationFault]:
    own = loaded.specification.backfill_id
    for other in others:
        if other.specification.backfill_id == own:
            text = f"backfill_id = {own!r}: {shown_path(other.file)} has the same; give each campaign its own"
            yield loaded.fault(("backfill_id",), text)


def _report(application: Application, loaded: LoadedSpecification) -> None:
    specification = loaded.specification
    days, names = specification.source_range, ", ".join(scoped(specification, application.catalog))
    say(
        f"{shown_path(loaded.file)}: good; {names} {days.start}..{days.end}, {days.count} day{'s' if days.count > 1 else ''}"
    )
    try:
        for unit, claimed in _claims(application, loaded).items():
            text = f"{shown_days(claimed)}: claimed by open unit {unit}, so that a launch would be refused; publish it "
            remedy = f"(backfill publish {unit}) or give it up (backfill discard {unit})"
            say(str(loaded.fault(("source_range",), f"warning: {text}{remedy}")))
    except LedgerError as error:
        say(f"{shown_path(loaded.file)}: warning: nobody looked whether its days are claimed: {error}")


def _claims(application: Application, loaded: LoadedSpecification) -> dict[str, list[DatasetDay]]:
    """The days that open units of others have claimed, by unit; without a ledger nothing is claimed."""
    from backfill_assets.ledger.database import parsed_url

    url = parsed_url(application.settings.ledger_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        return {}
    specification = loaded.specification
    found: dict[str, list[DatasetDay]] = defaultdict(list)
    for name in scoped(specification, application.catalog):
        for day, unit in application.ledger.claims(name, specification.source_range.days).items():
            found[unit].append((name, day))
    own = specification.backfill_id
    return {unit: days for unit, days in sorted(found.items()) if application.ledger.unit(unit).campaign != own}
