"""Commands that launch native backfills: of chosen days, of missing days, of stale days."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from backfill_assets import operations
from backfill_assets.application import Application
from backfill_assets.cli.campaigns import resume_campaign
from backfill_assets.cli.output import Webserver, campaign_of, finish, opened_dagster, opened_shell, say
from backfill_assets.cli.stale import Because, causes_of, say_left_out, warn_of_problems
from backfill_assets.cli.watch import complete_line, ended, follow, outcome, releases_itself
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.days import Days, format_days, parse_days
from backfill_assets.core.errors import ArgumentError, ContractError, InvalidDayError, UnitError
from backfill_assets.core.expected_change import LONGEST_TAG
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import in_words, shortened
from backfill_assets.core.unit import CONTRACT_TAG, REASON_TAG, UNIT_TAG, Launch, Unit, UnitState, assign_unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.readiness import DayBlocker, explain_blockers
from backfill_assets.evidence.relaunches import Relaunch
from backfill_assets.evidence.stale import DATA

if TYPE_CHECKING:
    from backfill_assets.orchestration.backfills import Launched

_TITLE: Final = 100
"""The longest title that Dagster accepts."""
_REASON: Final = 500
"""The longest reason."""

ExpectedChange = Annotated[
    str,
    typer.Option(
        metavar="FILE|JSON",
        help="What must change and by how much: JSON, or a .yaml file (see run --help); with several datasets, by dataset.",
    ),
]


@dataclass(frozen=True)
class _About:
    title: str
    description: str
    tags: Mapping[str, str]


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="DATASET... DAYS", help="One or several datasets, then the days.")
    ],
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=CHANGE", help="What must change on each day, such as row_count=-50%; repeatable."),
    ] = None,
    expected_change: ExpectedChange = "",
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    only: Annotated[
        Layer | None, typer.Option(help="Launch this layer alone; shadow builds and checks, and releases nothing.")
    ] = None,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Also everything that is built from the datasets, but no drafts.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the progress until it ends, and what was published.")
    ] = False,
    webserver: Webserver = "",
) -> None:
    """Launch a native backfill of some days, as the Dagster UI does: build, check, and release if all days pass.

    backfill run orders 2024-03-01..2024-03-07 --watch
    backfill run orders 2024-03-01..2024-03-07 --expect "amount=-7% to -6%"
    backfill run orders 2024-03-01..2024-03-07 --expected-change change.yaml

    A file can also say on which days something must change:

    - days: {start: 2024-03-02, end: 2024-03-03}
      metrics: {row_count: -50%, amount: -51% to -49%}
    """
    application = Application.from_env()
    names, days = _asked(application, words, downstream=downstream, only=only)
    if expect and expected_change:
        raise ContractError("--expect and --expected-change both say what must change; give only one")
    if expect:
        declared = _declared(application, json.dumps(_expected(expect, names)), names, "--expect")
    else:
        declared = _declared(application, expected_change, names)
    if declared and only not in {None, Layer.shadow}:
        raise ContractError(f"--only {only} checks nothing, so it can expect no change; leave out what must change")
    tags = {**_contract_tag(declared, names), **_reason_tag(reason)}
    if only in {None, Layer.shadow}:
        _refuse_claimed(application, names, days)
    about = _About(f"run {' '.join(words)}", reason, tags)
    _launch_all(application, [(Relaunch(names, days), about)], webserver, watch=watch, only=only)


def resume(
    unit: Annotated[str, typer.Argument(help="A unit or a campaign.")],
    expected_change: ExpectedChange = "",
    reason: Annotated[str, typer.Option(help="Why; kept in a campaign's journal, or in the history.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Only show which days would run, and why.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the progress until it ends.")] = False,
    webserver: Webserver = "",
) -> None:
    """Launch only what is missing, failed or stale in a campaign or an open unit; a unit is then released.

    backfill resume tax-fix
    backfill resume UNIT --expected-change change.yaml
    backfill resume UNIT --expected-change '{"row_count": "-50%"}'
    """
    application = Application.from_env()
    if campaign := campaign_of(application, unit):
        if expected_change:
            raise ContractError(
                f"--expected-change: the expected change of campaign {campaign} is in its specification (validation); "
                f"change it there, then: backfill resume {campaign}"
            )
        resume_campaign(application, campaign, reason, webserver, only_explain=explain, watch=watch)
        return
    found = application.ledger.unit(unit)
    if found.state is not UnitState.open:
        raise UnitError(
            f"unit {unit} is {found.state.value}, not open: there is nothing to resume; see: backfill status"
        )
    declared = _declared(application, expected_change, tuple(found.targets))
    blockers = application.publisher.blockers(unit)
    missing = {(f.dataset, f.day) for f in blockers}
    for name in declared:
        days = found.targets[name]
        if kept := {(name, day) for day in days} - missing:
            say(
                f"{name} {format_days(days)}: all shadows are built and checked again, because the expected change is part of "
                "the evidence of each day"
            )
            missing |= kept
    if explain:
        _explain(blockers, application.relaunches.of_unit(found, missing))
        return
    if not missing:
        _finish(application, found, reason)
        return
    title, why = f"resume {unit}", f"what is still missing in unit {unit}"
    tags = {UNIT_TAG: unit, **_reason_tag(reason)}
    launches = [
        (plan, _About(title, why, {**tags, **_contract_tag(declared, plan.datasets)}))
        for plan in application.relaunches.of_unit(found, missing)
    ]
    _launch_all(application, launches, webserver, watch=watch)


def refresh(
    dataset: Annotated[str, typer.Argument(help="A dataset; by default, all that have stale days.")] = "",
    because: Because = "",
    expected_change: ExpectedChange = "",
    webserver: Webserver = "",
) -> None:
    """Launch a backfill of stale days, as `backfill stale` lists them: their source, references or upstream changed.

    Days that are stale for other causes, such as changed models, are built again only if --because names these.
    Days on hold are left out: otherwise it would publish again what was rolled back. So are days of an open unit: resume it.
    """
    application = Application.from_env()
    if dataset:
        application.dataset(dataset)
    asked = [dataset] if dataset else sorted(application.datasets)
    among = causes_of(because) if because else DATA
    found = application.staleness.all(asked, among, look=True)
    warn_of_problems(found)
    stale = [one for one in found if one.refreshable]
    if not stale:
        but = ", as far as it could be compared" if found else ""
        say(f"nothing is stale because of {in_words(sorted(among))}{but}; see also: backfill stale")
        return
    refreshed = application.relaunches.of_stale(stale)
    say_left_out(refreshed.left_out, "left out")
    if not refreshed.launches:
        return
    names = application.catalog.upstream_first(name for plan in refreshed.launches for name in plan.datasets)
    declared = _declared(application, expected_change, names)
    why = f"stale because of {in_words(sorted({cause for one in stale for cause in one.by_cause}))}"
    launches = [(plan, _About("refresh", why, _contract_tag(declared, plan.datasets))) for plan in refreshed.launches]
    _launch_all(application, launches, webserver)


def _asked(
    application: Application, words: Sequence[str], *, downstream: bool, only: Layer | None = None
) -> tuple[tuple[str, ...], Days]:
    """The datasets, upstream first, and the days that the arguments name; all of them exist."""
    *named, text = words
    if not named:
        raise ArgumentError(
            f"{text!r}: name a dataset and its days, such as: backfill run flights 2013-03-01..2013-03-07"
        )
    days, catalog = parse_days(text), application.catalog
    for name in named:
        application.dataset(name)
    below = catalog.live_downstream_of(named) if downstream else ()
    reached = {name for name in below if application.dataset(name).from_start(days)}
    names = catalog.upstream_first({*named, *reached})
    defined = [application.dataset(name) for name in names]
    _refuse_outside(application, defined, days, only)
    partitions = {(catalog.first_partitions[d.name], d.end, d.end_offset, d.time_zone) for d in defined}
    if len(partitions) > 1:
        raise ArgumentError(
            f"{in_words(names)} differ in the start of their release group, end, end_offset or time_zone, and Dagster launches "
            "only equal partitions together; launch them one after another"
        )
    return names, days


def _refuse_outside(
    application: Application, datasets: Sequence[Dataset], days: Days, only: Layer | None = None
) -> None:
    """Refuse days that no dataset has, and a dataset that has none of them; a dataset that begins later is named."""
    now = application.clock.now()
    min(datasets, key=lambda dataset: dataset.start).check_days(days)
    for dataset in datasets:
        dataset.check_days(dataset.from_start(days) or days)
        # What lands and is staged need not wait for the days after it.
        builds = only in {None, Layer.shadow}
        newest = dataset.newest_to_launch(now) if builds else dataset.newest_day(now)
        if days[-1] > newest:
            waits = dataset.lag_in_words if builds else ""
            raise InvalidDayError(
                f"{days[-1]} is after {newest}, the newest partition of {dataset.name}{waits}; choose earlier days"
            )
        if days[0] < dataset.start:
            say(f"{dataset.name}: from {dataset.start} on, where its history begins")


def _refuse_claimed(application: Application, names: Sequence[str], days: Days) -> None:
    """Refuse now what the runs of the launch would refuse: days that another open unit has claimed."""
    for group in application.catalog.groups:
        targets = {name: frozenset(application.dataset(name).from_start(days)) for name in group if name in names}
        claims = {
            (name, day): unit
            for name in targets
            for day, unit in application.ledger.claims(name, targets[name]).items()
        }
        if claims:
            assign_unit(Launch(targets, "console"), None, claims, {})


def _expected(texts: Sequence[str], names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """The expected changes by dataset, from `metric=change` or, with several datasets, `dataset.metric=change`."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        subject, sign, change = (part.strip() for part in text.partition("="))
        name, dot, metric = subject.partition(".")
        if len(names) == 1 and name not in names:
            name, dot, metric = names[0], ".", subject
        if not sign or not dot or name not in names:
            example = "revenue=-50%" if len(names) == 1 else f"{names[0]}.revenue=-50%"
            raise ContractError(f"--expect {text!r} names no change of {in_words(names)}; write it as {example}")
        if metric in found.setdefault(name, {}):
            raise ContractError(
                f"--expect {text!r}: {metric} of {name} is already expected to change by {found[name][metric]}"
            )
        found[name][metric] = change
    return found


