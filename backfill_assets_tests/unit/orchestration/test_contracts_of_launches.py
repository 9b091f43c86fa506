"""How a launch says what must change: by run config, by a tag with JSON, or by a tag that names a file."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backfill_assets.catalog import load_folder
from backfill_assets.domain.contract import Change
from backfill_assets.domain.dataset import Dataset
from backfill_assets.domain.errors import ContractError
from backfill_assets.domain.units import CONTRACT_TAG
from backfill_assets.orchestration.launch_contracts import Context, contract_of

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


def test_a_launch_without_a_word_brings_no_contract(dataset: Dataset) -> None:
    assert contract_of(_launch(), [dataset]) is None


def test_run_config_carries_the_expected_change(dataset: Dataset) -> None:
    contract = contract_of(_launch({"amount": "-50%"}), [dataset])
    assert contract is not None
    assert contract.expected("amount", DAY) == Change(Decimal("-0.5"), Decimal("-0.5"))
    assert contract.expected("row_count", DAY) is None


def test_a_tag_may_hold_json_or_name_a_file_below_the_working_folder(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fix.yaml").write_text("expected_change:\n  amount: -1.5% to -0.8%\n", encoding="utf-8")
    by_file = contract_of(_launch(tag="fix.yaml"), [dataset])
    by_json = contract_of(_launch(tag='{"amount": "-1.5% to -0.8%"}'), [dataset])
    assert by_file is not None
    assert by_json is not None
    assert by_file.hash == by_json.hash


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("../fix.yaml", "below the folder"),
        ("/etc/passwd", "must name a .yaml file"),
        ("fix.txt", "must name a .yaml file"),
        ("missing.yaml", "No such file"),
        ("{broken", "is not JSON"),
        ('{"amount": "a lot"}', "is no expected change"),
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
    with pytest.raises(ContractError, match="give one"):
        contract_of(_launch({"amount": "-50%"}, tag='{"amount": "-50%"}'), [dataset])
