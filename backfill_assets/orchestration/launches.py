"""The unit and the expected change of a launch."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from backfill_assets.dataset.definition import Dataset, Publication
from backfill_assets.dataset.yaml import content_of, decoded, read_yaml
from backfill_assets.orchestration.names import asset_key, days_of, op_name
from backfill_assets.storage.layout import below

_SHOWN = 100

Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True)
class DeclaredChange:
    """What a launch says of some of its datasets; an empty contract withdraws what was said of them before."""

    contract: Contract
    datasets: frozenset[str]

    def added_to(self, unit: Unit) -> Contract:
        """The contract of a unit after this."""
        # A clause of no dataset is one of the only dataset: such units were opened before clauses had names.
        nameless = {""} if len(unit.targets) == 1 else set()
        return unit.contract.updated(self.contract, self.datasets | nameless)


def contract_of(context: Context, datasets: Sequence[Dataset]) -> DeclaredChange | None:
    """The expected change that the launch brings for the datasets that it builds; none if it brings none.

    Run config stands at each dataset's shadow. A tag is about the one dataset of the launch; where there are several, it
    is a mapping from dataset to its expected change. An empty mapping says that nothing is expected any more.

    Raises:
        ContractError: both are given, the file cannot be read, or the contract cannot be understood.
    """
    configured = {d.name: found for d in datasets if (found := _configured(context, d)) is not None}
    tag = context.run.tags.get(CONTRACT_TAG)
    if configured and tag is not None:
        raise ContractError(f"expected_change is given by run config and by the tag {CONTRACT_TAG}; give one")
    by_name = {dataset.name: dataset for dataset in datasets}
    if configured:
        return _joined(by_name, configured, "run config of shadow__{}")
    if tag is not None:
        return _joined(by_name, _by_dataset(_tagged(tag), by_name), f"tag {CONTRACT_TAG}")
    return None


def expected_changes(text: str, datasets: Sequence[Dataset]) -> Mapping[str, object]:
    """The expected change by dataset that a text brings: JSON, or the name of a YAML file.

    Raises:
        ContractError: it cannot be read, speaks of other datasets, or cannot be understood.
    """
    by_name = {dataset.name: dataset for dataset in datasets}
    given = _by_dataset(_tagged(text), by_name)
    _joined(by_name, given, f"tag {CONTRACT_TAG}")
    return given


def as_tag(given: Mapping[str, object]) -> str:
    """The tag of a launch that brings these expected changes, by dataset."""
    return json.dumps(given, default=str)


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


def _by_dataset(content: object, datasets: Mapping[str, Dataset]) -> Mapping[str, object]:
    if isinstance(content, Mapping) and content and set(content) <= set(datasets):
        return content
    if len(datasets) == 1 or content == {}:
        return dict.fromkeys(datasets, content)
    raise ContractError(
        f"tag {CONTRACT_TAG}: this launch builds {', '.join(datasets)}; say which of them must change by how much, as a "
        f"mapping from dataset to metrics, such as {{{next(iter(datasets))}: {{row_count: -50%}}}}"
    )


def _tagged(tag: str) -> object:
    where = f"tag {CONTRACT_TAG}: {tag[:_SHOWN]!r}"
    if tag.lstrip().startswith(("{", "[")):
        try:
            return json.loads(tag, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"{where} is not JSON ({error}); mend it or name a file") from None
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
        raise ValueError("a key stands there twice; keep one of them")
    return found


BACKFILL_TAG = "dagster/backfill"

_LAST = (Layer.shadow, Layer.published)


@dataclass(frozen=True)
class LaunchTarget:
    """What a launch asks for of one dataset: its days, and which of the last two layers it includes.

    `made_at` is when its backfill was made; nothing is known of it where a run belongs to none.
    """

    launched_by: str
    days: tuple[dt.date, ...]
    shadow: bool
    published: bool
    tags: Mapping[str, str] = field(default_factory=dict)
    made_at: dt.datetime | None = None


def target_of(context: Context, dataset: str) -> LaunchTarget:
    """The target of the whole launch: of the backfill if the run belongs to one, otherwise of the run."""
    return targets_of(context, (dataset,))[dataset]


def targets_of(context: Context, datasets: Collection[str]) -> Mapping[str, LaunchTarget]:
    """The targets of the whole launch for several datasets; those that it leaves out have no layer in it."""
    run = context.run
    backfill_id = run.tags.get(BACKFILL_TAG)
    backfill = context.instance.get_backfill(backfill_id) if backfill_id else None
    if backfill_id and backfill is not None:
        data = backfill.get_asset_backfill_data(context.repository_def.asset_graph)
        keys = {name: tuple(_keys(data, asset_key(layer, name)) for layer in _LAST) for name in datasets}
        made_at = dt.datetime.fromtimestamp(backfill.backfill_timestamp, dt.UTC)
        return {
            name: LaunchTarget(
                backfill_id, days_of(shadow | published), bool(shadow), bool(published), run.tags, made_at
            )
            for name, (shadow, published) in keys.items()
        }
    selection, days = _selection(context), days_of(context.partition_keys)
    chosen = {name: tuple(asset_key(layer, name) in selection for layer in _LAST) for name in datasets}
    return {
        name: LaunchTarget(run.run_id, days, shadow, published, run.tags)
        for name, (shadow, published) in chosen.items()
    }


def unit_of(context: Context, application: Application, dataset: Dataset) -> Unit:
    """Join or open the unit of this launch, and give it the contract that the launch brings.

    The unit holds every dataset of the release group whose shadow the launch builds.

    Raises:
        ClaimedDaysError: the days belong to another open unit, or partly so.
        HeldDaysError: a live launch asks for days on hold.
        UnitError: the unit that a tag names does not exist or cannot take these days, or the launch would release
            some of the datasets that it builds, and others not, or builds or releases what is for a campaign to do.
        ContractError: the launch's contract cannot be understood, or the unit is a campaign's and has another one.
    """
    groups = application.catalog.groups
    # All at once: what a backfill targets has to be read from Dagster's database.
    everything = targets_of(context, [name for group in groups for name in group])
    targets = _shadows(next(names for names in groups if dataset.name in names), everything)
    members = [application.dataset(name) for name in targets]
    target = targets[dataset.name]
    declared = contract_of(context, members)
    live = target.tags.get(LIVE_TAG) == "true"
    passes = all(member.late_data is LateData.publish for member in members)
    released = _released_by_runs(targets, members)
    launch = Launch(
        targets={name: frozenset(found.days) for name, found in targets.items()},
        opened_by=_opened_by(groups, everything, dataset.name),
        named_unit=target.tags.get(UNIT_TAG),
        live=live,
        late_data=LateData.publish if passes else LateData.hold,
        since=target.made_at or _run_made_at(context),
    )
    unit = _assigned(context, application, launch, _proposal(application, launch, declared, released=released))
    _refuse_by_hand(unit, target)
    return updated(application, unit, declared, released=released)


def created_at(record: dg.RunRecord) -> dt.datetime:
    """When a run was made; some of Dagster's storages give it in UTC without saying so."""
    created = record.create_timestamp
    return created if created.tzinfo is not None else created.replace(tzinfo=dt.UTC)


