"""How a launch says what must change: by run config, by a tag with JSON, or by a tag that names a file."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import ContractError
from backfill_assets.core.expected_change import Change, Contract, parse_contract
from backfill_assets.core.unit import CONTRACT_TAG, OPENED_BY, Launch, ReleaseMode, Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.load import load_folder
from backfill_assets.orchestration.launches import Context, contract_of
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import BOTH, House, materialize

DATASETS = Path(__file__).resolve().parents[2] / "dagster" / "datasets"
DAY = dt.date(2024, 1, 1)


@pytest.fixture
def dataset() -> Dataset:
    return load_folder(DATASETS).datasets["tickets"].dataset


def _launch(config: object = None, tag: str | None = None) -> Context:
    run_config: dict[str, Any] = {}
    if config is not None:
        run_config = {"ops": {"shadow__tickets": {"config": {"expected_change": config}}}}
    tags = {} if tag is None else {CONTRACT_TAG: tag}
    return cast("Context", SimpleNamespace(run=SimpleNamespace(run_config=run_config, tags=tags)))


def test_a_launch_without_an_expected_change_has_no_contract(dataset: Dataset) -> None:
    assert contract_of(_launch(), [dataset]) is None


def test_run_config_carries_the_expected_change(dataset: Dataset) -> None:
    declared = contract_of(_launch({"amount": "-50%"}), [dataset])
    assert declared is not None
    assert declared.contract.expected("amount", DAY) == Change(Decimal("-0.5"), Decimal("-0.5"))
    assert declared.contract.expected("row_count", DAY) is None


def test_rows_are_promised_by_columns_of_the_dataset(dataset: Dataset) -> None:
    promised = '{"metrics": {"amount": "-2% to 0%"}, "rows": {"amount": "-8% to 0%"}}'
    declared = contract_of(_launch(tag=promised), [dataset])
    assert declared is not None
    assert declared.contract.expected_rows(DAY) == {"amount": Change(Decimal("-0.08"), Decimal(0))}
    with pytest.raises(ContractError, match="unknown column 'profit'; outside its key this dataset has"):
        contract_of(_launch({"rows": {"profit": "any"}}), [dataset])


def test_a_tag_may_hold_json_or_name_a_file_below_the_working_folder(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fix.yaml").write_text("expected_change:\n  amount: -1.5% to -0.8%\n", encoding="utf-8")
    by_file = contract_of(_launch(tag="fix.yaml"), [dataset])
    by_json = contract_of(_launch(tag='{"amount": "-1.5% to -0.8%"}'), [dataset])
    assert by_file is not None
    assert by_json is not None
    assert by_file == by_json


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("../fix.yaml", "below the folder"),
        ("/etc/passwd", "must name a .yaml file"),
        ("fix.txt", "must name a .yaml file"),
        ("missing.yaml", "No such file"),
        ("{broken", "is not JSON"),
        ('{"amount": "a lot"}', "is not a change"),
        ('{"profit": "unchanged"}', "unknown metric 'profit'"),
    ],
)
def test_a_tag_that_cannot_be_used_is_refused_with_the_reason(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContractError, match=reason):
        contract_of(_launch(tag=tag), [dataset])


def test_two_contracts_for_one_launch_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ContractError, match="give only one"):
        contract_of(_launch({"amount": "-50%"}, tag='{"amount": "-50%"}'), [dataset])


def _unit(contract: Contract, *names: str) -> Unit:
    opened = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    return Unit("u_1", "b_1", opened, "ada", dict.fromkeys(names, (DAY,)), ReleaseMode.auto, contract)


@pytest.mark.parametrize("launch", [_launch({}), _launch(tag="{}"), _launch(tag='{"tickets": {}}')])
def test_an_empty_expected_change_withdraws_the_one_before(dataset: Dataset, launch: Context) -> None:
    before = parse_contract({"amount": "-50%"}, ["amount"], dataset="tickets")
    other = parse_contract({"amount": "-50%"}, ["amount"], dataset="orders")
    declared = contract_of(launch, [dataset])
    assert declared is not None
    assert not declared.added_to(_unit(before, "tickets"))
    both = _unit(Contract((*before.clauses, *other.clauses)), "orders", "tickets")
    assert declared.added_to(both).hash == other.hash


def test_an_empty_tag_withdraws_what_was_expected_of_all_datasets(dataset: Dataset) -> None:
    orders = load_folder(DATASETS).datasets["orders"].dataset
    declared = contract_of(_launch(tag="{}"), [dataset, orders])
    assert declared is not None
    before = parse_contract({"amount": "-50%"}, ["amount"], dataset="orders")
    assert not declared.added_to(_unit(before, "orders", "tickets"))


def test_a_clause_without_a_name_does_not_outlive_a_newer_one_of_the_only_dataset(dataset: Dataset) -> None:
    nameless = parse_contract({"amount": "-50%"}, ["amount"])
    declared = contract_of(_launch({"amount": "-10%"}), [dataset])
    assert declared is not None
    newer = declared.added_to(_unit(nameless, "tickets"))
    assert newer.of("tickets").expected("amount", DAY) == Change(Decimal("-0.1"), Decimal("-0.1"))


def test_a_tag_of_a_launch_of_several_release_groups_names_datasets_of_all_of_them(dataset: Dataset) -> None:
    orders = load_folder(DATASETS).datasets["orders"].dataset
    launch = _launch(tag='{"tickets": {"amount": "-10%"}, "orders": {"row_count": "any"}}')
    declared = contract_of(launch, [dataset], [orders, dataset])
    assert declared is not None
    assert declared.datasets == {"tickets"}
    assert declared.contract.expected("amount", DAY) == Change(Decimal("-0.1"), Decimal("-0.1"))
    assert contract_of(_launch(tag='{"orders": {"row_count": "any"}}'), [dataset], [orders, dataset]) is None
    # One change without a name could be of either.
    with pytest.raises(ContractError, match="this launch builds orders, tickets"):
        contract_of(_launch(tag='{"row_count": "any"}'), [dataset], [orders, dataset])


def test_a_launch_of_two_release_groups_is_not_refused_for_the_datasets_that_its_tag_names(house: House) -> None:
    house.settle("tills")
    house.application = Application.from_env()
    first = day(1)
    # The days belong to a campaign, so that each group is refused after its contract was read, and nothing is built.
    for names in (BOTH, ("tills",)):
        launch = Launch(dict.fromkeys(names, frozenset({first})), f"{OPENED_BY}fix-tax/{names[0]}")
        proposal = replace(_unit(Contract(), *names), id=f"u_{names[0]}", opened_by=launch.opened_by)
        house.world.ledger.assign(launch, replace(proposal, targets=dict.fromkeys(names, (first,))))
    tag = '{"sales": {"amount": "any"}, "tills": {"amount": "-50%"}}'
    refused = materialize(house, "sales/shadow", "tills/shadow", "totals/shadow", tags={CONTRACT_TAG: tag})
    assert "u_sales" in refused
    assert "unit u_tills" in refused
    assert "this launch builds" not in refused
    assert "unknown metric" not in refused
