"""Commands about deliveries, and commands that launch missing or outdated days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from backfill_assets import operations
from backfill_assets.application import Application
from backfill_assets.cli.campaigns import resume_campaign
from backfill_assets.cli.output import Json, Webserver, as_json, campaign_of, finish, opened_shell, say, table
from backfill_assets.cli.releases import needs_approval
from backfill_assets.cli.status import moved_days, say_held
from backfill_assets.core.days import format_days, parse_days
from backfill_assets.core.errors import ArgumentError, ContractError, UnitError
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import CONTRACT_TAG, UNIT_TAG, ReleaseMode, Unit, UnitState
from backfill_assets.evidence.outdated import Outdated, Relaunch
from backfill_assets.evidence.readiness import DayBlocker, explain_blockers
from backfill_assets.pipeline.deliveries import Chosen, Done, ShownDelivery

ExpectedChange = Annotated[
    str,
    typer.Option(
        metavar="FILE|JSON",
        help="What must change and by how much: a .yaml file or JSON; with several datasets, by dataset and metric.",
    ),
]


@dataclass(frozen=True)
class _About:
    """Title, description and tags of a launch in Dagster."""

    title: str
    description: str
    tags: Mapping[str, str]


def resume(
    unit: Annotated[str, typer.Argument(help="A unit or a campaign.")],
    expected_change: ExpectedChange = "",
    reason: Annotated[str, typer.Option(help="Why; kept in a campaign's journal.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Only show which days would run, and why.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the progress of a campaign until it ends.")] = False,
    webserver: Webserver = "",
) -> None:
    """Launch only what is missing, failed or stale in a campaign or an open unit; a unit is then released."""
    application = Application.from_env()
    if campaign := campaign_of(application, unit):
        if expected_change:
            raise ContractError(
                f"--expected-change: the expected change of campaign {campaign} is in its specification (validation); "
                f"change it there, then: backfill resume {campaign}"
            )
        resume_campaign(application, campaign, (reason, explain, watch), webserver)
        return
    found = application.ledger.unit(unit)
    if found.state is not UnitState.open:
        raise UnitError(
            f"unit {unit} is {found.state.value}, not open: there is nothing to resume; see: backfill status"
        )
    declared = _declared(application, expected_change, tuple(found.targets))
    blockers = application.publisher.blockers(unit)
    missing = {(f.dataset, f.day) for f in blockers}
    # Evidence belongs to one contract: days checked under the previous contract are checked again.
    missing |= {(name, day) for name in declared for day in found.targets[name]}
    if explain:
        _explain(blockers, application.relaunches.of_unit(found, missing))
        return
    if not missing:
        _finish(application, found)
        return
    for relaunch in application.relaunches.of_unit(found, missing):
        tags = {UNIT_TAG: unit, **_contract_tag(declared, relaunch.datasets)}
        _launch(
            application, relaunch, _About(f"resume {unit}", f"what is still missing in unit {unit}", tags), webserver
        )


def refresh(
    dataset: Annotated[str, typer.Argument(help="A dataset; by default, all that have outdated days.")] = "",
    expected_change: ExpectedChange = "",
    webserver: Webserver = "",
) -> None:
    """Launch a backfill of published days that were built from an older upstream or deliveries no longer in force.

    Days on hold are left out: otherwise it would publish again what was rolled back.
    """
    application = Application.from_env()
    if dataset:
        application.dataset(dataset)
    moved = [Outdated(name, days, ()) for name, days in moved_days(application).items()]
    outdated = [o for o in (*application.outdated.all(), *moved) if not dataset or o.dataset == dataset]
    if not outdated:
        say(
            "nothing is outdated: every published day was built from its current upstreams and references, and from "
            "the deliveries in force"
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
        _launch(application, plan, _About("refresh", "days with outdated upstreams or deliveries", tags), webserver)


def _explain(blockers: Sequence[DayBlocker], plans: Sequence[Relaunch]) -> None:
    if blockers:
        say(explain_blockers(blockers))
    for plan in plans:
        say(f"would be launched: {', '.join(plan.datasets)} {format_days(plan.days)}")
    if not plans:
        say("nothing is missing: nothing would be launched")


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
    complete_hash = application.publisher.evidence_hash(unit.id)
    if unit.mode is ReleaseMode.auto and not needs_approval(application, unit.id):
        with opened_shell(application) as shell:
            finish(operations.publish_unit(shell, unit.id, evidence=complete_hash))
        return
    say(f"unit {unit.id} is complete; release it with: backfill publish {unit.id} --evidence {complete_hash}")


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


Name = Annotated[str, typer.Argument(help="A dataset with a source.")]
Prefix = Annotated[str, typer.Option(help="A folder below the sources folder with everything in it, or one file.")]
Reason = Annotated[str, typer.Option(help="Why, for the journal.")]
DeliveryDays = Annotated[str, typer.Option(metavar="DAYS", help="Delivery days, such as 2024-03-01..2024-03-07.")]


def deliveries(dataset: Name, days: DeliveryDays = "", json: Json = False) -> None:
    """Show which deliveries are in force, why others are not, and what the sources have now."""
    application = _opened(dataset)
    found = application.delivery_commands.shown(dataset, parse_days(days, "--days") if days else ())
    rows = [_row(one) for one in found]
    if json:
        as_json(rows)
        return
    columns = ("day", "file", "content", "rows", "unreadable", "delivered (UTC)", "in force", "why", "source")
    table(columns, [tuple(row[name] for name in _SHOWN) for row in rows])


def withdraw(
    dataset: Name,
    file: Annotated[str, typer.Argument(help="A file, by its path below the sources folder.")] = "",
    prefix: Prefix = "",
    reason: Reason = "",
    undo: Annotated[bool, typer.Option("--undo", help="Undo a withdrawal.")] = False,
) -> None:
    """Withdraw the newest delivery of a path: it stays in raw, but nothing is built from it any more."""
    if bool(file) == bool(prefix):
        raise ArgumentError("name one file, or a folder with --prefix")
    application, chosen = _opened(dataset), Chosen(file, prefix)
    commands = application.delivery_commands
    done = commands.restore(dataset, chosen, reason) if undo else commands.withdraw(dataset, chosen, reason)
    # A day that was published from the deliveries now in force is up to date.
    outdated = tuple(day for day in application.late_deliveries.moved(dataset) if day in done.published)
    _say(dataset, done, "restored" if undo else "withdrawn", outdated)


def reland(
    dataset: Name,
    days: DeliveryDays = "",
    prefix: Prefix = "",
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Keep deliveries in raw as they are if their file is gone.")
    ] = False,
) -> None:
    """Read source files again, and replace their rows in raw."""
    if not days and not prefix:
        raise ArgumentError("say which files: --days 2024-03-01..2024-03-07, or --prefix")
    application, chosen = _opened(dataset), Chosen(prefix=prefix, days=parse_days(days, "--days") if days else ())
    with application.session(application.ids.new("reland")) as spark:
        done = application.delivery_commands.reland(spark, dataset, chosen, reason, force=force)
    _say(dataset, done, "read again", done.published)


_SHOWN = ("day", "path", "content", "rows", "corrupt_rows", "delivered_at", "in_force", "why", "source")


def _opened(dataset: str) -> Application:
    application = Application.from_env()
    # Refuses a dataset that does not exist or has no source.
    _ = application.dataset(dataset).landing
    return application


def _row(one: ShownDelivery) -> dict[str, object]:
    found, row = one.standing, {"day": one.day.isoformat(), "path": one.path, "source": one.source}
    if found is None:
        unknown = ("content", "rows", "corrupt_rows", "delivered_at", "order", "fingerprint")
        return {**row, **dict.fromkeys(unknown, "-"), "in_force": "no", "why": ""}
    delivery = found.delivery
    return {
        **row, "content": delivery.fingerprint[:8], "rows": delivery.rows, "corrupt_rows": delivery.corrupt_rows,
        "delivered_at": f"{delivery.delivered_at:%Y-%m-%d %H:%M:%S}", "order": delivery.order,
        "fingerprint": delivery.fingerprint, "in_force": "yes" if found.counts else "no", "why": found.why,
    }  # fmt: skip


def _say(dataset: str, done: Done, what: str, outdated: Sequence[dt.date]) -> None:
    if not done.deliveries:
        say(f"nothing to do: already {what}")
        return
    first, *others = sorted({one.path for one in done.deliveries})
    until = f", last {others[-1]}" if others else ""
    say(f"{what}: {number_of(len(done.deliveries), 'file')}, first {first}{until}")
    say(f"built from them: {dataset} {format_days(done.days)}")
    if outdated:
        say(f"published as before: {format_days(outdated)}; build them again with: backfill refresh {dataset}")