def _run_made_at(context: Context) -> dt.datetime | None:
    record = context.instance.get_run_record_by_id(context.run.run_id)
    return created_at(record) if record is not None else None


def _assigned(context: Context, application: Application, launch: Launch, proposal: Unit) -> Unit:
    """The unit of a launch: also one of another launch that has released these days since this one was made.

    That is so only while nothing has moved since; otherwise this launch has work of its own to do.
    """
    unit = application.ledger.assign(launch, proposal)
    if unit.state is UnitState.open or launch.named_unit is not None or unit.opened_by == launch.opened_by:
        return unit
    same = proposal.contract.hash in {Contract().hash, unit.contract.hash}
    if same and all(
        application.pipeline.stands(unit, name, tuple(sorted(days))) for name, days in launch.targets.items()
    ):
        context.log.info(f"unit {unit.id} has released these days since this launch was made, and nothing moved")
        return unit
    _refuse_in_part(context, unit)
    return application.ledger.assign(replace(launch, since=None), proposal)


def _refuse_in_part(context: Context, unit: Unit) -> None:
    """Keep a backfill some runs of which found their days built in another unit from opening one that they will not complete."""
    backfill_id = context.run.tags.get(BACKFILL_TAG)
    ended_well = dg.RunsFilter(tags={BACKFILL_TAG: backfill_id or ""}, statuses=[dg.DagsterRunStatus.SUCCESS])
    if backfill_id and context.instance.get_runs(ended_well, limit=1):
        raise UnitError(
            f"unit {unit.id} has released {shown_days(unit.days)} while backfill {backfill_id} was at work on them, and "
            "deliveries, code, contract or the published table have moved since; launch the same days once more"
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
    group = next(names for names in application.catalog.groups if dataset in names)
    return _shadows(group, targets_of(context, group))


def work_tag(context: Context, step: str, dataset: str) -> str:
    """Names the Spark work of a step; a retry of a crashed run has the same name, and so ends what the crash left."""
    return f"{context.run.root_run_id or context.run.run_id}:{step}:{dataset}"


def _shadows(group: Sequence[str], targets: Mapping[str, LaunchTarget]) -> Mapping[str, LaunchTarget]:
    return {name: targets[name] for name in group if targets[name].shadow}


def updated(application: Application, unit: Unit, declared: DeclaredChange | None, *, released: bool) -> Unit:
    """The unit with what the launch brings: its contract, and whether its runs release it.

    Raises:
        ContractError: the unit is a campaign's, and the launch brings another contract.
        UnitError: the unit is a campaign's, and the launch would release it.
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


def _refuse_by_hand(unit: Unit, target: LaunchTarget) -> None:
    """Keep a launch that is none of the campaign's own from building its days: no gate and no budget would hold it."""
    if unit.campaign and unit.state is UnitState.open and target.tags.get(CAMPAIGN_TAG) != unit.campaign:
        raise UnitError(
            f"unit {unit.id} ({shown_days(unit.days)}) belongs to campaign {unit.campaign}, and this launch does not: its days "
            "would be built past the campaign's gate, its budget and its pauses. Build what is missing, failed or stale, and "
            f"only that, with: backfill resume {unit.campaign}"
        )


def _refuse_for_campaign(unit: Unit, *, contract: bool, released: bool) -> None:
    """Keep a launch from deciding what a campaign decides: what must change by how much, and when it is released."""
    if contract:
        raise ContractError(
            f"unit {unit.id} belongs to campaign {unit.campaign}: what must change by how much stands in its specification "
            f"(validation) and comes by no launch. Change it there, then: backfill resume {unit.campaign}"
        )
    if released:
        raise UnitError(
            f"unit {unit.id} belongs to campaign {unit.campaign} and is released as a whole by: backfill publish "
            f"{unit.campaign}; leave published out of this launch"
        )


def _released_by_runs(targets: Mapping[str, LaunchTarget], members: Sequence[Dataset]) -> bool:
    """Whether the launch itself releases what it builds: all of it, or nothing."""
    own = [m.name for m in members if m.publication is Publication.auto]
    missing = [name for name in own if not targets[name].published]
    if missing and len(missing) < len(own):
        released = sorted(set(own) - set(missing))
        raise UnitError(
            f"this launch builds {', '.join(own)} and releases only {', '.join(released)}, but what is built together is "
            f"released together; select published of {', '.join(missing)} as well, or leave out their shadow "
            f"({format_days(targets[missing[0]].days)})"
        )
    return bool(own) and not missing


def _opened_by(groups: Sequence[Sequence[str]], everything: Mapping[str, LaunchTarget], dataset: str) -> str:
    """The launch, and the release group where it builds several: each has a unit of its own."""
    launch = everything[dataset].launched_by
    busy = [group for group in groups if _shadows(group, everything)]
    if len(busy) == 1:
        return launch
    return f"{launch}/{next(group[0] for group in busy if dataset in group)}"


def _selection(context: Context) -> Collection[dg.AssetKey]:
    if context.run.asset_selection is not None:
        return context.run.asset_selection
    # A job's run without a selection of its own takes all of the job's assets.
    return set(context.op_execution_context.job_def.asset_layer.executable_asset_keys)


def _keys(data: object, key: dg.AssetKey) -> set[str]:
    target = data.target_subset  # type: ignore[attr-defined]
    return set(target.get_partitions_subset(key).get_partition_keys()) if key in target.asset_keys else set()
