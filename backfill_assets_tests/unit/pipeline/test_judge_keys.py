"""Removed rows with new rows under other keys: refused unless they are explained, promised or tolerated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.errors import ContractError
from backfill_assets.core.evidence import Severity, Verdict
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.measured import NOTHING, Compared, RowCounts
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets_tests.harness.judged import GOOD, dataset, verdict


def keys(rows: RowCounts, promises: dict[str, object] | None = None, **checks: object) -> Verdict:
    described = of_checks(**checks)
    contract = parse_contract(
        {"rows": promises} if promises else None, metric_names(described), columns=described.promisable
    )
    return verdict("change_keys", GOOD, described, contract, Compared(rows))


def of_checks(**checks: object) -> Dataset:
    return dataset(checks=checks) if checks else dataset()


@pytest.mark.parametrize(
    ("rows", "passed"),
    [
        ({}, True),
        ({"added": 5}, True),
        ({"removed": 5}, True),
        ({"added": 6, "removed": 6}, False),
        ({"added": 1, "removed": 99}, False),
        ({"added": 6, "removed": 6, "explained_added": 6}, False),
        ({"added": 6, "removed": 6, "explained_removed": 6}, False),
        ({"added": 6, "explained_added": 6}, True),
        ({"added": 9, "removed": 1, "explained_added": 8, "explained_removed": 1}, False),
        ({"added": 6, "removed": 6, "explained_added": 5, "explained_removed": 5}, False),
        ({"added": 6, "removed": 6, "explained_added": 6, "explained_removed": 6}, True),
    ],
)
def test_a_row_for_another_is_refused_where_no_newer_delivery_explains_it(rows: dict[str, int], passed: bool) -> None:  # noqa: FBT001
    assert keys(RowCounts(**rows)).passed is passed


def test_the_tolerance_of_the_row_count_pays_for_as_many_and_a_promise_of_the_row_count_for_none() -> None:
    tolerant: dict[str, Any] = {"row_count": {"tolerance": "2%"}}
    assert keys(RowCounts(added=2, removed=2), **tolerant).passed
    found = keys(RowCounts(added=3, removed=3), **tolerant)
    assert (found.passed, found.tolerance) == (False, "2 rows")
    described = dataset()
    anything = parse_contract({"row_count": "any"}, metric_names(described))
    assert not verdict("change_keys", GOOD, described, anything, Compared(RowCounts(added=1, removed=1))).passed


@pytest.mark.parametrize(
    ("promises", "added", "removed", "passed"),
    [
        ({"added": "2%", "removed": "2%"}, 2, 2, True),
        ({"added": "2%", "removed": "2%"}, 2, 3, False),
        ({"added": "2%", "removed": "2%"}, 0, 0, False),
        ({"added": "0% to 2.5%", "removed": "any"}, 2, 99, True),
        ({"added": "0% to 2.5%", "removed": "any"}, 3, 99, False),
        ({"added": "any"}, 50, 0, True),
        ({"added": "any"}, 50, 1, False),
        ({"removed": "unchanged"}, 0, 0, True),
        ({"removed": "unchanged"}, 0, 1, False),
    ],
)
def test_a_promise_is_kept_by_its_own_side_and_pays_for_no_other(
    promises: dict[str, object], added: int, removed: int, passed: object
) -> None:
    found = keys(RowCounts(added=added, removed=removed), promises)
    assert found.passed is passed
    said = [f"rows {name}: {keys_text(text)}" for name, text in promises.items()]
    said += [f"no unexplained row {name}" for name in ("added", "removed") if name not in promises]
    assert found.expected == ", ".join(said)


def keys_text(text: object) -> str:
    return {"2%": "+2%", "0% to 2.5%": "+0% to +2.5%"}.get(str(text), str(text))


def test_a_promise_blocks_even_where_the_dataset_only_warns() -> None:
    lenient: dict[str, Any] = {"change_keys": {"severity": "warn"}}
    assert not keys(RowCounts(added=1, removed=1), **lenient).refuses
    assert keys(RowCounts(added=1, removed=1), {"added": "unchanged"}, **lenient).refuses


def test_a_refusal_says_how_many_rows_and_what_to_promise() -> None:
    found = keys(RowCounts(added=6, removed=7, explained_added=1))
    assert found.found == "6 added and 7 removed of 100 rows, 1 of them with keys of deliveries that came or went"
    assert (
        "promise it: rows: {added: …, removed: …} in the expected change, or expected_row_change: {added:" in found.note
    )


def test_columns_that_are_called_added_and_removed_are_meant_before_the_rows() -> None:
    columns: dict[str, Any] = {name: {"type": column.type} for name, column in dataset().columns.items()}
    columns |= {"removed": {"type": "boolean"}, "added": {"type": "boolean"}}
    described = dataset(columns=columns)
    contract = parse_contract({"rows": {"removed": "any"}}, metric_names(described), columns=described.promisable)
    found = verdict("change_keys", GOOD, described, contract, Compared(RowCounts(added=1, removed=1)))
    assert (found.passed, "raise checks.row_count.tolerance" in found.note) == (False, True)


def test_no_row_is_lost_where_nothing_is_published() -> None:
    first = replace(GOOD, published=NOTHING)
    assert (
        verdict("change_keys", first, dataset(), compared=Compared()).note
        == "first load of the day: nothing is published to compare with"
    )
    retyped = verdict("change_keys", GOOD, dataset(), compared=Compared())
    assert (retyped.passed, retyped.note) == (False, "the key has another type now")


@given(st.integers(0, 50), st.integers(0, 50), st.data())
def test_more_explained_rows_never_turn_a_pass_into_a_refusal(added: int, removed: int, data: st.DataObject) -> None:
    explained = data.draw(st.tuples(st.integers(0, added), st.integers(0, removed)))
    some = keys(RowCounts(added, removed, explained_added=explained[0], explained_removed=explained[1]))
    assert some.passed or not keys(RowCounts(added, removed)).passed
    assert keys(RowCounts(added, removed, explained_added=added, explained_removed=removed)).passed


def test_rows_are_never_fewer_than_none() -> None:
    with pytest.raises(
        ContractError, match=r"rows.removed: rows removed are counted, and cannot be fewer than zero; write rem"
    ):
        keys(RowCounts(), {"removed": "-5%"})


def test_row_changes_only_warn_where_an_upstream_has_moved() -> None:
    swapped = Compared(RowCounts(added=1, removed=1), upstream_moved=True)
    found = verdict("change_keys", GOOD, dataset(), compared=swapped)
    assert (found.passed, found.refuses, found.severity) == (False, False, Severity.warn)
    described = dataset()
    promised = parse_contract({"rows": {"added": "unchanged"}}, metric_names(described), columns=described.promisable)
    assert verdict("change_keys", GOOD, described, promised, swapped).refuses
