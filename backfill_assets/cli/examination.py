"""The command `doctor`: what does not agree with what, and what may be mended without asking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.failures import without_secrets_of
from backfill_assets.cli.output import as_json, say, table
from backfill_assets.cli.status import Json
from backfill_assets.doctor.doctor import Doctor
from backfill_assets.doctor.findings import Finding, Gravity
from backfill_assets.doctor.repair import Repairer

if TYPE_CHECKING:
    from backfill_assets.doctor.findings import EventLog

_COLUMNS = ("severity", "finding", "backfill doctor --repair", "otherwise")


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is safe, and list what is left.")] = False,
    json: Json = False,
) -> None:
    """Compare ledger, Delta logs, manifests, files, reports and Dagster's events; exit code 1 if anything is wrong."""
    application = Application.from_env()
    with _events(application) as events:
        found = events if isinstance(events, Finding) else None
        examiner: Doctor = replace(application.doctor, events=None if isinstance(events, Finding) else events)
        done = Repairer(examiner, application.reconcile, application.identity).repair() if repair else ()
        findings = (*([found] if found else []), *examiner.examine())
    if json:
        as_json({"mended": done, "findings": findings} if repair else findings)
    else:
        for mended in done:
            say(str(mended))
        if repair and not done:
            say("there was nothing that could be mended")
        if not findings:
            say("everything that was compared agrees")
            return
        table(_COLUMNS, [(f.severity.value, f.what, f.repair or "-", f.remedy) for f in findings])
    if any(f.severity is Gravity.error for f in findings):
        raise typer.Exit(1)


@contextmanager
def _events(application: Application) -> Iterator[EventLog | Finding | None]:
    """The event log of the Dagster instance, as long as the block lasts; none where no instance is configured."""
    if not os.environ.get("DAGSTER_HOME"):
        yield None
        return
    from backfill_assets.orchestration.event_log import DagsterEventLog  # loads Dagster
    from backfill_assets.orchestration.instance import opened_instance  # loads Dagster

    try:
        instance = opened_instance()
    except Exception as error:  # noqa: BLE001  # a database that is away is what somebody may be looking for
        why = str(error).strip().splitlines()[-1:]
        said = without_secrets_of(os.environ, " ".join(why))
        what = f"Dagster's event log cannot be asked ({type(error).__name__}: {said})"
        yield Finding(Gravity.error, what, "see to its database and its dagster.yaml; the rest was examined")
        return
    with instance:
        yield DagsterEventLog(instance, application)