def _launch_all(
    application: Application,
    launches: Sequence[tuple[Relaunch, _About]],
    webserver: str,
    *,
    watch: bool = False,
    only: Layer | None = None,
) -> None:
    """Launch backfills; with `watch`, follow them to their end, with exit code 1 unless all days came through."""
    if not watch:
        for plan, about in launches:
            _launch(application, plan, about, webserver, only)
        return
    with opened_dagster() as instance:
        launched = [_launch(application, plan, about, webserver, only) for plan, about in launches]
        # A unit may need several launches, so what became of it is asked when all of them are over.
        try:
            states = [follow(application, instance, one) for one in launched]
        except KeyboardInterrupt:
            say("the Dagster daemon goes on without this command; see: backfill status")
            raise
        units = frozenset[str]().union(*(ended(instance, *pair) for pair in zip(launched, states, strict=True)))
    blocked = [unit for unit in sorted(units) if outcome(application, unit, only)]
    if blocked or any(state.failure for state in states):
        raise typer.Exit(1)


def _explain(blockers: Sequence[DayBlocker], plans: Sequence[Relaunch]) -> None:
    if blockers:
        say(explain_blockers(blockers))
    for plan in plans:
        say(f"would be launched: {', '.join(plan.datasets)} {format_days(plan.days)}")
    if not plans:
        say("nothing is missing: nothing would be launched")


