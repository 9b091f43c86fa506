"""The unit and the expected change of a launch."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ContractError, DatasetError, LayoutError, UnitError
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import (
    CONTRACT_TAG,
    LIVE_TAG,
    UNIT_TAG,
    LateData,
    Launch,
    ReleaseMode,
    Unit,
    UnitState,
    shown_days,
)
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.yaml import content_of, decoded, read_yaml
from backfill_assets.orchestration.names import asset_key, created_at, days_of, op_name
from backfill_assets.storage.disk import below

_SHOWN = 100
_TAGGED = f"tag {CONTRACT_TAG}"

Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True)
class DeclaredChange:
    """The change that a launch declares for some of its datasets; an empty contract withdraws earlier ones."""

    contract: Contract
    datasets: frozenset[str]

    def added_to(self, unit: Unit) -> Contract:
        """The contract of a unit after this declaration."""
        # A clause without a dataset belongs to the only dataset: such units were opened before clauses had names.
        nameless = {""} if len(unit.targets) == 1 else set()
        return unit.contract.updated(self.contract, self.datasets | nameless)


def contract_of(
    context: Context, datasets: Sequence[Dataset], launched: Sequence[Dataset] = ()
) -> DeclaredChange | None:
    """The expected change that the launch declares for these datasets that it builds; None if it declares none.

    Run config is set on each dataset's shadow. A tag is for the only dataset of the launch; if there are several, it
    is a mapping from dataset to its expected change. An empty mapping withdraws every expected change. `launched` are all
    datasets that the launch builds, if it has some of other release groups: the tag may name these as well.

    Raises:
        ContractError: both are given, the file cannot be read, or the contract is invalid.
    """
    configured = {d.name: found for d in datasets if (found := _configured(context, d)) is not None}
    tag = context.run.tags.get(CONTRACT_TAG)
    if configured and tag is not None:
        raise ContractError(f"expected_change is given by run config and by the tag {CONTRACT_TAG}; give only one")
    by_name = {dataset.name: dataset for dataset in datasets}
    if configured:
        return _joined(by_name, configured, "run config of shadow__{}")
    if tag is not None:
        said = _by_dataset(_tagged(tag), {dataset.name: dataset for dataset in launched or datasets})
        mine = {name: change for name, change in said.items() if name in by_name}
        return _joined(by_name, mine, _TAGGED) if mine else None
    return None


def expected_changes(text: str, datasets: Sequence[Dataset], where: str) -> Mapping[str, object]:
    """The expected change of each dataset in a text: JSON, or the name of a YAML file; `where` is the text's place.

    Raises:
        ContractError: it cannot be read, names other datasets, or is invalid.
    """
    by_name = {dataset.name: dataset for dataset in datasets}
    given = _by_dataset(_tagged(text, where), by_name, where)
    _joined(by_name, given, where)
    return given


def _joined(datasets: Mapping[str, Dataset], given: Mapping[str, object], where: str) -> DeclaredChange:
    parsed = [
        parse_contract(value, metric_names(datasets[name]), where.format(name), name, datasets[name].promisable)
        for name, value in given.items()
    ]
    return DeclaredChange(
        Contract(tuple(clause for contract in parsed for clause in contract.clauses)), frozenset(given)
    )


def _configured(context: Context, dataset: Dataset) -> object:
    ops = _mapping(context.run.run_config.get("ops"))
    return _mapping(_mapping(ops.get(op_name(Layer.shadow, dataset.name))).get("config")).get("expected_change")


def _by_dataset(content: object, datasets: Mapping[str, Dataset], where: str = _TAGGED) -> Mapping[str, object]:
    if isinstance(content, Mapping) and content and set(content) <= set(datasets):
        return content
    if len(datasets) == 1 or content == {}:
        return dict.fromkeys(datasets, content)
    raise ContractError(
        f"{where}: this launch builds {', '.join(datasets)}; say what must change and by how much, as a "
        f"mapping from dataset to metrics, such as {{{next(iter(datasets))}: {{row_count: -50%}}}}"
    )


def _tagged(tag: str, place: str = _TAGGED) -> object:
    where = f"{place}: {tag[:_SHOWN]!r}"
    if tag.lstrip().startswith(("{", "[")):
        try:
            return json.loads(tag, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"{where} is not JSON ({error}); fix it or name a file") from None
    try:
        path = below(Path.cwd(), tag)
    except LayoutError:
        path = None
    if path is None or path.suffix not in {".yaml", ".yml"}:
        raise ContractError(f"{where} must name a .yaml file below the folder of the code location")
    try:
        document = read_yaml(decoded(content_of(path)))
    except DatasetError as error:
        message, line = error.args
        raise ContractError(f"{where}{f', line {line}' if line else ''}: {message}") from None
    if document.problems:
        line, _, message = document.problems[0]
        raise ContractError(f"{where}, line {line}: {message}")
    content = document.value
    if not isinstance(content, Mapping) or "expected_change" not in content:
        return content
    other = next((key for key in content if key != "expected_change"), None)
    if other is not None:
        raise ContractError(f"{where}: unknown key {other[:_SHOWN]!r} beside expected_change; remove it")
    return content["expected_change"]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice; keep one of them")
    return found


BACKFILL_TAG = "dagster/backfill"

_LAST = (Layer.shadow, Layer.published)


@dataclass(frozen=True)
class LaunchTarget:
    """What a launch requests of one dataset: its days, and which of the last two layers it includes.

    `made_at` is when its backfill was created; None for a run without a backfill.
    """

    launched_by: str
    days: tuple[dt.date, ...]
    shadow: bool
    published: bool
    made_at: dt.datetime | None = None


def target_of(context: Context, application: Application, dataset: str) -> LaunchTarget:
    """The target of the complete launch: of the backfill if the run belongs to one, otherwise of the run."""
    return targets_of(context, application, (dataset,))[dataset]


def targets_of(context: Context, application: Application, datasets: Collection[str]) -> Mapping[str, LaunchTarget]:
    """The targets of the complete launch for several datasets; those that it leaves out have no layer in it.

    Days before the history of a dataset are no target of it.
    """
    run = context.run
    starts = {name: dataset.start.isoformat() for name, dataset in application.catalog.definitions.items()}
    backfill_id = run.tags.get(BACKFILL_TAG)
    backfill = context.instance.get_backfill(backfill_id) if backfill_id else None
    if backfill_id and backfill is not None:
        data = backfill.get_asset_backfill_data(context.repository_def.asset_graph)
        keys = {
            name: tuple(_keys(data, asset_key(of, name), starts.get(name, "")) for of in _LAST) for name in datasets
        }
        made_at = dt.datetime.fromtimestamp(backfill.backfill_timestamp, dt.UTC)
        return {
            name: LaunchTarget(backfill_id, days_of(shadow | published), bool(shadow), bool(published), made_at)
            for name, (shadow, published) in keys.items()
        }
    selection, partitions, found = _selection(context), context.partition_keys, {}
    for name in datasets:
        days = days_of(key for key in partitions if key >= starts.get(name, ""))
        shadow, published = (bool(days) and asset_key(layer, name) in selection for layer in _LAST)
        found[name] = LaunchTarget(run.run_id, days, shadow, published)
    return found


def is_live(context: Context) -> bool:
    """Whether a run belongs to the live pipeline."""
    return context.run.tags.get(LIVE_TAG) == "true"


def unit_of(context: Context, application: Application, dataset: Dataset) -> Unit:
    """Join or open the unit of this launch, and give it the contract that the launch declares.

    The unit holds every dataset of the release group whose shadow the launch builds.

    Raises:
        ClaimedDaysError: some or all of the days belong to another open unit.
        HeldDaysError: a live launch asks for days on hold.
        UnitError: the unit that a tag names does not exist or cannot take these days; or the launch would release only
            some of the datasets that it builds, or builds or releases what only a campaign may.
        ContractError: the launch's contract is invalid, or the unit belongs to a campaign and has another one.
    """
    # All in one call: what a backfill targets is read from Dagster's database.
    everything = targets_of(context, application, tuple(application.datasets))
    groups = application.catalog.groups_of(name for name, found in everything.items() if found.shadow)
    targets = _shadows(next(names for names in groups if dataset.name in names), everything)
    members = [application.dataset(name) for name in targets]
    target, tags = targets[dataset.name], context.run.tags
    launched = [application.dataset(name) for group in groups for name in _shadows(group, everything)]
    declared = contract_of(context, members, launched)
    passes = all(member.late_data is LateData.publish for member in members)
    released = _released_by_runs(targets, members)
    _refuse_drafts(application, targets if released else ())
    launch = Launch(
        targets={name: frozenset(found.days) for name, found in targets.items()},
        opened_by=_opened_by(groups, everything, dataset.name),
        named_unit=tags.get(UNIT_TAG),
        live=is_live(context),
        late_data=LateData.publish if passes else LateData.hold,
        since=target.made_at or _run_made_at(context),
    )
    unit = _assigned(context, application, launch, _proposal(application, launch, declared, released=released))
    _refuse_by_hand(unit, tags)
    _refuse_drafts(application, unit.targets if released and unit.state is UnitState.open else ())
    return updated(application, unit, declared, released=released)


def _run_made_at(context: Context) -> dt.datetime | None:
    record = context.instance.get_run_record_by_id(context.run.run_id)
    return created_at(record) if record is not None else None


def _assigned(context: Context, application: Application, launch: Launch, proposal: Unit) -> Unit:
    """The unit of a launch, or the unit of another launch that has released these days since this one was created.

    The latter only if nothing has moved since; otherwise this launch has work of its own to do.
    """
    unit = application.ledger.assign(launch, proposal)
    if unit.state is UnitState.open or launch.named_unit is not None or unit.opened_by == launch.opened_by:
        return unit
    same = proposal.contract.hash in {Contract().hash, unit.contract.hash}
    if same and all(
        application.pipeline.is_current(unit, name, tuple(sorted(days))) for name, days in launch.targets.items()
    ):
        context.log.info(f"unit {unit.id} has released these days since this launch was made, and nothing moved")
        return unit
    _refuse_in_part(context, unit)
    return application.ledger.assign(replace(launch, since=None), proposal)


def _refuse_in_part(context: Context, unit: Unit) -> None:
    """Keep a backfill from opening a unit that it cannot complete: its other runs found their days in another unit."""
    backfill_id = context.run.tags.get(BACKFILL_TAG)
    ended_well = dg.RunsFilter(tags={BACKFILL_TAG: backfill_id or ""}, statuses=[dg.DagsterRunStatus.SUCCESS])
    if backfill_id and context.instance.get_runs(ended_well, limit=1):
        raise UnitError(
            f"unit {unit.id} has released {shown_days(unit.days)} while backfill {backfill_id} was working on them; "
            "deliveries, code, contract or the published table have moved since; launch the same days again"
        )


def _proposal(application: Application, launch: Launch, declared: DeclaredChange | None, *, released: bool) -> Unit:
    return Unit(
        id=application.ids.new("u"),
        opened_by=launch.opened_by,
        opened_at=application.clock.now(),
        by=application.identity.name(),
        targets={name: tuple(sorted(days)) for name, days in launch.targets.items()},
        mode=ReleaseMode.auto if released else ReleaseMode.manual,
        contract=declared.contract if declared else Contract(),
        live=launch.live,
    )


def built_together(context: Context, application: Application, dataset: str) -> Mapping[str, LaunchTarget]:
    """The targets of all datasets of the release group whose shadows the launch builds, upstream first."""
    everything = targets_of(context, application, tuple(application.datasets))
    groups = application.catalog.groups_of(name for name, found in everything.items() if found.shadow)
    return _shadows(next(names for names in groups if dataset in names), everything)


def _shadows(group: Sequence[str], targets: Mapping[str, LaunchTarget]) -> Mapping[str, LaunchTarget]:
    return {name: targets[name] for name in group if targets[name].shadow}


def updated(application: Application, unit: Unit, declared: DeclaredChange | None, *, released: bool) -> Unit:
    """The unit with what the launch declares: its contract, and whether its runs release it.

    Raises:
        ContractError: the unit belongs to a campaign, and the launch declares another contract.
        UnitError: the unit belongs to a campaign, and the launch would release it.
    """
    contract = declared.added_to(unit) if declared is not None else unit.contract
    other = contract.hash != unit.contract.hash
    if unit.campaign and unit.state is UnitState.open:
        _refuse_for_campaign(unit, contract=other, released=released)
        return unit
    if other:
        unit = application.ledger.set_contract(unit.id, contract)
    if released and unit.state is UnitState.open and unit.mode is ReleaseMode.manual:
        unit = application.ledger.set_mode(unit.id, ReleaseMode.auto)
    return unit


def _refuse_by_hand(unit: Unit, tags: Mapping[str, str]) -> None:
    """Keep a launch from outside a campaign from building its days: no gate and no budget would limit it."""
    if unit.campaign and unit.state is UnitState.open and tags.get(CAMPAIGN_TAG) != unit.campaign:
        raise UnitError(
            f"unit {unit.id} ({shown_days(unit.days)}) belongs to campaign {unit.campaign}, but this launch does not: "
            "it would bypass the campaign's gate, budget and pauses. Build only what is missing, failed or stale, "
            f"with: backfill resume {unit.campaign}"
        )


def _refuse_for_campaign(unit: Unit, *, contract: bool, released: bool) -> None:
    """Keep a launch from deciding what only a campaign decides: the expected change, and when it is released."""
    if contract:
        raise ContractError(
            f"unit {unit.id} belongs to campaign {unit.campaign}: its expected change is in the specification "
            f"(validation), not in a launch. Change it there, then: backfill resume {unit.campaign}"
        )
    if released:
        raise UnitError(
            f"unit {unit.id} belongs to campaign {unit.campaign} and is only released completely, by: backfill publish "
            f"{unit.campaign}; leave published out of this launch"
        )


def _released_by_runs(targets: Mapping[str, LaunchTarget], members: Sequence[Dataset]) -> bool:
    """Whether the launch itself releases what it builds: all of it, or nothing."""
    own = [m.name for m in members if m.is_released_by_runs]
    missing = [name for name in own if not targets[name].published]
    if missing and len(missing) < len(own):
        released = sorted(set(own) - set(missing))
        raise UnitError(
            f"this launch builds {', '.join(own)} and releases only {', '.join(released)}, but what is built together is "
            f"released together; select published of {', '.join(missing)} as well, or leave out their shadow "
            f"({format_days(targets[missing[0]].days)})"
        )
    return bool(own) and not missing


def _refuse_drafts(application: Application, released: Iterable[str]) -> None:
    """Keep a launch from releasing a draft: one that it builds, or one in the open unit that it works in."""
    drafts = [name for name in released if name in application.datasets and application.dataset(name).is_draft]
    if drafts:
        raise UnitError(
            f"this launch would release {', '.join(drafts)} as well, which only `backfill publish` does for a draft. Leave out "
            "published, or launch the draft alone; of an open unit: publish or discard it first"
        )


def _opened_by(groups: Sequence[Sequence[str]], everything: Mapping[str, LaunchTarget], dataset: str) -> str:
    """The launch, and the release group if it builds several: each group has its own unit."""
    launch = everything[dataset].launched_by
    busy = [group for group in groups if _shadows(group, everything)]
    if len(busy) == 1:
        return launch
    return f"{launch}/{next(group[0] for group in busy if dataset in group)}"


def _selection(context: Context) -> Collection[dg.AssetKey]:
    if context.run.asset_selection is not None:
        return context.run.asset_selection
    # A job's run without its own selection takes all of the job's assets.
    return set(context.op_execution_context.job_def.asset_layer.executable_asset_keys)


def _keys(data: object, key: dg.AssetKey, start: str) -> set[str]:
    target = data.target_subset  # type: ignore[attr-defined]
    keys = target.get_partitions_subset(key).get_partition_keys() if key in target.asset_keys else ()
    return {day for day in keys if day >= start}
