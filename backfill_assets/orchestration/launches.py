"""What a step can know of the launch that it belongs to, and the release unit that follows from it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import yaml

from backfill_assets.application import Application
from backfill_assets.domain.contract import Contract, parse_contract
from backfill_assets.domain.dataset import Dataset, Publication
from backfill_assets.domain.errors import ContractError
from backfill_assets.domain.measurement import metric_names
from backfill_assets.domain.units import (
    CONTRACT_TAG,
    LIVE_TAG,
    UNIT_TAG,
    Launch,
    ReleaseMode,
    Unit,
    UnitState,
)
from backfill_assets.orchestration.names import asset_key, days_of, op_name

BACKFILL_TAG = "dagster/backfill"
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True)
class Target:
    """What a launch asks for of one dataset: its days, and which of the last two layers it includes."""

    launched_by: str
    days: tuple[dt.date, ...]
    shadow: bool
    published: bool
    tags: Mapping[str, str]


def target_of(context: Context, dataset: str) -> Target:
    """The target of the whole launch: of the backfill if the run belongs to one, otherwise of the run."""
    run = context.run
    shadow, published = asset_key("shadow", dataset), asset_key("published", dataset)
    backfill_id = run.tags.get(BACKFILL_TAG)
    backfill = context.instance.get_backfill(backfill_id) if backfill_id else None
    if backfill_id and backfill is not None:
        data = backfill.get_asset_backfill_data(context.repository_def.asset_graph)
        wanted = {key: _keys(data, key) for key in (shadow, published)}
        days = days_of({key for keys in wanted.values() for key in keys})
        return Target(backfill_id, days, bool(wanted[shadow]), bool(wanted[published]), run.tags)
    selection = run.asset_selection
    days = days_of(context.partition_keys)
    return Target(
        run.run_id,
        days,
        selection is None or shadow in selection,
        selection is None or published in selection,
        run.tags,
    )


def unit_of(context: Context, application: Application, dataset: Dataset) -> Unit:
    """Join or open the unit of this launch, and give it the contract that the launch brings.

    Raises:
        ClaimedDaysError: the days belong to another open unit, or partly so.
        HeldDaysError: a live launch asks for days on hold.
        UnitError: the unit that a tag names does not exist or cannot take these days.
        ContractError: the launch's contract cannot be understood.
    """
    target = target_of(context, dataset.name)
    contract = contract_of(context, dataset)
    live = target.tags.get(LIVE_TAG) == "true"
    launch = Launch(
        dataset.name, frozenset(target.days), target.launched_by, target.tags.get(UNIT_TAG), live, dataset.late_data
    )
    released_by_runs = target.published and dataset.publication is Publication.auto
    proposal = Unit(
        id=application.ids.new("u"),
        opened_by=target.launched_by,
        opened_at=application.clock.now(),
        by=application.identity.name(),
        targets={dataset.name: target.days},
        mode=ReleaseMode.auto if released_by_runs else ReleaseMode.manual,
        contract=contract or Contract(),
        live=live,
    )
    unit = application.ledger.assign(launch, proposal)
    if contract is not None and contract.hash != unit.contract.hash:
        unit = application.ledger.set_contract(unit.id, contract)
    if released_by_runs and unit.state is UnitState.open and unit.mode is ReleaseMode.manual:
        unit = application.ledger.set_mode(unit.id, ReleaseMode.auto)
    return unit


def contract_of(context: Context, dataset: Dataset) -> Contract | None:
    """The expected change that the launch brings by run config or tag; none if it brings none.

    Raises:
        ContractError: both are given, the file cannot be read, or the contract cannot be understood.
    """
    config = _mapping(_mapping(context.run.run_config.get("ops")).get(op_name("shadow", dataset.name))).get("config")
    configured = _mapping(config).get("expected_change")
    tag = context.run.tags.get(CONTRACT_TAG)
    if configured is not None and tag is not None:
        raise ContractError(f"expected_change is given by run config and by the tag {CONTRACT_TAG}; give one")
    if configured is not None:
        return parse_contract(configured, metric_names(dataset), f"run config of {op_name('shadow', dataset.name)}")
    if tag is not None:
        return parse_contract(_tagged(tag), metric_names(dataset), f"tag {CONTRACT_TAG}")
    return None


def work_tag(context: Context, step: str, dataset: str) -> str:
    """Names the Spark work of a step; a retry of a crashed run has the same name, and so ends what the crash left."""
    return f"{context.run.root_run_id or context.run.run_id}:{step}:{dataset}"


def _tagged(tag: str) -> object:
    if tag.lstrip().startswith(("{", "[")):
        try:
            return json.loads(tag)
        except ValueError as error:
            raise ContractError(f"tag {CONTRACT_TAG}: {tag!r} is not JSON ({error}); mend it or name a file") from None
    here = Path.cwd().resolve()
    path = (here / tag).resolve()
    if path.suffix not in {".yaml", ".yml"} or here not in path.parents:
        raise ContractError(f"tag {CONTRACT_TAG}: {tag!r} must name a .yaml file below the folder of the code location")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not YAML"
        raise ContractError(f"tag {CONTRACT_TAG}: {tag!r} cannot be read ({reason}); mend or rename it") from None
    return content.get("expected_change") if isinstance(content, Mapping) and "expected_change" in content else content


def _keys(data: object, key: dg.AssetKey) -> set[str]:
    target = data.target_subset  # type: ignore[attr-defined]
    return set(target.get_partitions_subset(key).get_partition_keys()) if key in target.asset_keys else set()


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
