"""Commands that launch backfills: what a unit still lacks, and what an upstream has left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from backfill_assets.application import Application
from backfill_assets.cli.campaigns import resume_campaign
from backfill_assets.cli.desk import Webserver, campaign_of
from backfill_assets.cli.output import say
from backfill_assets.cli.releases import needs_approval, release_now
from backfill_assets.cli.status import moved_days, say_held
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ContractError, UnitError
from backfill_assets.core.unit import CONTRACT_TAG, UNIT_TAG, ReleaseMode, Unit, UnitState
from backfill_assets.evidence.outdated import Outdated, Relaunch
from backfill_assets.evidence.readiness import DayFault, explain_faults

ExpectedChange = Annotated[
    str,
    typer.Option(
        metavar="FILE|JSON",
        help="What must change by how much, as a .yaml file or JSON; of several datasets: a mapping from dataset to metrics.",
    ),
]


@dataclass(frozen=True)
class _About:
    """What is said of a launch in Dagster."""

    title: str
    description: str
    tags: Mapping[str, str]


def resume(
    unit: Annotated[str, typer.Argument(help="A unit or a campaign.")],
    expected_change: ExpectedChange = "",
    reason: Annotated[str, typer.Option(help="Why; kept in a campaign's journal.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Only say which days would run, and why.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay with a campaign until it ends.")] = False,
    webserver: Webserver = "",
) -> None:
    """Launch what a campaign or an open unit still lacks, and only that; a unit is then released."""
    application = Application.from_env()
    if campaign := campaign_of(application, unit):
        if expected_change:
            raise ContractError(
                f"--expected-change: what must change by how much stands in the specification of campaign {campaign} "
                f"(validation); change it there, then: backfill resume {campaign}"
            )
        resume_campaign(application, campaign, (reason, explain, watch), webserver)
        return
    found = application.ledger.unit(unit)
    if found.state is not UnitState.open:
        raise UnitError(
            f"unit {unit} is {found.state.value}, not open: there is nothing to resume; see: backfill status"
        )
    declared = _declared(application, expected_change, tuple(found.targets))
    faults = application.publisher.missing(unit)
    lacking = {(f.dataset, f.day) for f in faults}
    # Evidence is taken under one contract: what was checked under the one before is checked again.
    lacking |= {(name, day) for name in declared for day in found.targets[name]}
    if explain:
        _explain(faults, application.relaunches.of_unit(found, lacking))
        return
    if not lacking:
        _finish(application, found)
        return
    for relaunch in application.relaunches.of_unit(found, lacking):
        tags = {UNIT_TAG: unit, **_contract_tag(declared, relaunch.datasets)}
        _launch(application, relaunch, _About(f"resume {unit}", f"what unit {unit} still lacks", tags), webserver)


def refresh(
    dataset: Annotated[
        str, typer.Argument(help="A dataset; without it, all that their upstreams or deliveries have left behind.")
    ] = "",
    expected_change: ExpectedChange = "",
    webserver: Webserver = "",
) -> None:
    """Launch a backfill of the published days that were built from an upstream as it was, or from deliveries that count no more.

    Days on hold are left out: what was rolled back would be published again.
    """
    application = Application.from_env()
    if dataset:
        application.dataset(dataset)
    moved = [Outdated(name, days, ()) for name, days in moved_days(application).items()]
    outdated = [o for o in (*application.outdated.all(), *moved) if not dataset or o.dataset == dataset]
    if not outdated:
        say(
            "nothing is outdated: every published day was built from its upstreams and references as they are now, and from the "
            "deliveries that count now"
        )
        return
    found = application.relaunches.of_outdated(outdated)
    say_held(found.left_out, "left out")
    if not found.launches:
        return
    names = application.catalog.upstream_first(name for plan in found.launches for name in plan.datasets)
    declared = _declared(application, expected_change, names)
    for plan in found.launches:
        tags = _contract_tag(declared, plan.datasets)
        _launch(
            application, plan, _About("refresh", "days that their upstreams or deliveries left behind", tags), webserver
        )


def _explain(faults: Sequence[DayFault], plans: Sequence[Relaunch]) -> None:
    if faults:
        say(explain_faults(faults))
    for plan in plans:
        say(f"would be launched: {', '.join(plan.datasets)} {format_days(plan.days)}")
    if not plans:
        say("nothing is lacking: nothing would be launched")


def _declared(application: Application, text: str, names: Sequence[str]) -> Mapping[str, object]:
    if not text:
        return {}
    from backfill_assets.orchestration.launches import expected_changes  # loads Dagster

    return expected_changes(text, [application.dataset(name) for name in names])


def _contract_tag(declared: Mapping[str, object], names: Sequence[str]) -> Mapping[str, str]:
    from backfill_assets.orchestration.launches import as_tag  # loads Dagster

    mine = {name: declared[name] for name in names if name in declared}
    return {CONTRACT_TAG: as_tag(mine)} if mine else {}


def _finish(application: Application, unit: Unit) -> None:
    whole = application.publisher.evidence_hash(unit.id)
    if unit.mode is ReleaseMode.auto and not needs_approval(application, unit.id):
        release_now(application, unit.id, whole)
        return
    say(f"unit {unit.id} lacks nothing; release it with: backfill publish {unit.id} --evidence {whole}")


def _launch(application: Application, plan: Relaunch, about: _About, webserver: str) -> None:
    from backfill_assets.orchestration import backfills  # loads Dagster
    from backfill_assets.orchestration.names import keys_of, layers_of

    first, *others = plan.datasets
    layers = {name: layers_of(application.dataset(name)) for name in plan.datasets}
    backfill = backfills.Backfill(
        dataset=first,
        partitions=tuple(keys_of(plan.days)),
        layers=layers[first],
        others={name: layers[name] for name in others},
        title=about.title,
        description=about.description,
        tags=about.tags,
    )
    backfill_id = backfills.launch_backfill(backfill, webserver or None)
    where = f" in unit {about.tags[UNIT_TAG]}" if UNIT_TAG in about.tags else ""
    what = f"{', '.join(plan.datasets)} {format_days(plan.days)}"
    say(f"launched backfill {backfill_id}: {what}{where}; the Dagster daemon runs it")
