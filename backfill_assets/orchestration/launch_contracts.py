"""The expected change that a launch brings: by run config, by a tag with JSON, or by a tag that names a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from backfill_assets.core.errors import ContractError, DatasetError, LayoutError
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.unit import CONTRACT_TAG, Unit
from backfill_assets.dataset.check_list import metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.yaml import content_of, decoded, read_yaml
from backfill_assets.orchestration.names import op_name
from backfill_assets.storage.layout import below

_SHOWN = 100

Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True)
class Declared:
    """What a launch says of some of its datasets; an empty contract withdraws what was said of them before."""

    contract: Contract
    datasets: frozenset[str]

    def added_to(self, unit: Unit) -> Contract:
        """The contract of a unit after this."""
        # A clause of no dataset is one of the only dataset: such units were opened before clauses had names.
        nameless = {""} if len(unit.targets) == 1 else set()
        return unit.contract.updated(self.contract, self.datasets | nameless)


def contract_of(context: Context, datasets: Sequence[Dataset]) -> Declared | None:
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


def _joined(datasets: Mapping[str, Dataset], given: Mapping[str, object], where: str) -> Declared:
    parsed = [
        parse_contract(value, metric_names(datasets[name]), where.format(name), name, datasets[name].promisable)
        for name, value in given.items()
    ]
    return Declared(Contract(tuple(clause for contract in parsed for clause in contract.clauses)), frozenset(given))


def _configured(context: Context, dataset: Dataset) -> object:
    ops = _mapping(context.run.run_config.get("ops"))
    return _mapping(_mapping(ops.get(op_name("shadow", dataset.name))).get("config")).get("expected_change")


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
    if document.faults:
        line, _, message = document.faults[0]
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