def _declared(
    application: Application, text: str, names: Sequence[str], where: str = "--expected-change"
) -> Mapping[str, object]:
    if not text:
        return {}
    from backfill_assets.orchestration.launches import expected_changes  # loads Dagster

    return expected_changes(text, [application.dataset(name) for name in names], where)


def _contract_tag(declared: Mapping[str, object], names: Sequence[str]) -> Mapping[str, str]:
    mine = {name: declared[name] for name in names if name in declared}
    tag = json.dumps(mine, default=str) if mine else ""
    if (size := len(tag.encode())) > LONGEST_TAG:
        raise ContractError(
            f"the expected change takes {size:,} bytes as a run tag, of which Postgres takes {LONGEST_TAG:,}; launch fewer "
            "datasets or ranges at once, or declare it in the launchpad of the Dagster UI"
        )
    return {CONTRACT_TAG: tag} if tag else {}


def _reason_tag(reason: str) -> Mapping[str, str]:
    if len(reason) > _REASON:
        raise ArgumentError(f"--reason has {len(reason):,} characters; write at most {_REASON}")
    return {REASON_TAG: reason} if reason else {}


def _finish(application: Application, unit: Unit, reason: str) -> None:
    complete_hash = application.publisher.evidence_hash(unit.id)
    if releases_itself(application, unit):
        with opened_shell(application) as shell:
            finish(operations.publish_unit(shell, unit.id, evidence=complete_hash, reason=reason))
        return
    say(complete_line(unit.id, complete_hash))


def _launch(
    application: Application, plan: Relaunch, about: _About, webserver: str, only: Layer | None = None
) -> Launched:
    from backfill_assets.orchestration import backfills  # loads Dagster

    unit = about.tags.get(UNIT_TAG, "")
    built = {*plan.datasets, *(application.ledger.unit(unit).targets if unit else ())} & application.datasets.keys()
    layers = {
        name: _chosen(application.dataset(name), application.dataset(name).launched_layers, only)
        for name in plan.datasets
    }
    for group in application.catalog.groups if only is None else ():
        if drafts := [name for name in group if name in built and application.dataset(name).is_draft]:
            # What is built together is released together, and only a person releases a draft.
            for name in layers.keys() & set(group):
                layers[name] = [one for one in layers[name] if one is not Layer.published]
            say(f"{in_words(drafts)}: a draft, so the runs publish nothing; when they are done: backfill status UNIT")
    request = BackfillRequest(layers, plan.days, shortened(about.title, _TITLE), about.description, about.tags)
    where = f" in unit {unit}" if unit else ""
    what = f"{', '.join(plan.datasets)} {format_days(plan.days)}{where}"
    say(f"asking Dagster to launch {what}")
    backfill_id = backfills.launch_backfill(request, webserver or None)
    say(f"launched backfill {backfill_id}: {what}; the Dagster daemon runs it")
    targets = {name: application.dataset(name).from_start(plan.days) for name in plan.datasets}
    return backfills.Launched(backfill_id, targets, only, unit)


def _chosen(dataset: Dataset, layers: Sequence[Layer], only: Layer | None) -> Sequence[Layer]:
    if only is not None and only not in layers:
        raise ArgumentError(f"--only {only}: {dataset.name} cannot launch it; it has {in_words(layers)}")
    return layers if only is None else (only,)
